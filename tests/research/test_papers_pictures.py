"""Tables and pictures of the papers' experiments, whole and of a part, as after ``--only``."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from research.study import EXPERIMENTS, Result, Scale
from research.study.kept import Kept

RESULTS = Path(__file__).parents[2] / "benchmarks/results/papers"
MEASURED = [name for name in EXPERIMENTS if (RESULTS / f"{name}-small.json").exists()]
SOME = 3
"""Parts of each experiment that are looked at."""


def kept(name: str) -> list[Result]:
    """The committed ones of the small scale."""
    return Kept(RESULTS, name, Scale.SMALL).of(EXPERIMENTS[name].all_cells(Scale.SMALL))


def parts(results: list[Result]) -> list[list[Result]]:
    """One cell, or all that have a setting's first value, or its last: the smallest such parts."""
    last = len(results) - 1
    found: set[tuple[int, ...]] = {(0,), (last,)}
    for setting in {name for result in results for name in result.settings}:
        values = [json.dumps(result.settings.get(setting)) for result in results]
        for end in (0, last):
            found.add(tuple(i for i, value in enumerate(values) if value == values[end]))
    return [[results[i] for i in part] for part in sorted(found, key=len)[:SOME]]


def drawn(name: str, results: list[Result]) -> Figure:
    figure = Figure()
    EXPERIMENTS[name].plot(results, figure)
    return figure


@pytest.mark.parametrize("name", MEASURED)
def test_any_part_of_an_experiment_has_a_table_and_a_picture(name: str) -> None:
    for part in parts(kept(name)):
        table = EXPERIMENTS[name].table(part)
        assert all(len(row) == len(table.headings) for row in table.rows)
        drawn(name, part)
