"""Servers with workers, as processes, and light clients that always submit."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from examples.demo.local_processes import LocalDeployment
from tests.rig import waiting, warm
from tests.rig.light_client import LightClient, joined
from tests.rig.waiting import until as wait_until

from precad.cli.forked import Process
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task

CLIENTS = 4
SERVERS = ("server-a", "server-b")
CHANGES = {
    "training.rounds": 1000,
    "enrolment.clients": CLIENTS,
    "deadlines": {"enrol": 300.0, "collect": 300.0, "peer": 120.0, "outage": 300.0},
}


class Crowd:
    """Light clients that always submit; the last waits where it is told to."""

    def __init__(self, clients: Sequence[LightClient]) -> None:
        self._clients = clients
        self.hold_at = -1  # Version at which the last client waits for ``held_back``
        self.held_back = threading.Event()
        self.submitted: list[
            tuple[int, int]
        ] = []  # Version and attempt of what both servers took

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with waiting.beside(
            *(partial(self._follow, client) for client in self._clients)
        ):
            try:
                yield
            finally:
                self.held_back.set()

    def _follow(self, client: LightClient, over: threading.Event) -> None:
        last = -1
        while not over.is_set():
            with contextlib.suppress(PeerUnavailable):
                event = client.opened(after=last, timeout_s=1.0)
                if client is self._clients[-1] and event.version == self.hold_at:
                    self.held_back.wait()
                x = np.full(client.servers.task.dimension, 5, dtype=np.int64)
                receipts = client.submit(event, x)
                last = event.attempt
                if all(receipt.rejection is None for receipt in receipts):
                    self.submitted.append((event.version, event.attempt))


@contextmanager
def deployed(
    folder: Path,
    task: Task,
    settings: str,
    popen: Callable[..., Process] = warm.forked,
) -> Iterator[tuple[LocalDeployment, Crowd]]:
    nothing = np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)
    data = {ClientId(f"ward-{number:02d}"): nothing for number in range(CLIENTS)}
    with LocalDeployment(folder, task, data, linger_s=0, popen=popen) as deployment:
        for name in SERVERS:
            with (folder / f"{name}.toml").open("a", encoding="utf-8") as file:
                file.write(settings)
        deployment.start_servers()
        with joined(deployment) as clients:
            yield deployment, Crowd(clients)


def until(deployment: LocalDeployment, what: Callable[[], object]) -> None:
    def ready() -> object:
        deployment.check_alive()
        return what()

    tails = lambda: "\n".join(deployment.log_tail(name, 40) for name in SERVERS)  # noqa: E731
    wait_until(ready, tails, poll_s=0.1)


def version(deployment: LocalDeployment) -> int:
    return deployment.operator(Role.SERVER_A).status(timeout_s=60).version


def up(deployment: LocalDeployment) -> list[int]:
    return [
        deployment.operator(Role(name)).status(timeout_s=60).workers for name in SERVERS
    ]
