"""Twenty questions of every kind through running servers: a simulation's bits each time."""

from pathlib import Path

import pytest
from tests.integration.test_questions import CHECKS, SIZES, asked_of_processes
from tests.rig.questions import ward


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_other_tables_are_answered_alike(tmp_path: Path, seed: int, check: str) -> None:
    wards = {name: ward(count, seed + count) for name, count in SIZES.items()}
    asked_of_processes(tmp_path, check, wards)
