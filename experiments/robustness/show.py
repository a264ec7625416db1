"""Tables and pictures of finished rows.

python -m precad.experiments.robustness.show RESULTS.json... --pictures FOLDER
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from precad.experiments.robustness.published import QUOTED_FIG_3, TABLE_2_MNIST, WHY_QUOTED
from precad.experiments.robustness.table import METHODS

Rows = list[dict[str, Any]]
COLOURS = ("#444444", "#1b5e8c", "#7d5ba6", "#c8553d", "#3a7d44", "#8a6d3b", "#0f8b8d")


def grouped(rows: Iterable[dict[str, Any]]) -> dict[tuple[float, str], Rows]:
    """Seeds of one σ and method together, in the table's order."""
    found: dict[tuple[float, str], Rows] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["sigma"], METHODS.index(row["method"]))):
        found[row["sigma"], row["method"]].append(row)
    return dict(found)


def table(rows: Rows, *, published: bool) -> str:
    """Markdown: mean (spread over seeds) of accuracy, ACR and certified accuracy at r = 0.25."""
    head = "| σ | method | seeds | accuracy, % | ACR | certified at 0.25, % |"
    line = "| --- | --- | --- | --- | --- | --- |"
    if published:
        head += " the paper's accuracy, % | its ACR | its certified at 0.25, % |"
        line += " --- | --- | --- |"
    lines = [head, line]
    for (sigma, method), some in grouped(rows).items():
        cells = [
            f"{sigma:g}",
            method,
            f"{len(some)}",
            _spread([100 * row["accuracy"] for row in some], 1),
            _spread([row["acr"] for row in some], 3),
            _spread([100 * row["at_quarter"] for row in some], 1),
        ]
        if published:
            accuracy, acr, quarter = TABLE_2_MNIST[sigma, method]
            cells += [f"{accuracy:.2f}", f"{acr:.3f}", f"{quarter:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(values: list[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def picture(rows: Rows, radii: list[float], path: Path, title: str) -> None:
    """Certified accuracy by radius, a panel a σ and a line a method (Fig. 2, 7)."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- a second

    groups = grouped(rows)
    sigmas = sorted({sigma for sigma, _ in groups})
    figure = Figure(figsize=(4.2 * len(sigmas), 3.8), layout="constrained")
    for axes, sigma in zip(
        np.ravel(figure.subplots(1, len(sigmas), sharey=True)), sigmas, strict=True
    ):
        for (at, method), some in groups.items():
            if at != sigma:
                continue
            mean = 100 * np.mean([row["certified_accuracy"] for row in some], axis=0)
            last = int(np.flatnonzero(mean)[-1]) + 2 if mean.any() else 2
            axes.plot(
                radii[:last],
                mean[:last],
                label=method,
                color=COLOURS[METHODS.index(method)],
                linestyle="--" if method in METHODS[:3] else "-",
                linewidth=1.6,
            )
        axes.set_title(f"σ = {sigma:g}", loc="left", fontsize=11)
        axes.set_xlabel("ℓ2 radius")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 102)
        axes.grid(visible=True, alpha=0.25)
    figure.axes[0].set_ylabel("certified accuracy, %")
    figure.axes[-1].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--pictures", type=Path)
    given = parser.parse_args()
    by_data: dict[str, Rows] = defaultdict(list)
    radii: list[float] = []
    for path in given.results:
        found = json.loads(path.read_text(encoding="utf-8"))
        radii = found["radii"]
        for row in found["rows"]:
            by_data[row["training"]["data"]].append(row)
    for name, rows in by_data.items():
        click.echo(f"{name}\n\n{table(rows, published=name == 'mnist')}\n")
        if given.pictures is not None:
            title = (
                f"{name}, ε = 3, δ = 1e-5, n = {rows[0]['copies']:,}, {rows[0]['points']} inputs"
            )
            picture(rows, radii, given.pictures / f"certified-{name}.png", title)
    click.echo(f"Quoted, not measured: {'; '.join(QUOTED_FIG_3)}.\n{WHY_QUOTED}")


if __name__ == "__main__":
    main()
