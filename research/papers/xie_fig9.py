"""Xie et al. Fig. 9: ε of InsDP-FedSGD and of Dopamine by round and rate of users."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from precad.accounting.rdp import RdpAccountant
from research.algorithms.instance_level import InstanceLevel, exact_epsilon
from research.papers.xie_levels import RECORDS
from research.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

ROUNDS = (1, 50, 100, 200)
COHORTS = (10, 15, 20, 30)
SAID = {10: "0.87, 2.70"}
"""InsDP-FedSGD's and Dopamine's ε after 200 rounds, as printed (Sec. 6.3.1)."""
WAYS = {
    "printed": "Proposition 1's rate: no guarantee",
    "exact": "InsDP-FedSGD, exact",
    "dopamine": "Dopamine, RDP",
    "dopamine_exact": "Dopamine, exact",
}
_SETTINGS: Settings = {
    "data": "none",
    "users": 30,
    "noise_multiplier": 3.0,
    "clip": 1.5,
    "batch_rate": 0.4,
    "local_rate": 0.02,
    "seed": 0,
}


def cells(scale: Scale) -> list[Settings]:
    """Every number of users a round, and round; the same at both scales."""
    del scale
    return [
        {"users_per_round": m, "rounds": rounds} for m in COHORTS for rounds in ROUNDS
    ]


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """ε at δ = 1e-5, each way."""
    del around
    chosen = InstanceLevel.of(settings)
    rate = chosen.users_per_round / settings["users"]
    printed = replace(chosen, batch_rate=rate * chosen.batch_rate).summed()

    def by_rdp(event: Any) -> float:
        accountant = RdpAccountant()
        accountant.compose(event)
        return accountant.epsilon(RECORDS.delta)

    return {
        "printed": round(by_rdp(printed), 4),
        "exact": round(exact_epsilon(chosen.summed(rate), RECORDS.delta), 4),
        "dopamine": round(by_rdp(chosen.summed()), 4),
        "dopamine_exact": round(exact_epsilon(chosen.summed(), RECORDS.delta), 4),
    }


def table(results: Sequence[Result]) -> Table:
    """A row for each number of users and round."""
    rows = []
    for result in results:
        m, rounds = result.settings["users_per_round"], result.settings["rounds"]
        said = SAID.get(m, "–") if rounds == ROUNDS[-1] else "–"
        shown = [f"{result.values[way]:.2f}" for way in WAYS]
        rows.append([f"{m} of {result.settings['users']}", str(rounds), said, *shown])
    return Table(["users a round", "rounds", "ε published", *WAYS.values()], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """A panel for each number of users."""
    panels = figure.subplots(1, len(COHORTS), sharey=True)
    for axes, m in zip(panels, COHORTS, strict=True):
        own = [result for result in results if result.settings["users_per_round"] == m]
        rounds = [result.settings["rounds"] for result in own]
        for way, name in WAYS.items():
            style = "--" if way == "printed" else "-"
            axes.plot(
                rounds,
                [each.values[way] for each in own],
                style,
                marker=".",
                label=name,
            )
        axes.set_title(f"m = {m} of 30")
        axes.set_xlabel("rounds")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("ε at δ = 1e-5")
    panels[-1].legend(fontsize="x-small")


EXPERIMENTS.register("xie-fig9")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 9",
        claim=(
            "Credit for drawing users makes InsDP-FedSGD's ε far smaller than"
            " Dopamine's: .87 and 2.70 after 200 rounds with 10 of 30 users."
        ),
        does=(
            "ε of the paper's settings by the rate p·q of Proposition 1, which isn't"
            " sound, since a user's records are drawn together; exactly, with the"
            " user's draw as an atom; and Dopamine's, both ways. Nothing is trained."
        ),
        settings=dict.fromkeys(Scale, _SETTINGS),
        cells=cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
