"""Dealers and workers with their real services over TLS, on an event loop of the test's process."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self, TypeVar

import grpc.aio

from precad.aggregator.workers.worker_placement import WorkerStart
from precad.aggregator.workers.worker_process import listening
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import add_port
from precad.common.task import Task
from precad.common.wire.serving import SERVER_OPTIONS
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService
from precad.protos.precad_pb2_grpc import add_DealingServicer_to_server

T = TypeVar("T")


class LoopThread:
    """An event loop beside the test, with servers that end with it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # Processes have an executor each: here one part's attempts must not keep another's waiting.
        self._loop.set_default_executor(ThreadPoolExecutor(64))
        self._servers: list[grpc.aio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for server in self._servers:
            self.run(server.stop(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it comes to."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    def dealer(self, task: Task, identity: Identity) -> str:
        """The address of a dealer that deals until the loop ends."""

        async def start() -> int:
            server = grpc.aio.server(options=SERVER_OPTIONS)
            add_DealingServicer_to_server(
                DealingService(task, DealerRole.of(task), identity), server
            )
            port = add_port(server, "127.0.0.1:0", identity)
            await server.start()
            self._servers.append(server)
            return port

        return f"127.0.0.1:{self.run(start())}"


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
        self._server, port = loop.run(listening(worker))
        self.address = f":{port}"
        self._over = threading.Event()

    def wait(self) -> None:
        """As ``RunningWorker.wait``."""
        self._over.wait()

    def stop(self) -> None:
        """As ``RunningWorker.stop``."""
        with suppress(asyncio.CancelledError):
            self._loop.run(self._server.stop(0))
        self._over.set()
