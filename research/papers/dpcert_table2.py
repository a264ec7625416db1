"""DP-CERT Table 2, Fig.

7: accuracy and certified accuracy of each method and noise level.
"""

from collections.abc import Sequence
from typing import Any

from research.papers.dpcert_models import (
    BASELINES,
    COLOURS,
    METHODS,
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
from research.robustness.published import TABLE_2_MNIST
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

FEDERATED = ("dp-sgd", "dp-gaussian")


def cells(scale: Scale) -> list[Settings]:
    """Every method, σ and seed in one place; the two that matter most by a federation too."""
    return [
        *method_cells(scale, METHODS, SIGMAS, 3),
        *method_cells(scale, FEDERATED, SIGMAS, 3, trained="federated"),
    ]


def table(results: Sequence[Result]) -> Table:
    """A row for each σ and method: what was measured, and what the paper has for MNIST."""
    found = grouped(results, "sigma", "trained", "method")
    rows = []
    for sigma, trained, method in sorted(
        found, key=lambda key: (key[0], key[1], METHODS.index(key[2]))
    ):
        group = found[sigma, trained, method]
        accuracy, acr, quarter = TABLE_2_MNIST[sigma, method]
        epsilon = group[0].values["epsilon"]
        rows.append(
            [
                f"{sigma:g}",
                method if trained == "centrally" else f"{method}, federated",
                "–" if epsilon is None else f"{epsilon:.2f}",
                f"{len(group)}",
                spread(group, "accuracy", 1, 100),
                spread(group, "acr", 3),
                spread(group, "at_quarter", 1, 100),
                f"{accuracy:.1f}, {acr:.3f}, {quarter:.1f}",
            ]
        )
    headings = [
        "σ",
        "method",
        "ε",
        "seeds",
        "accuracy, %",
        "ACR",
        "certified at 0.25, %",
    ]
    return Table([*headings, "published, MNIST: accuracy, ACR, at 0.25"], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """Certified accuracy by radius, a panel a σ; without DP-CERT dashed, federated dotted."""
    panels = curve_axes(figure, sigmas_of(results))
    for (sigma, trained, method), group in grouped(
        results, "sigma", "trained", "method"
    ).items():
        central = trained == "centrally"
        style = "--" if method in BASELINES else "-"
        curve_on(
            panels[sigma],
            group,
            color=COLOURS[method],
            linestyle=style if central else ":",
            label=method if central else f"{method}, federated",
        )
    # Where results are a part of all, no panel may have every method.
    lines = {
        line.get_label(): line for axes in figure.axes for line in axes.get_lines()
    }
    for axes in figure.axes[-1:]:
        axes.legend(list(lines.values()), list(lines), frameon=False, fontsize=8)


EXPERIMENTS.register("dpcert-table2")(
    Experiment(
        paper="DP-CERT",
        figure="Table 2 (digits or MNIST), Fig. 7",
        claim=(
            "At the same ε all instances of DP-CERT certify far more than regular"
            " training, DP-SGD and PSAC, and DP-Gaussian as much as the costlier ones."
        ),
        does=(
            "Trained in one place, and by a federation of ten owners at the same ε"
            " against one of its servers. Certified by CERTIFY (n0 = 100, n = 10,000,"
            " 99.9 % an input)."
        ),
        settings=SETTINGS,
        cells=cells,
        measure=shares,
        table=table,
        plot=plot,
    )
)
