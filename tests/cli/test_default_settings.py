"""The rules for C and η are the best of a comparison, benchmarks/default_settings.py."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from precad.cli.task_planning import default_clip, default_rate, default_step

RESULT = Path(__file__).parents[2] / "benchmarks/results/default_settings.json"
COMPARED = json.loads(RESULT.read_text("utf-8"))


def compared() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each case with what was found at each ε."""
    for epsilon in ("0.5", "1.0", "3.0", "8.0"):
        here = [case for case in COMPARED["cases"].values() if epsilon in case]
        assert len(here) > 10
        yield from ((case, case[epsilon]) for case in here)


def test_the_defaults_are_those_of_the_comparison() -> None:
    for case, at in compared():
        regression = case["data"] in {"area", "diabetes"}
        step = default_step(
            expected_records=at["expected_records"],
            noise_multiplier=at["sigma"],
            rounds=case["rounds"],
            record_clip=1.0,
            kind="regression"
            if regression
            else "classes, hidden layers"
            if case["hidden"]
            else "classes",
        )
        largest = max(case["sizes"])
        clip = default_clip(1.0, largest, default_rate(largest))
        assert (step, clip) == (at["step"], at["clips"]["default"])
