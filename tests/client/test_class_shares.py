"""Classes that are rarer, or more frequent, than the task's weights take them to be."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig import tasks
from tests.rig.commands import precad, said
from tests.rig.documents import Document
from tests.rig.tasks import RECIPE, task_with

from precad.client.class_shares import unlike_weights
from precad.common.roster import unlike_plan
from precad.common.task import Task


def learns(weights: list[float] | None = None, classes: int = 2) -> Task:
    changes: Document = tasks.logistic(3, classes)
    return task_with(changes | {"training.class_weights": weights})


def labels(*counts: int) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(counts)), counts)


WEIGHTS = [0.0753, 1.0]  # no=.93, yes=.07


@pytest.mark.parametrize(
    ("task", "counts", "asked"),
    [
        (learns(WEIGHTS), (372, 28), ()),
        # Off by a third, or by chance in few records.
        (learns(WEIGHTS), (360, 40), ()),
        (learns(WEIGHTS), (20, 0), ()),
        (learns(WEIGHTS[::-1]), (372, 28), ("class 1 is 0.07", "and 0.93 by", "swap")),
        (learns(WEIGHTS), (200, 200), ("class 1 is 0.5", "0.07 by")),
        (
            learns(),
            (372, 28),
            ("class 1 is 0.07", "--balance", "(docs/rare-classes.md)"),
        ),
        (learns(), (344, 56), ("class 1 is 0.14",)),
        (learns(), (336, 64), ()),
        (learns(classes=10), (40,) * 10, ()),
        # Labels that are none are named elsewhere.
        (learns(WEIGHTS), (100, 100, 100), ()),
    ],
)
def test_shares_that_dont_fit_the_weights_are_asked_about(
    task: Task, counts: tuple[int, ...], asked: tuple[str, ...]
) -> None:
    told = unlike_weights(task, labels(*counts))
    assert (told is not None) is bool(asked)
    assert all(words in str(told) for words in asked)


def test_what_has_no_classes_is_not_asked_about() -> None:
    task = learns()
    assert unlike_weights(task, np.zeros((40, 2), np.int64)) is None
    assert unlike_weights(task, labels(39, 1) - 5) is not None
    # Labels that are none are named where records are tried.
    for labelled in (labels(39, 1) + 10**12, labels(39, 1) + 0.5, labels(0)):
        assert unlike_weights(task, labelled) is None
    number = task_with({"training.loss": "squared-error"})
    assert unlike_weights(number, labels(39, 1)) is None


def test_commands_ask_by_the_levels_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("columns.toml").write_text(RECIPE)
    rows = "70,A,yes\n" * 3 + "50,B,no\n" * 37
    for name in ("one", "two"):
        Path(f"{name}.csv").write_text(f"age,ward,died\n{rows}")
    made = ("--recipe", "columns.toml", "--records", "2x40", "--epsilon", "3")
    new = (*made, "--architecture", "logistic")
    swapped = ("--balance", "no=.07,yes=.93")
    for name, balance, rare in (
        ("plain", (), ""),
        ("swapped", swapped, "So no is taken for the rarest class"),
        ("right", ("--balance", "no=.93,yes=.07"), "So yes is taken for the rarest"),
    ):
        printed = said("task", "new", f"{name}.toml", *new, *balance)
        assert rare in printed
        task, files = ("--task", f"{name}.toml"), ("--data", "one.csv")
        told = precad("setup", name, *task, *files, "--data", "two.csv")
        asked = {"plain": "class yes is 0.075 of", "swapped": "class no is 0.93 of"}
        for output in (
            said("task", "check", f"{name}.toml", *files),
            told.stderr,
            precad("doctor", "--wait", "0", "--config", f"{name}/one.toml").stdout,
        ):
            found = " of these records, and " in output
            assert found is (name in asked), output
            assert asked.get(name, "") in output


def planned(*sizes: int, **changes: object) -> Task:
    """As `precad task new` plans these owners: room for twice the largest at p = .05."""
    return task_with(
        {
            "privacy.record_rate": 0.05,
            "enrolment.clients": len(sizes),
            "enrolment.min_clients": 1,
            "enrolment.planned_units": sum(sizes),
            "enrolment.max_expected_records": 2 * 0.05 * max(sizes),
        }
        | changes
    )


@pytest.mark.parametrize(
    ("sizes", "held", "words"),
    [
        ((300, 300, 300), 600, ("600 records", "300 an owner", "record_rate be 0.025")),
        ((300, 300, 300), 420, ()),
        ((300, 300, 300), 220, ()),
        ((300, 300, 300), 150, ("150 records", "= 900 at 3", "steps shorter")),
        # Of different sizes the smallest isn't known, unless the others leave it.
        ((500, 1200, 40), 40, ()),
        ((500, 1200, 40), 1300, ()),
        ((500, 1200, 40), 2000, ("580 an owner", "privacy.client_clip", "0.03 ")),
        ((1000, 1000, 400), 200, ("200 records", "800 an owner")),
    ],
)
def test_an_owner_far_from_the_plan_is_told_both_numbers_and_what_to_do(
    sizes: tuple[int, ...], held: int, words: tuple[str, ...]
) -> None:
    """600 records where 300 were planned passed in silence."""
    told = unlike_plan(planned(*sizes), held, 0.05)
    assert (told is not None) is bool(words)
    for part in (*words, *(["ε stays", "--records"] if words else ())):
        assert part in str(told)


def test_a_lower_rate_counts_and_tasks_without_a_plan_of_records_say_nothing() -> None:
    task = planned(300, 300, 300)
    assert unlike_plan(task, 600, 0.025) is None
    for unplanned in (
        planned(300, 300, 300, **{"enrolment.planned_units": None}),
        # A cap that leaves no room is nobody's doing.
        planned(600, 600, **{"enrolment.max_expected_records": 30.0}),
    ):
        assert unlike_plan(unplanned, 600, 0.05) is None


def test_commands_tell_an_owner_that_its_table_is_not_what_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("columns.toml").write_text(RECIPE)
    for name, times in (("one", 40), ("two", 20)):
        rows = "70,A,yes\n50,B,no\n" * times
        Path(f"{name}.csv").write_text(f"age,ward,died\n{rows}")
    made = ("--recipe", "columns.toml", "--records", "2x40", "--epsilon", "3")
    said("task", "new", "t.toml", *made, "--architecture", "logistic")
    more = "80 records, where 40 an owner were planned"
    files = ("--data", "one.csv", "--data", "two.csv")
    told = precad("setup", "run", "--task", "t.toml", *files).stderr
    assert (told.count("were planned"), f"one.csv: {more}" in told) == (1, True)
    for name in ("one", "two"):
        for output in (
            said("task", "check", "t.toml", "--data", f"{name}.csv"),
            precad("doctor", "--wait", "0", "--config", f"run/{name}.toml").stdout,
        ):
            assert (more in output) is (name == "one")
    # Each of a unit's records is a row, and only its settings say which is whose.
    by_patient = ("--unit", "patient", "--most-records-per-unit", "3")
    wards = (*made, "--architecture", "logistic", *by_patient)
    said("task", "new", "patients.toml", *wards)
    told = precad("setup", "patients", "--task", "patients.toml", *files).stderr
    assert "were planned" not in told
