"""PRECAD Fig. 3: accuracy by number of clients."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from research.papers.precad_common import (
    PUBLISHED_EPSILON,
    SETTINGS,
    lines_with_spread,
    mean,
    percent,
    train,
)
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

CLIENTS = {Scale.SMALL: (10, 30, 100), Scale.PAPER: (100, 200, 500, 1000)}
SEEDS = {Scale.SMALL: 3, Scale.PAPER: 10}
"""The paper averages ten runs."""
MIDDLE = 1.5
_SAID = {
    "non-private": "no impact of n",
    "precad": "no impact of n",
    "local-dp": "falls significantly",
}


def cells(scale: Scale) -> list[Settings]:
    """Seed by seed, so that a run that is broken off has all curves, with fewer seeds."""
    arms: list[dict[str, Any]] = [{"algorithm": "non-private", "noise_multiplier": 0.0}]
    for algorithm in ("precad", "local-dp"):
        arms += [
            {"algorithm": algorithm, "noise_multiplier": s} for s in PUBLISHED_EPSILON
        ]
    arms += [
        {"algorithm": "central-dp", "noise_multiplier": MIDDLE},
        # Half of a round's clients are taken to be honest.
        {"algorithm": "distributed-dp", "noise_multiplier": MIDDLE},
    ]
    found: list[Settings] = []
    for seed in range(SEEDS[scale]):
        for clients in CLIENTS[scale]:
            rate = SETTINGS[scale]["client_rate"]
            for arm in arms:
                own = {**arm, "clients": clients, "seed": seed}
                if arm["algorithm"] == "distributed-dp":
                    own["non_colluding"] = max(1, round(rate * clients / 2))
                if arm["algorithm"] == "non-private" and scale is Scale.SMALL:
                    own["learning_rate"] = 0.5
                found.append(own)
    return found


def _grouped(
    results: Sequence[Result],
) -> dict[tuple[str, float], dict[int, list[Result]]]:
    groups: dict[tuple[str, float], dict[int, list[Result]]] = defaultdict(dict)
    for result in results:
        arm = result.settings["algorithm"], result.settings["noise_multiplier"]
        groups[arm].setdefault(result.settings["clients"], []).append(result)
    return groups


def table(results: Sequence[Result]) -> Table:
    """A row for each algorithm and σ, a column for each n."""
    sizes = sorted({result.settings["clients"] for result in results})
    rows = []
    for (algorithm, sigma), by_size in _grouped(results).items():
        spent = [
            r.values["epsilon"].get("record") for rs in by_size.values() for r in rs
        ]
        known = [value for value in spent if value is not None]
        published = "–" if not known else f"{PUBLISHED_EPSILON[sigma]:g}"
        rows.append(
            [
                algorithm,
                f"{sigma:g}" if known else "–",
                published,
                f"{mean(known):.2f}" if known else "–",
                _SAID.get(algorithm, "not measured"),
                *(
                    percent([r.values["accuracy"] for r in by_size.get(size, [])])
                    for size in sizes
                ),
            ]
        )
    headings = [
        "algorithm",
        "σ",
        "ε published, its scale",
        "ε exact, here",
        "published",
    ]
    return Table([*headings, *(f"n = {size}" for size in sizes)], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """Accuracy against n, a line for each algorithm and σ."""
    axes = figure.subplots()
    for (algorithm, sigma), by_size in _grouped(results).items():
        label = (
            algorithm if algorithm == "non-private" else f"{algorithm}, σ = {sigma:g}"
        )
        points = {
            size: [result.values["accuracy"] for result in group]
            for size, group in sorted(by_size.items())
        }
        lines_with_spread(axes, points, label, algorithm, sigma)
    axes.set_xscale("log")
    sizes = sorted({result.settings["clients"] for result in results})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("n, clients")
    axes.set_ylabel("accuracy on held-out records")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


EXPERIMENTS.register("precad-fig3")(
    Experiment(
        paper="PRECAD",
        figure="Fig. 3, left",
        claim=(
            "More clients change nothing for PRECAD and without privacy; local DP loses"
            " accuracy, because each client's noise adds up."
        ),
        does=(
            "All records are dealt to n clients in sorted shards, with the same"
            " expected number of records a round. C does nothing, as in the paper's"
            " Sec. 6.2. Central DP and distributed DP (half of a round's clients taken"
            " as honest) stand beside."
        ),
        settings=SETTINGS,
        cells=cells,
        measure=train,
        table=table,
        plot=plot,
    )
)
