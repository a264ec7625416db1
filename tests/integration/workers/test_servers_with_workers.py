"""Both servers as processes, with workers: a training goes on whatever becomes of these."""

import ast
import itertools
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.rig.crew import CHANGES, CLIENTS, SERVERS, Crowd, deployed, until, up, version
from tests.rig.leftovers import descendants
from tests.rig.stops import runs
from tests.rig.waiting import until as wait_until

from precad.aggregator.workers import worker_placement
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.cli.local_deployment import LocalDeployment
from precad.common.errors import Misconfiguration, PeerUnavailable
from precad.common.identifiers import Role
from precad.common.task import Task
from precad.common.wire.connections import SILENT

WORKERS = 2
FLOOD = SILENT + 36
"""Connections to each port."""
WAIT_S = 60.0


Training = tuple[LocalDeployment, Crowd]


@pytest.fixture(scope="module")
def training(
    tmp_path_factory: pytest.TempPathFactory, make_task: Callable[..., Task]
) -> Iterator[Training]:
    """With proofs: such workers load no CrypTen, and are there in a second."""
    task = make_task(64, CHANGES | {"validation": "proof"})
    folder = tmp_path_factory.mktemp("training")
    settings = f'workers = {WORKERS}\nmetrics = "127.0.0.1:0"\n'
    with deployed(folder, task, settings) as (deployment, crowd), crowd.at_work():
        yield deployment, crowd


def workers_of(deployment: LocalDeployment, name: str) -> list[int]:
    return sorted(descendants(deployment.processes[name].pid))


@pytest.mark.parametrize("name", SERVERS)
def test_a_worker_dies_in_mid_round_and_the_training_goes_on(training: Training, name: str) -> None:
    deployment, crowd = training
    # One that dies while it starts is no worker yet, and the server says so in other words.
    until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
    crowd.held_back.clear()
    at = crowd.hold_at = version(deployment) + 2
    until(deployment, lambda: sum(v == at for v, _ in crowd.submitted) >= CLIENTS - 1)
    os.kill(workers_of(deployment, name)[0], signal.SIGKILL)
    until(deployment, lambda: "ended; it is started again" in deployment.log(name))
    crowd.held_back.set()
    until(deployment, lambda: version(deployment) >= at + 2)
    until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
    assert "a bug" not in deployment.log(name)


def ports_of(process: int) -> list[int]:
    """Where it listens (state 0A)."""
    own = set()
    for each in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            own.add(str(each.readlink()))
    tables = (Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    rows = [line.split() for line in itertools.chain(*tables)]
    found = (row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own)
    return sorted({int(address.rpartition(":")[2], 16) for address in found})


def test_a_flood_of_every_port_of_every_part_keeps_no_server_out_and_costs_no_round(
    training: Training,
) -> None:
    """Whoever reaches the ports, without a certificate; server B comes back with new workers."""
    deployment, _ = training

    def reached(wanted: int) -> bool:
        with suppress(PeerUnavailable):
            return version(deployment) >= wanted
        return False

    until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
    parts = [deployment.processes[name].pid for name in SERVERS]
    parts += [pid for name in SERVERS for pid in workers_of(deployment, name)]
    ports = {pid: ports_of(pid) for pid in parts}
    # A server's own and its metrics', and one a worker.
    assert [len(each) for each in ports.values()] == [2, 2, *[1] * 2 * WORKERS]
    with ExitStack() as stack:
        every = [("127.0.0.1", port) for port in itertools.chain(*ports.values())]
        held = [[socket.create_connection(each, WAIT_S) for _ in range(FLOOD)] for each in every]
        for connections in held:
            for each in connections:
                stack.enter_context(each)
            for each in connections[:-SILENT]:
                # Ended by the guard, long before a handshake's time is over.
                assert each.recv(1) == b""
        before = version(deployment)
        until(deployment, lambda: version(deployment) >= before + 2)
        workers = workers_of(deployment, "server-b")
        deployment.processes["server-b"].kill()
        deployment.processes["server-b"].wait()
        wait_until(lambda: not any(map(runs, workers)), "the end of its workers")
        deployment.start_server("server-b")
        until(deployment, lambda: reached(before + 4))
    until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])


def test_a_ray_cluster_that_lets_anybody_in_or_is_not_there_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the server's key on each node, and by itself asks nobody who comes."""
    ray = Mock(is_initialized=bool, exceptions=SimpleNamespace(RayError=ValueError))
    ray.init.side_effect = ConnectionError("failed to connect")
    monkeypatch.setattr(worker_placement, "_ray", lambda: ray)
    for mode in ("", "disabled"):
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
        with pytest.raises(Misconfiguration, match=r"RAY_AUTH_MODE = .* set it to token"):
            worker_placement.RayCluster("auto")
    assert ray.mock_calls == []
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(PeerUnavailable, match=r"10\.0\.0\.4:6379 isn't there, or has"):
        worker_placement.RayCluster("10.0.0.4:6379")


def test_no_password_of_a_proxy_is_given_to_ray(tmp_path: Path) -> None:
    """Whoever reads the cluster's state reads what actors were started with."""
    settings: Any = SimpleNamespace(
        workers=1, workers_on="ray", worker_listen="127.0.0.1:0", proxy="http://u:hunter2@proxy:1",
        task=tmp_path, identity=tmp_path, dealer=None, ray="auto",
    )  # fmt: skip
    session: Any = SimpleNamespace(role=Role.SERVER_A)
    with pytest.raises(Misconfiguration, match="Ray would keep its password") as refused:
        ValidationWorkers(session, settings)
    assert "hunter2" not in str(refused.value)


def test_nothing_of_a_round_is_given_to_ray() -> None:
    """An actor is told names of files and addresses; no call of Ray's takes anything else."""
    path = Path(__file__).parents[3] / "aggregator/workers/worker_placement.py"
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    given = {
        ast.unparse(argument)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("remote", "put")
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
    }
    assert given == {"_Node", "worker.model_dump_json()"}
