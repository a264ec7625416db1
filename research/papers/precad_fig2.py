"""PRECAD Fig. 2: ε and accuracy by epoch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import guarantees
from research.papers.precad_common import (
    POINTS,
    PUBLISHED_EPSILON,
    SETTINGS,
    percent,
    train,
)
from research.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

SEEDS = {Scale.SMALL: 3, Scale.PAPER: 10}
_ACCOUNTANTS = (AccountantName.EXACT, AccountantName.GDP_CLT)
_ADVERSARIES = (Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY)
_COLOURS = {1.0: "tab:blue", 1.5: "tab:green", 2.0: "tab:red"}


def cells(scale: Scale) -> list[Settings]:
    """Seed by seed."""
    return [
        {"algorithm": "precad", "noise_multiplier": sigma, "seed": seed}
        for seed in range(SEEDS[scale])
        for sigma in PUBLISHED_EPSILON
    ]


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """A training, and ε after each of its points: planned, and with the mean T_i of the paper."""
    values = train(settings, around)
    values["accounts"] = [
        [done, *_accounts(settings, done)]
        for done in (
            round(at) for at in np.linspace(0, settings["rounds"], POINTS + 1)[1:]
        )
    ]
    return values


def _accounts(settings: Settings, rounds: int) -> list[float]:
    """Exact ε of both adversaries, then the paper's own: the theorem of the limit, at T_i = qT."""
    run = Run(
        record_rate=settings["record_rate"],
        client_rate=settings["client_rate"],
        noise_multiplier=settings["noise_multiplier"],
        rounds=rounds,
        participations=max(1, round(settings["client_rate"] * rounds)),
    )
    found = guarantees(run, settings["delta"], _ADVERSARIES, _ACCOUNTANTS)
    values = {
        (each.adversary, each.accountant): round(each.epsilon, 4) for each in found
    }
    return [
        values[adversary, name] for name in _ACCOUNTANTS for adversary in _ADVERSARIES
    ]


def _by_sigma(results: Sequence[Result]) -> dict[float, list[Result]]:
    found: dict[float, list[Result]] = {}
    for result in results:
        found.setdefault(result.settings["noise_multiplier"], []).append(result)
    return found


def table(results: Sequence[Result]) -> Table:
    """A row for each σ, at the end of training."""
    rows = []
    for sigma, group in _by_sigma(results).items():
        _, server, clients, limit, _ = group[0].values["accounts"][-1]
        accuracy = percent([each.values["accuracy"] for each in group])
        rows.append(
            [
                f"{sigma:g}",
                f"{PUBLISHED_EPSILON[sigma]:g}",
                f"{limit:.2f}",
                f"{server:.2f}",
                f"{clients:.2f}",
                accuracy,
            ]
        )
    return Table(
        [
            "σ",
            "ε, one server: published at the paper's scale",
            "by the paper's limit theorem here",
            "exact",
            "exact, clients only",
            "accuracy",
        ],
        rows,
    )


def plot(results: Sequence[Result], figure: Any) -> None:
    """ε on the left, accuracy on the right."""
    left, right = figure.subplots(1, 2)
    for sigma, group in _by_sigma(results).items():
        colour = _COLOURS.get(sigma, "black")
        rounds, server, clients, limit, _ = zip(
            *group[0].values["accounts"], strict=True
        )
        left.plot(
            rounds, server, color=colour, label=f"σ = {sigma:g}, one server, exact"
        )
        left.plot(
            rounds, clients, color=colour, linestyle="--", label="clients only, exact"
        )
        left.plot(
            rounds, limit, color=colour, linestyle=":", label="one server, as published"
        )
        curves = np.array([[at[1] for at in each.values["curve"]] for each in group])
        places = [at[0] for at in group[0].values["curve"]]
        right.plot(places, curves.mean(axis=0), color=colour, label=f"σ = {sigma:g}")
        low, high = curves.min(axis=0), curves.max(axis=0)
        right.fill_between(places, low, high, color=colour, alpha=0.2)
    left.set_ylabel("ε of a record at T_i = qT")
    # Room for the legend above the lines.
    left.set_ylim(0, 1.6 * left.get_ylim()[1])
    right.set_ylabel("accuracy on held-out records")
    right.set_ylim(0, 1)
    left.legend(fontsize="small", loc="upper left")
    right.legend(loc="lower right")
    for axes in (left, right):
        axes.set_xlabel("round")
        axes.grid(alpha=0.3)


EXPERIMENTS.register("precad-fig2")(
    Experiment(
        paper="PRECAD",
        figure="Fig. 2",
        claim=(
            "More noise gives a smaller ε and less accuracy; ε against one server is"
            " larger than against clients. After 25 epochs: 6.8, 3.5, 2.4 for σ = 1,"
            " 1.5, 2."
        ),
        does=(
            "Trains with each σ; the exact accountant stands beside the paper's central"
            " limit theorem, both at the mean number of participations, qT."
        ),
        settings=SETTINGS,
        cells=cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
