"""Dealers and workers with their real services over TLS, on an event loop of the test's process."""

import asyncio
import threading
from contextlib import suppress

import grpc.aio
from tests.rig.loop import LoopThread

from precad.aggregator.workers.worker_placement import WorkerStart
from precad.aggregator.workers.worker_process import listening
from precad.common.identity.credentials import Identity
from precad.common.task import Task
from precad.common.wire.serving import SERVER_OPTIONS
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService


def dealer(loop: LoopThread, task: Task, identity: Identity) -> str:
    """The address of a dealer that deals until the loop ends."""

    def make() -> grpc.aio.Server:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        DealingService(task, DealerRole.of(task), identity).add_to(server)
        return server

    return loop.serve(make, identity)


class Here:
    """A place for workers (``WorkerHost``): this process.

    Args:
        loop: what they run on.
        same_disk: as ``WorkerHost`` has it.
    """

    def __init__(self, loop: LoopThread, *, same_disk: bool = True) -> None:
        self._loop = loop
        self.same_disk = same_disk

    def start(self, worker: WorkerStart) -> "WorkerHere":
        """As ``WorkerHost.start``."""
        return WorkerHere(self._loop, worker)


class WorkerHere:
    """A worker that dies as a process does when it is stopped: calls to it break off."""

    def __init__(self, loop: LoopThread, worker: WorkerStart) -> None:
        self._loop = loop
        self._port, number = loop.run(listening(worker))
        self.address = f":{number}"
        self._over = threading.Event()

    def wait(self) -> None:
        """As ``RunningWorker.wait``."""
        self._over.wait()

    def stop(self) -> None:
        """As ``RunningWorker.stop``."""
        with suppress(asyncio.CancelledError):
            self._loop.run(self._port.stop(0))
        self._over.set()
