"""An event loop in a thread of the test's process; gRPC servers that end with it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Self, TypeVar

import grpc.aio

from precad.aggregator.workers import worker_placement, worker_process
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import add_port
from precad.common.task import Task
from precad.common.wire.serving import SERVER_OPTIONS
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService

T = TypeVar("T")
WAIT_S = 240.0


class LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Processes have an executor each: here one part's work must not keep another's
        # waiting.
        self.loop.set_default_executor(ThreadPoolExecutor(64))
        self._servers: list[grpc.aio.Server] = []
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        for server in self._servers:
            self.run(server.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, coroutine: Coroutine[object, None, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(WAIT_S)

    def serve(
        self, make: Callable[[], grpc.aio.Server], identity: Identity | None
    ) -> str:
        """The server's address; it is without TLS for nobody's identity."""

        async def start() -> int:
            server = make()
            if identity is None:
                port = server.add_insecure_port("127.0.0.1:0")
            else:
                port = add_port(server, "127.0.0.1:0", identity)
            await server.start()
            self._servers.append(server)
            return port

        return f"127.0.0.1:{self.run(start())}"


def dealer(loop: LoopThread, task: Task, identity: Identity) -> str:
    def make() -> grpc.aio.Server:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        service = DealingService(task, DealerRole.of(task), identity)
        service.add_to(server)
        return server

    return loop.serve(make, identity)


class Here:
    """A place for workers (``WorkerHost``): this process."""

    def __init__(self, loop: LoopThread, *, same_disk: bool = True) -> None:
        self._loop = loop
        self.same_disk = same_disk

    def start(self, worker: worker_placement.WorkerStart) -> "WorkerHere":
        return WorkerHere(self._loop, worker)


class WorkerHere:
    """One that dies as a process does when it is stopped: calls to it break off."""

    def __init__(self, loop: LoopThread, worker: worker_placement.WorkerStart) -> None:
        self._loop = loop
        self._port, number = loop.run(worker_process.listening(worker))
        self.address = f":{number}"
        self._over = threading.Event()

    def wait(self) -> None:
        self._over.wait()

    def stop(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run(self._port.stop(0))
        self._over.set()
