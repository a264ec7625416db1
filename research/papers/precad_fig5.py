"""PRECAD Fig. 5: main and backdoor accuracy by the clients' bound C."""

from collections.abc import Sequence
from typing import Any

from research.papers.precad_backdoor import BACKDOOR, by_arm, cells_of, plot_both
from research.papers.precad_common import PUBLISHED_EPSILON, train
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

CLIPS = {Scale.SMALL: (1.0, 2.0, 5.0), Scale.PAPER: (10.0, 20.0, 30.0, 40.0)}
BAD = {Scale.SMALL: (1, 5), Scale.PAPER: (5, 10)}
_MANY = 10
"""From one bad client in so many on, a line has the colour of many."""
SEEDS = {Scale.SMALL: 1, Scale.PAPER: 10}


def cells(scale: Scale) -> list[Settings]:
    """Seed by seed."""
    return [
        {
            "algorithm": "precad",
            "noise_multiplier": sigma,
            "client_clip": clip,
            "attackers": bad,
            "seed": seed,
        }
        for seed in range(SEEDS[scale])
        for bad in BAD[scale]
        for clip in CLIPS[scale]
        for sigma in PUBLISHED_EPSILON
    ]


def _arm(result: Result) -> tuple[str, str, float]:
    sigma, bad = result.settings["noise_multiplier"], result.settings["attackers"]
    colour = "few" if result.settings["clients"] > bad * _MANY else "many"
    return f"K = {bad}, σ = {sigma:g}", colour, sigma


def table(results: Sequence[Result]) -> Table:
    """Two rows for each K and σ, a column for each C."""
    places = sorted({result.settings["client_clip"] for result in results})
    rows = []
    for (label, _, _), group in by_arm(results, _arm, "client_clip").items():
        rows.append([label, "main", *cells_of(group, places, "accuracy")])
        rows.append([label, "backdoor", *cells_of(group, places, "backdoor")])
    return Table(["PRECAD", "task", *(f"C = {clip:g}" for clip in places)], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """Both accuracies against C."""
    plot_both(results, figure, _arm, "client_clip", "C, bound of a client's update")


EXPERIMENTS.register("precad-fig5")(
    Experiment(
        paper="PRECAD",
        figure="Fig. 5 (a)",
        claim=(
            "A smaller C makes the backdoor fail at little cost: at C = 20, 0 % for K ="
            " 5 of 100 clients and under 50 % for K = 10, with 1 % of main accuracy"
            " lost."
        ),
        does="As Fig. 4, with PRECAD alone, for several C.",
        settings=BACKDOOR,
        cells=cells,
        measure=train,
        table=table,
        plot=plot,
    )
)
