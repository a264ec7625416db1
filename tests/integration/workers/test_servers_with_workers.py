"""Both servers as processes, with workers: a training goes on whatever becomes of these."""

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.rig.light_client import LightClient

from precad.client.connection import Servers
from precad.common.aggregator.round.operators import OPENED_CAP
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.task import Task
from precad.experiments.local import LocalDeployment

CLIENTS = 4
WORKERS = 2
DEADLINE_S = 240.0
"""Processes that load CrypTen start again, on a busy machine."""
SERVERS = ("server-a", "server-b")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two nodes of a Ray cluster, in a process of their own."""

    process: "subprocess.Popen[str]"
    address: str

    def kill_a_node(self) -> None:
        """With all that runs there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "killed\n"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Each node has room for all workers of both servers."""
    command = [sys.executable, "-m", "tests.rig.ray_cluster", str(2 * WORKERS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield Cluster(process, process.stdout.readline().strip())


class Crowd:
    """Light clients that submit in every attempt; the last one waits where it is told to."""

    def __init__(self, clients: Sequence[LightClient]) -> None:
        self._clients = clients
        self._over = False
        self.held_back = threading.Event()
        """Set: the last client submits too."""
        self.submitted: list[tuple[int, int]] = []
        """Version and attempt of what both servers took."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """In threads of their own, until the block ends."""
        with ThreadPoolExecutor(len(self._clients)) as threads:
            futures = [threads.submit(self._follow, client) for client in self._clients]
            try:
                yield
            finally:
                self._over = True
                self.held_back.set()
                for future in futures:
                    future.result()

    def _follow(self, client: LightClient) -> None:
        last = -1
        while not self._over:
            with contextlib.suppress(PeerUnavailable):
                event = client.opened(after=last, fresh_s=DEADLINE_S, timeout_s=1.0)
                if client is self._clients[-1] and event.version == 1:
                    self.held_back.wait()
                x = np.full(client.servers.task.dimension, 5, dtype=np.int64)
                receipts = client.submit(event, x)
                last = event.attempt
                if all(receipt.rejection is None for receipt in receipts):
                    self.submitted.append((event.version, event.attempt))


@contextmanager
def deployed(folder: Path, task: Task, settings: str) -> Iterator[tuple[LocalDeployment, Crowd]]:
    """Running servers with these further settings, and enrolled clients."""
    nothing = np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)
    data = {ClientId(f"ward-{number:02d}"): nothing for number in range(CLIENTS)}
    with LocalDeployment(folder, task, data, linger_s=0) as deployment:
        for name in SERVERS:
            with (folder / f"{name}.toml").open("a", encoding="utf-8") as file:
                file.write(settings)
        deployment.start_servers()
        a, b = (deployment.addresses[name] for name in SERVERS)
        clients = [
            LightClient(Servers(task, c, a, b, Identity.load(folder / "keys" / c.name)))
            for c in deployment.clients
        ]
        try:
            for client in clients:
                client.join()
            yield deployment, Crowd(clients)
        finally:
            for client in clients:
                client.close()


CHANGES = {
    "training.rounds": 1000,
    "enrolment.clients": CLIENTS,
    "deadlines.enrol": 120.0,
    "deadlines.collect": 60.0,
    "deadlines.peer": 60.0,
    "deadlines.outage": 120.0,
}


@pytest.fixture
def task(make_task: Callable[..., Task]) -> Task:
    """Rounds enough for a test."""
    return make_task(64, CHANGES)


def until(deployment: LocalDeployment, what: Callable[[], bool]) -> None:
    """Wait until it holds, while the servers live."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        deployment.check_alive()
        assert time.monotonic() < deadline, [deployment.log_tail(name, 40) for name in SERVERS]
        time.sleep(0.1)


def version(deployment: LocalDeployment) -> int:
    return deployment.operator(Role.SERVER_A).status(timeout_s=10).version


