"""Whoever runs a part of an experiment, with ``--only``, gets its table and picture."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from precad.experiments.study import EXPERIMENTS, Result, Scale
from precad.experiments.study.kept import Kept

RESULTS = Path(__file__).parents[2] / "benchmarks/results/papers"
MEASURED = [name for name in EXPERIMENTS if (RESULTS / f"{name}-small.json").exists()]


def _written(result: Result, setting: str) -> str:
    return json.dumps(result.settings.get(setting))


def _parts(results: list[Result]) -> list[list[Result]]:
    """One cell, and all that have a setting's first value, or its last."""
    found = [[results[0]], [results[-1]]]
    for setting in dict.fromkeys(name for result in results for name in result.settings):
        values = {_written(results[0], setting), _written(results[-1], setting)}
        found += [[r for r in results if _written(r, setting) == v] for v in sorted(values)]
    return found


@pytest.mark.parametrize("name", MEASURED)
def test_any_part_of_an_experiment_has_a_table_and_a_picture(name: str) -> None:
    one = EXPERIMENTS[name]
    results = Kept(RESULTS, name, Scale.SMALL).of(one.all_cells(Scale.SMALL))
    for part in _parts(results):
        table = one.table(part)
        assert all(len(row) == len(table.headings) for row in table.rows)
        one.plot(part, Figure())
