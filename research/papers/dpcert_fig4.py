"""DP-CERT Fig. 4, 8, 9: consistency, PSAC and the number of copies."""

from collections.abc import Iterator, Sequence
from typing import Any

from research.papers.dpcert_models import (
    SETTINGS,
    SIGMAS,
    curve_axes,
    curve_on,
    grouped,
    method_cells,
    shares,
    sigmas_of,
    spread,
)
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

COPIES = (4, 6, 8)
"""K beside the two of every other variant."""
SEEDS = 1
"""All variants share its start, samples and noise, so that they are compared in pairs.
"""


def cells(scale: Scale) -> list[Settings]:
    """Every variant at every σ; a variant's name is among its settings."""
    return list(_variants(scale))


def _variants(scale: Scale) -> Iterator[Settings]:
    def of(variant: str, method: str, **own: Any) -> Iterator[Settings]:
        return method_cells(scale, (method,), SIGMAS, SEEDS, variant=variant, **own)

    yield from of("dp-gaussian", "dp-gaussian")
    yield from of("dp-gaussian, consistency", "dp-consistency")
    yield from of("dp-gaussian, psac", "dp-gaussian", psac=True)
    yield from of("dp-smoothadv", "dp-smoothadv")
    yield from of("dp-smoothadv, psac", "dp-smoothadv", psac=True)
    yield from of("no copy: dp-sgd", "dp-sgd")
    yield from of(
        "K = 0: a copy in its place", "dp-gaussian", augmentations=1, original=False
    )
    yield from of("K = 1", "dp-gaussian", augmentations=1)
    for copies in COPIES:
        yield from of(f"K = {copies}", "dp-gaussian", augmentations=copies)


def table(results: Sequence[Result]) -> Table:
    """A row for each variant: accuracy, ACR at each σ."""
    sigmas = sigmas_of(results)
    found = grouped(results, "variant", "sigma")
    rows = []
    for variant in dict.fromkeys(name for name, _ in found):
        row = [variant]
        for sigma in sigmas:
            group = found.get((variant, sigma))
            row.append("–" if group is None else spread(group, "acr", 3))
            row.append("–" if group is None else spread(group, "accuracy", 1, 100))
        rows.append(row)
    headings = [
        f"{what}, σ = {sigma:g}" for sigma in sigmas for what in ("ACR", "accuracy, %")
    ]
    return Table(["variant (K = 2 unless said)", *headings], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """Certified accuracy by radius, a panel a σ; the number of copies dashed."""
    figure.set_size_inches(12, 5)
    panels = curve_axes(figure, sigmas_of(results))
    found = grouped(results, "variant", "sigma")
    colours = {
        variant: f"C{n}" for n, variant in enumerate(dict.fromkeys(v for v, _ in found))
    }
    for (variant, sigma), group in found.items():
        style = (
            "--"
            if variant.startswith("K")
            else ":"
            if variant.startswith("no")
            else "-"
        )
        curve_on(
            panels[sigma], group, linestyle=style, color=colours[variant], label=variant
        )
    for axes in figure.axes[:1]:
        axes.legend(frameon=False, fontsize=8)


EXPERIMENTS.register("dpcert-fig4")(
    Experiment(
        paper="DP-CERT",
        figure="Figs. 4, 8, 9",
        claim=(
            "Neither consistency regularisation nor PSAC improves certified accuracy,"
            " and more than two copies of a record hardly do."
        ),
        does=(
            "Each variant beside plain DP-Gaussian. A copy in the record's place is the"
            " paper's K = 0. Consistency with adversarial copies isn't there: an"
            " objective has one regulariser."
        ),
        settings=SETTINGS,
        cells=cells,
        measure=shares,
        table=table,
        plot=plot,
    )
)
