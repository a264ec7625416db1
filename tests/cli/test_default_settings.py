"""The rules for C and η are the best of a comparison, benchmarks/default_settings.py."""

import json
from pathlib import Path

import pytest

from precad.cli.task_planning import default_clip, default_rate, default_step

RESULT = Path(__file__).parents[2] / "benchmarks/results/default_settings.json"


@pytest.mark.parametrize("epsilon", ["0.5", "1.0", "3.0", "8.0"])
def test_the_defaults_are_those_of_the_comparison(epsilon: str) -> None:
    cases = json.loads(RESULT.read_text("utf-8"))["cases"].values()
    here = [case for case in cases if epsilon in case]
    assert len(here) > 10
    for case in here:
        kind = "classes, hidden layers" if case["hidden"] else "classes"
        at, largest = case[epsilon], max(case["sizes"])
        step = default_step(
            expected_records=at["expected_records"],
            noise_multiplier=at["sigma"],
            rounds=case["rounds"],
            record_clip=1.0,
            kind="regression" if case["data"] in {"area", "diabetes"} else kind,
        )
        clip = default_clip(1.0, largest, default_rate(largest))
        assert (step, clip) == (at["step"], at["clips"]["default"])
