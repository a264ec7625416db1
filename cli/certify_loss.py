"""The loss command's report: bounds by attackers, fewest attackers, or bounds as functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from precad.cli.certify_input import read_array
from precad.cli.certify_show import CHANGES, show_cost, show_mechanism
from precad.common.certify import (
    Direction,
    Guarantee,
    ScoreBound,
    attack_bounds,
    expected_loss,
    fewest_attackers,
)
from precad.common.certify.inefficacy import MeanInterval
from precad.common.certify.plot import plot_loss_bounds
from precad.common.certify.runs import Ensemble
from precad.common.errors import Misconfiguration

_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, slots=True)
class LossReport:
    """What the command says.

    Attributes:
        expected: the clean expectation, or None where bounds are functions of it.
        bound: B.
        rows: (expectation, attackers, lower, upper).
        fewest: (τ, attackers or None).
    """

    expected: MeanInterval | None
    bound: float
    rows: list[tuple[float, int, float, float]]
    fewest: list[tuple[float, int | None]]


def expectation(
    runs: Ensemble | None,
    path: Path | None,
    given: float | None,
    *,
    bound: float,
    confidence: float,
    inequality: str,
) -> MeanInterval | None:
    """The clean expected loss: given, or estimated; None for one run alone.

    Raises:
        Misconfiguration: a loss outside [0, bound] or NaN, or a wrong shape.
    """
    if given is not None:
        if not 0 <= given <= bound:
            raise Misconfiguration("--loss", given, f"give a number in [0, {bound:g}]")
        return MeanInterval(given, given, given, 0)
    if runs is not None:
        if len(runs.runs) == 1:
            return None
        if bound != 1:
            raise Misconfiguration("--bound", bound, "losses of finished runs lie in [0, 1]")
        return expected_loss(runs.mean_losses(), bound, confidence, ScoreBound(inequality))
    assert path is not None
    array = np.asarray(read_array("losses", path), dtype=np.float64)
    if array.ndim == 2 and 1 in array.shape:
        # A CSV of one column or one row is one loss a run.
        array = array.ravel()
    if array.ndim not in (1, 2) or not array.size:
        raise Misconfiguration("losses", f"shape {array.shape}", "give [runs] or [runs, points]")
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= bound):
        raise Misconfiguration("losses", "NaN or out of range", f"losses lie in [0, {bound:g}]")
    means = array if array.ndim == 1 else array.mean(axis=1)
    return expected_loss(means, bound, confidence, ScoreBound(inequality))


def loss_report(
    expected: MeanInterval | None,
    guarantee: Guarantee,
    directions: tuple[Direction, ...],
    *,
    bound: float,
    attackers: int,
    ratios: list[float],
) -> LossReport:
    """Bounds for 0 to ``attackers`` attackers, and the fewest for each ratio."""
    rows: list[tuple[float, int, float, float]] = []
    if expected is None:
        for k in sorted({k for k in (1, 2, 5, attackers) if 1 <= k <= attackers}):
            values = bound * np.array(_FRACTIONS)
            both = attack_bounds(values, bound, guarantee, k, directions)
            rows += [
                (float(v), k, float(low), float(up))
                for v, low, up in zip(values, both.lower, both.upper, strict=True)
            ]
        return LossReport(None, bound, rows, [])
    for k in range(attackers + 1):
        low = attack_bounds(expected.lower, bound, guarantee, k, directions).lower
        up = attack_bounds(expected.upper, bound, guarantee, k, directions).upper
        rows.append((expected.mean, k, float(low), float(up)))
    fewest = [(ratio, _fewest(expected, ratio, guarantee, directions, bound)) for ratio in ratios]
    return LossReport(expected, bound, rows, fewest)


def _fewest(
    expected: MeanInterval,
    ratio: float,
    guarantee: Guarantee,
    directions: tuple[Direction, ...],
    bound: float,
) -> int | None:
    """Attackers for a level of mean/τ, starting from the lower confidence bound."""
    if not ratio >= 1:
        raise Misconfiguration("--tau", ratio, "give a ratio of at least 1")
    level = expected.mean / ratio
    if expected.lower <= level:
        return 0
    return fewest_attackers(expected.lower, bound, expected.lower / level, guarantee, directions)


def report_json(report: LossReport) -> dict[str, Any]:
    """The report's part of the JSON document."""
    expected = report.expected
    return {
        "expected_loss": None
        if expected is None
        else {
            "mean": expected.mean,
            "lower": expected.lower,
            "upper": expected.upper,
            "runs": expected.runs,
        },
        "bounds": [
            {"loss": value, "attackers": k, "lower": low, "upper": up}
            for value, k, low, up in report.rows
        ],
        "fewest_attackers": [{"tau": ratio, "attackers": k} for ratio, k in report.fewest],
    }


