"""A report as one HTML page, with plots that are SVG elements in its colours."""

import io
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from precad.cli import Report, ReportedRobustness, guarantee_sentence, least, most
from precad.common import upper

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A plot is drawn in colours that stand for others and that no plot has otherwise; each
# becomes a colour of the page, which may be light or dark.
INK = "#010203"
"""Text, axes and grid."""
FIRST = "#010204"
"""The first line of a plot."""
SECOND = "#010205"
"""The second line of a plot."""
THIRD = "#010206"
"""A limit."""
_COLOURS = {
    INK: "currentColor",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    THIRD: "var(--third)",
}
"""What each stand-in becomes, in CSS."""
_STYLE: dict[Any, object] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "lines.linewidth": 2,
}
"""Matplotlib's settings for all plots; its type of their names is newer than the oldest
version that is supported."""


def accuracy_by_round(report: Report) -> str | None:
    """Draw the accuracy over rounds, as SVG; None where it wasn't measured."""
    percents = {
        row.round: 100 * row.accuracy
        for row in report.rounds
        if row.accuracy is not None
    }
    if not percents:
        return None

    def draw(axes: "Axes") -> None:
        axes.plot(list(percents), list(percents.values()), color=FIRST, marker=".")
        axes.set(ylim=(0, 100), xlabel="round", ylabel="right answers, %")

    return _svg("accuracy", draw)


def results_with_intervals(results: object) -> str | None:
    """Draw calibration, or of three and more classes the recall of each, as SVG.

    ``results`` are a report's. None where neither was measured.
    """
    rows = [
        row
        for row in getattr(results, "measures", [])
        if row.predicted is not None or row.name == "recall"
    ]

    def draw(axes: "Axes") -> None:
        labels = [f"{row.predicted:.4g}" if row.predicted else row.of for row in rows]
        lows = [row.low for row in rows]
        axes.vlines(labels, lows, [row.high for row in rows], color=FIRST)
        axes.scatter(labels, [row.value for row in rows], color=FIRST)
        predicted = [row.predicted for row in rows if row.predicted is not None]
        if predicted:
            axes.plot(labels, predicted, color=SECOND)

    return _svg("results", draw) if rows else None


def epsilon_by_round(report: Report) -> str:
    """Draw ε of a unit over rounds, as SVG: against one server and other owners."""
    rounds = []
    server = []
    models = []
    for row in report.rounds:
        if row.epsilon_server is not None and row.epsilon_models is not None:
            rounds.append(row.round)
            server.append(row.epsilon_server)
            models.append(row.epsilon_models)
    limit = next(
        (
            guarantee.limit
            for guarantee in report.guarantees
            if guarantee.limit is not None
        ),
        None,
    )

    def draw(axes: "Axes") -> None:
        axes.plot(rounds, server, color=SECOND, label="one server looks")
        axes.plot(
            rounds,
            models,
            color=FIRST,
            linestyle="--",
            label="other owners only",
        )
        if limit is not None:
            axes.axhline(limit, color=THIRD, linestyle=":", label="limit")
        axes.set(ylim=(0, None), xlabel="round", ylabel=f"ε of {report.unit.one}")
        axes.legend()

    return _svg("epsilon", draw)


def error_by_attackers(robustness: ReportedRobustness) -> str | None:
    """Draw the bounds on the expected error over the number of attackers, as SVG.

    None where the least number tried excludes nothing already.
    """
    bounds = robustness.bounds
    if robustness.silent_from == bounds[0].attackers:
        return None

    def draw(axes: "Axes") -> None:
        """Draw both bounds in per cent, from no attacker on, and the area between."""
        error = 100 * robustness.error
        attackers = [0, *(bound.attackers for bound in bounds)]
        low = [error, *(100 * bound.lower for bound in bounds)]
        high = [error, *(100 * bound.upper for bound in bounds)]
        axes.fill_between(
            attackers,
            low,
            high,
            color=SECOND,
            alpha=0.25,
        )
        axes.plot(
            attackers,
            high,
            color=SECOND,
            marker=".",
            label="at most",
        )
        axes.plot(
            attackers,
            low,
            color=FIRST,
            marker=".",
            linestyle="--",
            label="at least",
        )
        axes.set(ylim=(0, 100), xlim=(0, None), ylabel="expected wrong answers, %")
        axes.set_xlabel(f"bad {robustness.unit}")
        axes.legend()

    return _svg(f"bounds-{robustness.unit}", draw)


def _svg(name: str, draw: Callable[["Axes"], None]) -> str:
    """Draw one plot, and return its SVG element; the same for the same report.

    ``name`` is the plot's own on the page. ``draw`` draws on the axes that it gets, in
    the colours that stand for the page's.
    """
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    with rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        draw(axes)
        out = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=no_metadata)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # Several plots stand in one page: their identifiers must differ.
    for mark in ('id="', "url(#", 'xlink:href="#'):
        text = text.replace(mark, f"{mark}{name}-")
    for stand_in, colour in _COLOURS.items():
        text = text.replace(stand_in, colour)
    return text


def page(report: Report) -> str:
    """Return the report as one HTML page that needs no other file and no script.

    Its template is ``report_page.html``; plots are SVG elements in it.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 -- of an extra

    source = files("precad.cli").joinpath("report_page.html").read_text("utf-8")
    # What comes from a task or a database is text, never markup.
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = True
    environment.lstrip_blocks = True
    unsound = any(ledger.findings for ledger in report.ledgers)
    return environment.from_string(source).render(
        report=report,
        guarantees=[
            (guarantee, guarantee_sentence(guarantee))
            for guarantee in report.guarantees
        ],
        robustness=[
            (robustness, error_by_attackers(robustness))
            for robustness in report.robustness
        ],
        accuracy_plot=accuracy_by_round(report),
        results_plot=results_with_intervals(report.results),
        epsilon_plot=epsilon_by_round(report),
        least=least,
        most=most,
        upper=upper,
        sound=not report.differences and not unsound,
    )
