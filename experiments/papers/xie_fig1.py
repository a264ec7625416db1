"""Xie et al. Fig. 1 (a) and Table 4: certified accuracy of UserDP-FedAvg by ε."""

from collections.abc import Sequence
from typing import Any

from precad.experiments.algorithms.instance_level import exact_epsilon
from precad.experiments.papers.xie_votes import (
    DELTA,
    GROUPS,
    PUBLISHED,
    SETTINGS,
    accuracy,
    grouped,
    measure,
    published_curve,
    share,
    sound_curve,
    user_mechanism,
)
from precad.experiments.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

CHUNKS = {Scale.SMALL: 5, Scale.PAPER: 20}
"""Cells a σ; the paper has 1,000 models."""
_SHOWN = (0, 1, 2, 4)


def cells(scale: Scale) -> list[Settings]:
    """One part of all models for every σ, then the next part."""
    return [
        {"noise_multiplier": sigma, "seed": seed}
        for seed in range(CHUNKS[scale])
        for sigma in PUBLISHED
    ]


def table(results: Sequence[Result]) -> Table:
    """A row for each σ: ε, clean accuracy, and certified accuracy by both conventions."""
    rows = []
    for sigma, group in grouped(results, "noise_multiplier").items():
        epsilon, clean = PUBLISHED[sigma]
        printed, sound = published_curve(group, epsilon), sound_curve(group, user_mechanism(group))
        rows.append(
            [
                f"{sigma:g}",
                f"{epsilon:.4f}",
                f"{exact_epsilon(user_mechanism(group), DELTA):.4f}",
                share(clean),
                share(accuracy(group)),
                *(f"{share(printed[k])} / {share(sound[k])}" for k in _SHOWN),
            ]
        )
    headings = ["σ", "ε published", "ε exact", "accuracy published, MNIST", "accuracy"]
    return Table([*headings, *(f"k = {k}: as published / sound" for k in _SHOWN)], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """Certified accuracy by k: as published on the left, sound on the right."""
    left, right = figure.subplots(1, 2, sharey=True)
    for sigma, group in grouped(results, "noise_multiplier").items():
        epsilon, _ = PUBLISHED[sigma]
        label = f"σ = {sigma:g}"
        left.plot(GROUPS, published_curve(group, epsilon), marker=".", label=label)
        right.plot(GROUPS, sound_curve(group, user_mechanism(group)), marker=".", label=label)
    left.set_title("as published: additions, no confidence")
    right.set_title("sound: replaced users, 99 % confidence")
    left.set_ylabel("certified accuracy")
    for axes in (left, right):
        axes.set_xlabel("k, bad users")
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.3)
    right.legend(fontsize="small")


EXPERIMENTS.register("xie-fig1")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 1 (a), Table 4",
        claim="Certified accuracy has a best ε for each k; on MNIST up to about 4 users of 200 "
        "are certified, at ε = 0.63.",
        does="Ensembles by UserDP-FedAvg on zeros and ones, all models of a cell at once; votes "
        "certified as the paper does and as is sound: exact accountant, users that replace their "
        "updates, 99 % confidence a point.",
        settings=SETTINGS,
        cells=cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
