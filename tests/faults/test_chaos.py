"""Small pieces of the chaos run (`chaos.py`); the long one is `tests/soak/chaos.py`."""

from pathlib import Path

import pytest
from tests.faults.chaos import piece


@pytest.mark.parametrize(("seed", "validation"), [(3, "crypten"), (4, "proof")])
def test_whatever_goes_wrong_at_once_the_training_reaches_its_end(
    tmp_path: Path, seed: int, validation: str
) -> None:
    found = piece(seed, 4, tmp_path, faults=12, validation=validation)
    assert sum(found["honest_counted"]) > 0
    assert found["misdeeds"]
