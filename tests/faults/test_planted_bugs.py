"""A planted bug is found again by the schedule that found it, and without the bug nothing is."""

import functools
import json

import pytest
from tests.faults.conftest import quick_folder
from tests.faults.planted_bugs import BUGS, RESULT, broken, plan_of

FOUND = {each["bug"]: each for each in json.loads(RESULT.read_text(encoding="utf-8"))["bugs"]}


@pytest.mark.parametrize("name", BUGS)
def test_the_schedule_that_found_it_breaks_that_invariant_and_without_the_bug_none(
    name: str,
) -> None:
    """Where a change of the package has moved the schedule's steps, one of the next seeds does."""
    found, (bug, _) = FOUND[name], BUGS[name]
    for seed in range(found["seed"], found["seed"] + 12):
        with quick_folder() as folder:
            seen = broken(folder, seed, plan_of(found), bug)
        if seen is not None and seen[0] == found["invariant"]:
            break
    else:
        pytest.fail("not found any more: search anew by python -m tests.faults.planted_bugs")
    assert without_a_bug(json.dumps([seed, found["plan"]])) is None


@functools.cache
def without_a_bug(schedule: str) -> tuple[str, str] | None:
    """Several bugs were found by one schedule."""
    seed, plan = json.loads(schedule)
    with quick_folder() as folder:
        return broken(folder, seed, plan_of({"plan": plan}))
