"""A small piece of the chaos run (`chaos.py`); its long results are in benchmarks/results."""

import json
from pathlib import Path

import pytest
from tests.faults.chaos import piece

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_whatever_goes_wrong_at_once_the_training_reaches_its_end(
    tmp_path: Path, seed: int
) -> None:
    found = piece(seed, 6, tmp_path, faults=15)
    assert sum(found["honest_counted"]) > 0


def test_the_long_run_did_three_hundred_versions() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert sum(each["versions"] for each in found["pieces"]) >= 300
    restored = [each["restored"] for each in found["pieces"]]
    assert any(len(roles) == 2 for roles in restored)
    kinds = {kind for each in found["pieces"] for kind in each["faults"]}
    assert {"cut", "disk fails", "dealer restarts", "crash after"} <= kinds
