"""The second tier: long schedules, matrices of real processes, documented commands
typed in full.

`make test` doesn't collect this folder, `make soak` runs all of it in parts, CI one
part a commit.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, Unpack

import pytest
from tests.faults.conftest import play
from tests.faults.processes import ENDLESS, FaultyDeployment, kill_all
from tests.rig.documents import Document
from tests.soak.run import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
)

__all__ = [
    "play",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
]


class How(TypedDict, total=False):
    """What a deployment differs by."""

    strangers: int
    poisoned: bool
    validation: str
    epsilon_limit: float | None
    further: Document | None


Deploy = Callable[..., FaultyDeployment]
Cluster = tuple[str, Callable[[str], None]]


@contextmanager
def cluster(kind: str, processors: int, **environment: str) -> Iterator[Cluster]:
    """The address of one with two nodes, and what has it "kill" one with all that runs
    there."""
    command = [sys.executable, "-m", f"tests.rig.{kind}_cluster", str(processors)]
    pipes: Document = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
    }
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as process:
        into, out = process.stdin, process.stdout
        assert into is not None
        assert out is not None

        def told(what: str) -> None:
            into.write(f"{what}\n")
            into.flush()
            assert out.readline() == "done\n"

        address = out.readline().strip()
        assert address, "no cluster was started"
        yield address, told


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploy]:
    """``deploy(rounds)``: nothing runs yet; killed at the end."""
    made: list[FaultyDeployment] = []

    def make(rounds: int = ENDLESS, **how: Unpack[How]) -> FaultyDeployment:
        made.append(
            FaultyDeployment(tmp_path / f"deployment-{len(made)}", rounds, **how)
        )
        return made[-1]

    yield make
    for deployment in made:
        kill_all(deployment)
