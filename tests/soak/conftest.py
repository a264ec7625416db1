"""The second tier: long schedules, matrices of real processes, documented commands typed in full.

`make test` doesn't collect this folder, `make soak` runs all of it in parts, CI one part a commit.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import forks, play
from tests.faults.process_invariants import kill_all
from tests.faults.processes import ENDLESS, FaultyDeployment, Forks
from tests.soak.selection import pytest_addoption, pytest_collection_modifyitems, pytest_configure

__all__ = ["forks", "play", "pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]
Deploy = Callable[..., FaultyDeployment]


@pytest.fixture
def deploy(tmp_path: Path, forks: Forks) -> Iterator[Deploy]:
    """``deploy(rounds)``: nothing runs yet; killed at the end."""
    made: list[FaultyDeployment] = []

    def make(rounds: int = ENDLESS, **how: Any) -> FaultyDeployment:
        made.append(FaultyDeployment(tmp_path / f"deployment-{len(made)}", forks, rounds, **how))
        return made[-1]

    yield make
    for deployment in made:
        kill_all(deployment)
