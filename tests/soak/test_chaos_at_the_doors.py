"""A small piece of the chaos run, simulated and at real processes' doors."""

from pathlib import Path

import pytest
from tests.faults.processes import Forks
from tests.faults.test_chaos import piece
from tests.soak.doors import besieged


@pytest.mark.parametrize(("seed", "validation"), [(5, "crypten"), (6, "proof")])
def test_whatever_goes_wrong_the_training_ends(tmp_path: Path, seed: int, validation: str) -> None:
    piece(seed, 20, tmp_path, faults=40, validation=validation)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_flood_at_the_doors_costs_nobody_a_round(tmp_path: Path, forks: Forks, seed: int) -> None:
    found = besieged(seed, tmp_path, forks, versions=4)
    assert found["codes"]["INVALID_ARGUMENT"] > 0