def up(deployment: LocalDeployment) -> list[int]:
    """How many workers each server says to have."""
    statuses = (deployment.operator(Role(name)).status(timeout_s=10) for name in SERVERS)
    return [status.workers for status in statuses]


def test_a_node_of_the_cluster_dies_in_mid_round_and_the_training_goes_on(
    tmp_path: Path, task: Task, cluster: Cluster
) -> None:
    settings = f'workers = {WORKERS}\nworkers_on = "ray"\nray = "{cluster.address}"\n'
    settings += 'worker_listen = "0.0.0.0:0"\n'
    with deployed(tmp_path, task, settings) as (deployment, crowd), crowd.at_work():
        # On a busy machine Ray takes minutes for what it starts first.
        until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
        until(deployment, lambda: version(deployment) == 1)
        until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
        # Everybody but one has uploaded, and waits for the last one.
        until(deployment, lambda: sum(v == 1 for v, _ in crowd.submitted) >= CLIENTS - 1)
        cluster.kill_a_node()
        until(
            deployment,
            lambda: any("ended; it is started again" in deployment.log(name) for name in SERVERS),
        )
        crowd.held_back.set()
        until(deployment, lambda: version(deployment) >= 3)
        until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
        for name in SERVERS:
            assert "a bug" not in deployment.log(name)


def workers_of(deployment: LocalDeployment, name: str) -> list[int]:
    """The process ids of a server's own workers."""
    server = deployment.processes[name].pid
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            parent = re.search(r"^PPid:\s(\d+)$", status.read_text(), re.MULTILINE)
            if parent is not None and int(parent[1]) == server:
                found.append(int(status.parent.name))
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_a_worker_dies_in_mid_round_and_the_training_goes_on(
    tmp_path: Path, task: Task, name: str
) -> None:
    settings = f"workers = {WORKERS}\n"
    with deployed(tmp_path, task, settings) as (deployment, crowd), crowd.at_work():
        until(deployment, lambda: version(deployment) == 1)
        # One that dies while it starts is no worker yet, and the server says so in other words.
        until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
        until(deployment, lambda: sum(v == 1 for v, _ in crowd.submitted) >= CLIENTS - 1)
        os.kill(workers_of(deployment, name)[0], signal.SIGKILL)
        until(deployment, lambda: "ended; it is started again" in deployment.log(name))
        crowd.held_back.set()
        until(deployment, lambda: version(deployment) >= 3)
        until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
        workers = {pid for each in SERVERS for pid in workers_of(deployment, each)}
        deployment.stop()
        assert len(workers) == 2 * WORKERS
        until_gone(workers)


def test_attempts_that_no_worker_was_there_for_opened_nothing(
    tmp_path: Path, make_task: Callable[..., Task]
) -> None:
    """More of them than may be opened: the training goes on without the operators' word."""
    task = make_task(64, CHANGES | {"deadlines.peer": 3.0})
    with deployed(tmp_path, task, "workers = 1\n") as (deployment, crowd):
        until(deployment, lambda: up(deployment) == [1, 1])
        stopped = workers_of(deployment, "server-a")
        for worker in stopped:
            os.kill(worker, signal.SIGSTOP)
        crowd.held_back.set()
        with crowd.at_work():
            words = "no pair of workers was there"
            until(deployment, lambda: deployment.log("server-a").count(words) > OPENED_CAP)
            for worker in stopped:
                os.kill(worker, signal.SIGCONT)
            until(deployment, lambda: version(deployment) >= 1)
    for name in SERVERS:
        assert "waits for the operators" not in deployment.log(name)


def until_gone(processes: set[int]) -> None:
    """Workers end with their server."""
    deadline = time.monotonic() + DEADLINE_S
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nothing_of_a_round_is_given_to_ray() -> None:
    """An actor is told names of files and addresses; no call of Ray's takes anything else."""
    path = Path(__file__).parents[3] / "common/aggregator/work/on_ray.py"
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    given = {
        ast.unparse(argument)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("remote", "put")
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
    }
    assert given == {"_Node", "worker.model_dump_json()"}
