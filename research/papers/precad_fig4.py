"""PRECAD Fig. 4: main and backdoor accuracy by number of bad clients."""

from collections.abc import Sequence
from typing import Any

from research.papers.precad_backdoor import BACKDOOR, by_arm, cells_of, plot_both
from research.papers.precad_common import PUBLISHED_EPSILON, train
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

BAD = {Scale.SMALL: (0, 1, 3, 5), Scale.PAPER: (0, 1, 2, 4, 6, 8, 10)}
CLIP = {Scale.SMALL: 5.0, Scale.PAPER: 30.0}
SEEDS = {Scale.SMALL: 2, Scale.PAPER: 10}
_SAID = {
    "non-private": "over 80 % from K = 4",
    "local-dp": "over 80 % from K = 4; noise reduces robustness",
    "precad": "lower; the lower, the smaller ε",
}


def cells(scale: Scale) -> list[Settings]:
    """Seed by seed."""
    arms: list[dict[str, Any]] = [{"algorithm": "non-private", "noise_multiplier": 0.0}]
    for algorithm in ("precad", "local-dp"):
        arms += [
            {
                "algorithm": algorithm,
                "noise_multiplier": sigma,
                "client_clip": CLIP[scale],
            }
            for sigma in PUBLISHED_EPSILON
        ]
    if scale is Scale.SMALL:
        arms[0]["learning_rate"] = 0.5
    return [
        {**arm, "attackers": bad, "seed": seed}
        for seed in range(SEEDS[scale])
        for bad in BAD[scale]
        for arm in arms
    ]


def _arm(result: Result) -> tuple[str, str, float]:
    algorithm, sigma = result.settings["algorithm"], result.settings["noise_multiplier"]
    label = algorithm if algorithm == "non-private" else f"{algorithm}, σ = {sigma:g}"
    return label, algorithm, sigma


def table(results: Sequence[Result]) -> Table:
    """Two rows for each algorithm and σ, a column for each K."""
    places = sorted({result.settings["attackers"] for result in results})
    rows = []
    for (label, algorithm, _), group in by_arm(results, _arm, "attackers").items():
        rows.append([label, "main", "", *cells_of(group, places, "accuracy")])
        rows.append(
            [label, "backdoor", _SAID[algorithm], *cells_of(group, places, "backdoor")]
        )
    return Table(
        ["algorithm", "task", "published", *(f"K = {k}" for k in places)], rows
    )


def plot(results: Sequence[Result], figure: Any) -> None:
    """Both accuracies against K."""
    plot_both(results, figure, _arm, "attackers", "K, bad clients")


EXPERIMENTS.register("precad-fig4")(
    Experiment(
        paper="PRECAD",
        figure="Fig. 4 (a)",
        claim=(
            "Four backdoor clients of a hundred break training without privacy and"
            " under local DP; PRECAD withstands more, and its noise helps where local"
            " DP's harms."
        ),
        does=(
            "K clients train a pixel backdoor and submit what would put their model in"
            " the model's place, clipped to C where C is checked. Local DP clips to C"
            " after the noise; bad clients add none. Backdoor accuracy leaves out"
            " images that are zeros anyway."
        ),
        settings=BACKDOOR,
        cells=cells,
        measure=train,
        table=table,
        plot=plot,
    )
)
