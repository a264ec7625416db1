"""Workers on the nodes of a Ray cluster: a node dies, all of it does, strangers try to get in."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.rig.crew import CHANGES, CLIENTS, SERVERS, deployed, until, up, version
from tests.rig.waiting import until as wait_until
from tests.soak.conftest import Cluster, cluster

from precad.common.task import Task

WORKERS = 2


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Who has its token may submit; each node has room for all workers of both servers."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
    with cluster("ray", 2 * WORKERS) as made:
        yield made


def settings(address: str, workers: int) -> str:
    lines = f'workers = {workers}\nworkers_on = "ray"\nray = "{address}"\n'
    return lines + 'worker_listen = "0.0.0.0:0"\n'


def test_a_node_of_the_cluster_dies_in_mid_round_and_the_training_goes_on(
    tmp_path: Path, make_task: Callable[..., Task], ray: Cluster
) -> None:
    task, lines = make_task(64, CHANGES), settings(ray[0], WORKERS)
    with deployed(tmp_path, task, lines) as (deployment, crowd), crowd.at_work():
        crowd.hold_at = 1
        # On a busy machine Ray takes minutes for what it starts first.
        until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
        until(deployment, lambda: version(deployment) == 1)
        until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
        # Everybody but one has uploaded, and waits for the last one.
        until(
            deployment, lambda: sum(v == 1 for v, _ in crowd.submitted) >= CLIENTS - 1
        )
        ray[1]("kill")
        again = "ended; it is started again"
        until(
            deployment, lambda: any(again in deployment.log(name) for name in SERVERS)
        )
        crowd.held_back.set()
        until(deployment, lambda: version(deployment) >= 3)
        until(deployment, lambda: up(deployment) == [WORKERS, WORKERS])
        for name in SERVERS:
            assert "a bug" not in deployment.log(name)


SUBMIT = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)
print("in", ray.get(ray.remote(lambda: 1).remote()))
"""


@pytest.mark.parametrize("token", [None, "0" * 32])
def test_without_the_clusters_token_nobody_runs_anything(
    ray: Cluster, token: str | None
) -> None:
    """A program there could read the servers' keys."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    if token is not None:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    command = [sys.executable, "-c", SUBMIT, ray[0]]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "in 1" not in done.stdout


def test_servers_whose_cluster_is_gone_end_as_by_a_failure(
    tmp_path: Path, make_task: Callable[..., Task], ray: Cluster
) -> None:
    """Ray ends whoever has lost its head for a minute; a unit starts a server again."""
    task, lines = make_task(64, CHANGES | {"validation": "proof"}), settings(ray[0], 1)
    with deployed(tmp_path, task, lines) as (deployment, crowd), crowd.at_work():
        until(deployment, lambda: version(deployment) >= 1)
        ray[1]("end")
        processes = [deployment.processes[name] for name in SERVERS]
        wait_until(
            lambda: all(each.poll() is not None for each in processes), "both to end"
        )
        # As any failure that a unit starts a server again after.
        assert [each.returncode for each in processes] == [1, 1]
