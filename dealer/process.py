"""The dealer as a process."""

import asyncio
import logging
import resource
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from precad.common.identity.credentials import Identity
from precad.common.logs import doing
from precad.common.process_settings import ListenAddress, Settings
from precad.common.task import Task
from precad.common.wire.guarded_port import GuardedPort
from precad.common.wire.serving import add_health, set_when_told_to_stop
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService

log = logging.getLogger("precad")


class DealerSettings(Settings):
    """The dealer's settings file."""

    listen: ListenAddress
    ends_with_training: bool = False
    """Whether the dealer ends when both servers have said that their training is over; else it
    deals until it is stopped."""
    metrics: ListenAddress | None = None
    """Where a Prometheus finds the dealer's metrics, without TLS: an address that only it reaches;
    none unless given."""


SETTINGS = DealerSettings


async def serve(settings: DealerSettings) -> int:
    """Deal, as the settings say, until told to stop or both left. Returns the exit status."""
    # A dump would hold clients' seeds.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task, identity = Task.load(settings.task), Identity.load(settings.identity)
    doing(part="dealer", task=task.name)
    port = GuardedPort("the dealer", identity)
    stop = asyncio.Event()
    dealer = DealerRole.of(task)
    service = DealingService(task, dealer, identity)
    if settings.ends_with_training:
        service.on_both_left = stop.set
    service.add_to(port.server)
    add_health(port.server, identity, lambda: not stop.is_set())
    number = await port.listen(settings.listen)
    log.info("dealer deals for task %s on port %d", task.name, number)
    set_when_told_to_stop(stop)
    with _metrics(task.name, dealer, service, settings.metrics):
        await stop.wait()
        await port.stop(grace_s=1)
    return 0


def _metrics(
    task: str, dealer: DealerRole, service: DealingService, address: ListenAddress | None
) -> AbstractContextManager[None]:
    """Metrics around the service's work, where the settings name a place for them."""
    if address is None:
        return nullcontext()
    from precad.common.wire.metrics_page import metrics_page  # noqa: PLC0415
    from precad.dealer.dealer_metrics import collect  # noqa: PLC0415

    return metrics_page(partial(collect, task, dealer, service), address)