def show_report(
    report: LossReport, setting: dict[str, Any], *, confidence: float, change: str, asymptotic: bool
) -> None:
    """The report for people."""
    console = Console()
    group, unit = setting["group"], setting["unit"].value
    source = "from the runs' ledgers" if group else "as given"
    show_mechanism(console, setting["mechanism"], unit, source)
    console.print(f"Attackers: {CHANGES[change]}.")
    if asymptotic:
        console.print("GDP-CLT is a limit for many rounds: its bounds are not guaranteed.")
    if report.expected is None:
        console.print(
            "One run gives no expectation. Whatever the clean expected loss is, it stays inside:"
        )
        _show_functions(console, report)
    else:
        _show_bounds(console, report, confidence)
    if group is not None:
        show_cost(console, group, setting["cost"])


def _show_functions(console: Console, report: LossReport) -> None:
    counts = sorted({k for _, k, _, _ in report.rows})
    table = Table(
        title=f"Expected loss (of at most {report.bound:g}) after k attackers: at least – at most"
    )
    table.add_column("clean", justify="right")
    for k in counts:
        table.add_column(f"k = {k}", justify="right")
    cells = {(value, k): f"{low:.3f} – {up:.3f}" for value, k, low, up in report.rows}
    for value in dict.fromkeys(value for value, _, _, _ in report.rows):
        table.add_row(f"{value:g}", *(cells[value, k] for k in counts))
    console.print(table)
    _say_if_vacuous(console, report)


def _say_if_vacuous(console: Console, report: LossReport) -> None:
    single = [(low, up) for _, k, low, up in report.rows if k == 1]
    little = 1e-3 * report.bound
    if single and all(low < little and up > report.bound - little for low, up in single):
        console.print(
            "At these parameters the bounds say nothing, even of one attacker: there is too little "
            "noise for what one may contribute. `precad plan` finds parameters that say something."
        )


def _show_bounds(console: Console, report: LossReport, confidence: float) -> None:
    expected = report.expected
    assert expected is not None
    if expected.runs:
        console.print(
            f"Clean expected loss {expected.mean:.4f} over {expected.runs:,} runs, in "
            f"[{expected.lower:.4f}, {expected.upper:.4f}] with confidence {confidence:g}."
        )
    else:
        console.print(f"Clean expected loss {expected.mean:g}, as given.")
    table = Table(title=f"Expected loss (of at most {report.bound:g}) after so many attackers")
    for name in ("attackers", "at least", "at most"):
        table.add_column(name, justify="right")
    for _, k, low, up in report.rows:
        table.add_row(f"{k:,}", f"{low:.4f}", f"{up:.4f}")
    console.print(table)
    _say_if_vacuous(console, report)
    vacuous = next((k for _, k, low, up in report.rows if up >= report.bound * (1 - 1e-6)), None)
    if vacuous is not None:
        console.print(f"From {vacuous} attackers on the upper bound says nothing.")
    for ratio, fewest in report.fewest:
        if fewest is None:
            console.print(f"No number of attackers searched can lower the loss {ratio:g}-fold.")
        else:
            console.print(
                f"To lower the expected loss {ratio:g}-fold takes at least {fewest:,} attackers."
            )


def plot_report(path: Path, report: LossReport, units: str) -> None:
    """The bounds' band.

    Raises:
        Misconfiguration: bounds are functions of an unknown expectation.
    """
    if report.expected is None:
        raise Misconfiguration(
            "--plot", str(path), "give --loss: one run has no expected loss to draw"
        )
    plot_loss_bounds(
        path,
        attackers=np.array([k for _, k, _, _ in report.rows], dtype=np.float64),
        lower=np.array([low for _, _, low, _ in report.rows]),
        upper=np.array([up for _, _, _, up in report.rows]),
        expected=report.expected.mean,
        unit=units,
        title=f"What so many attackers can do to an expected loss of {report.expected.mean:.3g}",
    )
