"""The dealer as a process: its settings, its port and its metrics."""

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from precad.common import SERVERS, ListenAddress, ProcessSettings, Task, doing, log
from precad.common.identity import Identity, tell_until
from precad.common.wire import GuardedPort, add_health, set_when_told_to_stop
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class DealerSettings(ProcessSettings):
    """The dealer's settings file."""

    listen: ListenAddress
    ends_with_training: bool = False
    """Whether the dealer ends when both servers have said that their training is over;
    else it deals until it is stopped."""
    metrics: ListenAddress | None = None
    """Where a Prometheus finds the dealer's metrics, without TLS: an address that only
    it reaches; none unless given."""


DONE_S = 60.0
"""Seconds for which a dealer that ends with the training still shows metrics: by them a
Prometheus knows a finished dealer from a lost one."""
SETTINGS = DealerSettings
"""The settings' class, by the name that every process has for it."""


async def serve(settings: DealerSettings) -> int:
    """Deal until told to stop, or until both servers left where the settings say so.

    Returns the exit status.

    Raises Misconfiguration: task, identity or an address is wrong, or the task has no
    dealer.
    """
    # A core dump would hold clients' seeds.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task = Task.load(settings.task)
    identity = Identity.load(settings.identity, settings.key_passphrase_file)
    doing(part="dealer", task=task.name)
    port = GuardedPort("the dealer", identity)
    stop = asyncio.Event()
    dealer = DealerRole.of(task)
    service = DealingService(task, dealer, identity)
    if settings.ends_with_training:
        ends_in_s = 0.0 if settings.metrics is None else DONE_S
        loop = asyncio.get_running_loop()
        service.on_both_left = partial(loop.call_later, ends_in_s, stop.set)
    service.add_to(port.server)
    add_health(port.server, identity, lambda: not stop.is_set())
    set_when_told_to_stop(stop)
    with ExitStack() as metrics:
        if settings.metrics is not None:
            # Loaded only where the settings name a place for them.
            from precad.common.wire.metrics_page import metrics_page  # noqa: PLC0415

            present = partial(
                collect,
                task.name,
                dealer,
                service,
                identity,
            )
            metrics.enter_context(metrics_page(present, settings.metrics))
        # Listening comes last: an error once calls are taken would leave gRPC's threads
        # waiting for its loop.
        number = await port.listen(settings.listen)
        log.info("dealer deals for task %s on port %d", task.name, number)
        await tell_until(stop, identity)
        await port.stop(grace_s=1)
    return 0


def collect(
    task: str,
    dealer: DealerRole,
    service: DealingService,
    identity: Identity,
) -> "Iterator[Metric]":
    """Yield what the dealer shows a Prometheus (docs/metrics.md); called in any thread.

    ``task`` is the task's name. Numbers are about the two servers' requests, and about
    no client.
    """
    from precad.common.wire import about, metric  # noqa: PLC0415

    done = service.left.issuperset(SERVERS)
    yield metric(
        "phase",
        {"done": done},
        says="1 for done: both servers said that the training is over.",
        label="phase",
    )
    counts = service.counts.copy()
    names = [role.value for role in SERVERS]
    yield from about(task, identity, identity.met)
    for kind, says in (
        ("joins", "How often a server came for its key."),
        ("halves", "Halves of masks that a server named."),
        ("violations", "Answers that the servers' halves don't fit together."),
    ):
        by_server = {name: counts[kind, name] for name in names}
        yield metric(f"{kind}_total", by_server, says=says, label="server")
    yield metric(
        "newest_attempt",
        dealer.newest_attempt,
        says="The newest that is dealt for; -1: none.",
    )
    conversations = list(service.conversations.items())
    yield metric(
        "conversations",
        len(conversations),
        says="Servers' open ones about an attempt.",
    )
    yield metric(
        "halves_waiting",
        dealer.waiting,
        says="Those that only one has named.",
    )
    yield metric(
        "dealing",
        len(service.dealing),
        says="Submissions that wait or are dealt.",
    )
    unread = dict.fromkeys(names, 0)
    for answers, role in conversations:
        unread[role.value] += len(answers)
    yield metric(
        "answers_waiting",
        unread,
        says="Answers that a server hasn't taken yet.",
        label="server",
    )
    link_bytes = {
        link: size for (kind, link), size in counts.items() if kind == "bytes"
    }
    yield metric(
        "link_bytes_total",
        link_bytes,
        says="Payloads since this start.",
        label="link",
    )
    yield metric(
        "cpu_seconds_total",
        time.process_time(),
        says="Of this process, since its start.",
    )
