"""PRECAD's Fig. 4 as it is drawn from few cells: one number of bad clients is no curve by it."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from precad.experiments.study import EXPERIMENTS, Result


def result(attackers: int, seed: int) -> Result:
    settings = {"algorithm": "non-private", "noise_multiplier": 0.0, "attackers": attackers}
    curve = [[50, 0.5, 0.1], [100, 0.9, 0.2 + 0.2 * seed]]
    values = {"accuracy": curve[-1][1], "backdoor": curve[-1][2], "curve": curve}
    return Result(settings | {"seed": seed}, values, 1.0)


def drawn(results: list[Result], panel: int) -> tuple[list[float], list[float], str]:
    figure = Figure()
    EXPERIMENTS["precad-fig4"].plot(results, figure)
    axes = figure.axes[panel]
    line = axes.lines[0]
    x, y = np.asarray(line.get_xydata()).T
    return x.tolist(), y.tolist(), axes.get_xlabel()


def test_with_several_numbers_of_bad_clients_they_are_the_axis() -> None:
    results = [result(0, 0), result(4, 0), result(10, 0)]
    assert drawn(results, 1) == ([0, 4, 10], [0.2, 0.2, 0.2], "K, bad clients")


@pytest.mark.parametrize("beside", [[], [result(0, 0), result(0, 1)]])
def test_with_one_number_of_bad_clients_rounds_are_the_axis(beside: list[Result]) -> None:
    """Also beside cells without any bad client: one number of them is attacked."""
    results = [result(4, 0), result(4, 1), *beside]
    assert drawn(results, 0) == ([50, 100], [0.5, 0.9], "round; K = 4")
    rounds, backdoor, _ = drawn(results, 1)
    assert rounds == [50, 100]
    assert backdoor == pytest.approx([0.1, 0.3])
