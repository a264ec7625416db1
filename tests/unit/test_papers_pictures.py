"""Tables and pictures of the papers' experiments, whole and of a part, as after ``--only``."""

import json
from pathlib import Path

import numpy as np
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


def test_attacks_are_drawn_though_nothing_is_measured_without_them() -> None:
    figure = drawn("xie-fig4", [r for r in kept("xie-fig4") if r.settings["bad"] == 8])
    assert [len(axes.lines) for axes in figure.axes] == [5, 4]


def lines(experiment: str, results: list[Result]) -> dict[str, list[float]]:
    """Where each line of the picture has its points on the x axis, by its name."""
    found = drawn(experiment, results).axes[0].get_lines()
    return {str(line.get_label()): np.asarray(line.get_xdata()).tolist() for line in found}


def test_bounds_are_drawn_at_every_k_and_where_no_attack_was_measured() -> None:
    losses = {"losses": [2.0, 2.2] * 20, "accuracy": 0.9}
    cells = EXPERIMENTS["xie-fig4"].all_cells(Scale.SMALL)
    some = [c for c in cells if c["attack_options"] == {"gamma": 50.0} and c["bad"] in (0, 8)]
    by_k = lines("xie-fig4", [Result(cell, losses, 1.0) for cell in some])
    assert by_k["bound as published"] == by_k["sound bound, 99 %"] == list(range(9))
    assert by_k["BKD, α = 100 %, γ = 50"] == [0, 8]
    clean_only = [c for c in EXPERIMENTS["xie-fig7"].all_cells(Scale.SMALL) if c["bad"] == 0]
    by_epsilon = lines("xie-fig7", [Result(cell, losses, 1.0) for cell in clean_only])
    assert by_epsilon["k = 8, as published"] == by_epsilon["k = 8, sound, 99 %"]
    assert by_epsilon["k = 8, sound, 99 %"] == by_epsilon["k = 0"] == [1.2716, 0.6608, 0.4344]
    assert "k = 8" not in by_epsilon


def backdoor(attackers: int, seed: int) -> Result:
    settings = {"algorithm": "non-private", "noise_multiplier": 0.0, "attackers": attackers}
    curve = [[50, 0.5, 0.1], [100, 0.9, 0.2 + 0.2 * seed]]
    values = {"accuracy": curve[-1][1], "backdoor": curve[-1][2], "curve": curve}
    return Result(settings | {"seed": seed}, values, 1.0)


@pytest.mark.parametrize(
    ("results", "x", "y", "axis"),
    [
        ([(0, 0), (4, 0), (10, 0)], [0, 4, 10], [0.2, 0.2, 0.2], "K, bad clients"),
        ([(4, 0), (4, 1)], [50, 100], [0.1, 0.3], "round; K = 4"),
        # Also beside cells without any bad client: one number of them is attacked.
        ([(4, 0), (4, 1), (0, 0), (0, 1)], [50, 100], [0.1, 0.3], "round; K = 4"),
    ],
)
def test_with_one_number_of_bad_clients_rounds_are_the_axis(
    results: list[tuple[int, int]], x: list[float], y: list[float], axis: str
) -> None:
    """PRECAD's Fig. 4: several numbers of them are a curve."""
    panel = drawn("precad-fig4", [backdoor(*each) for each in results]).axes[1]
    points = np.asarray(panel.lines[0].get_xydata())
    assert (points[:, 0].tolist(), panel.get_xlabel()) == (x, axis)
    assert points[:, 1].tolist() == pytest.approx(y)
