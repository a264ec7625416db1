"""Workers on the nodes of a Ray cluster, one of which dies in mid-round: the training goes on."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.rig.crew import CHANGES, CLIENTS, SERVERS, deployed, until, up, version

from precad.common.task import Task

WORKERS = 2


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


def test_a_node_of_the_cluster_dies_in_mid_round_and_the_training_goes_on(
    tmp_path: Path, make_task: Callable[..., Task], cluster: Cluster
) -> None:
    settings = f'workers = {WORKERS}\nworkers_on = "ray"\nray = "{cluster.address}"\n'
    settings += 'worker_listen = "0.0.0.0:0"\n'
    task = make_task(64, CHANGES)
    with deployed(tmp_path, task, settings) as (deployment, crowd), crowd.at_work():
        crowd.hold_at = 1
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
