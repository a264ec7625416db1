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
