"""What a round's lines carry over time, both ways, one system above the other."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rounds.lines import WIDE_AREA
from benchmarks.rounds.sample import (
    FIRST_MODEL,
    LAST_MODEL,
    MEAN,
    OVER,
    RECEIVED,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UP, DOWN, MARK = "#1b5e8c", "#c8553d", "#4a4a4a"
_MEGABITS = 8e-6
PANELS = (
    ("proof", "clients", "server-a", "precad, proof: owners and server A"),
    ("proof", "clients", "server-b", "precad, proof: owners and server B"),
    ("proof", "server-a", "server-b", "precad, proof: server A and server B"),
    ("crypten", "clients", "server-b", "precad, crypten: owners and server B"),
    ("crypten", "server-a", "server-b", "precad, crypten: server A and server B"),
    ("fed_avg", "clients", "server", "plain averaging, float32: owners and server"),
    ("flower", "clients", "server", "Flower FedAvg, float32: owners and server"),
)
"""System, whose line it is, to whom, and the title."""
MARKS = {
    FIRST_MODEL: "first model there",
    LAST_MODEL: "last model there",
    RECEIVED: "last receipt",
    "server A: collect": "collection closes",
    "server A: validate": "sum agreed",
    "server A: release": "shares joined, model agreed",
    OVER: "all have heard of the end",
    MEAN: "the server has the mean",
}
"""Moments that are marked, as the picture has them."""
_OF_SERVERS = ("collection closes", "sum agreed", "shares joined, model agreed")
_LEVELS = 3
"""Heights of the names of marks."""


def draw(path: Path, case: Mapping[str, Any]) -> None:
    """Write one typical round of each system on the slow link, on one axis of time.

    Args:
        path: its suffix chooses PNG, PDF or SVG.
        case: of a document, measured on the slow link.
    """
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    slow = case["slow"]
    panels = [panel for panel in PANELS if panel[0] in slow]
    figure = Figure(figsize=(10, 1 + 1.8 * len(panels)), layout="constrained")
    rows = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)
    most = WIDE_AREA.bytes_per_s * _MEGABITS
    for axes, (system, near, far, title) in zip(rows[:, 0], panels, strict=True):
        found = slow[system]["over_time"]
        _lines(axes, found, near, far)
        _marks(axes, found["moments"], of_servers=near != "clients")
        axes.set_title(
            f"{title}; a round of {found['round_s']:.2f} s", loc="left", fontsize=10
        )
        axes.set_ylim(-1.1 * most, 2.05 * most)
        axes.set_yticks([-most, 0, most], [f"{most:g}", "0", f"{most:g}"])
        axes.grid(visible=True, alpha=0.25)
        for side in ("right", "top"):
            axes.spines[side].set_visible(False)
    longest = max(slow[system]["over_time"]["round_s"] for system, *_ in panels)
    last = rows[-1, 0]
    last.set_xlim(0, longest + 0.05)
    last.set_xlabel("seconds from the round's beginning")
    figure.supylabel("Mbit/s on the line", fontsize=10)
    handles, labels = rows[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9
    )
    figure.suptitle(
        f"One round on lines of {most:g} Mbit/s and {1e3 * WIDE_AREA.delay_s:g} ms:"
        f" d = {case['dimension']:,}, n = {case['clients']}",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def _lines(axes: "Axes", found: Mapping[str, Any], near: str, far: str) -> None:
    """Both ways of one line, what goes to ``far`` above zero."""
    stretch_s = found["stretch_s"]
    for link, sign, colour, label in (
        (f"{near} to {far}", 1, UP, "up to the server; A to B"),
        (f"{far} to {near}", -1, DOWN, "down to the owners; B to A"),
    ):
        counts = [int(each) for each in found["kilobytes"].get(link, "").split()]
        rates = [sign * 1e3 * count * _MEGABITS / stretch_s for count in counts]
        starts = [stretch_s * number for number in range(len(rates))]
        axes.bar(
            starts, rates, width=stretch_s, align="edge", color=colour, label=label
        )


def _marks(axes: "Axes", moments: Mapping[str, float], *, of_servers: bool) -> None:
    """Lines across a panel, each with its name; a line of servers has their moments."""
    marked = [
        (moments[name], label)
        for name, label in MARKS.items()
        if name in moments and (label in _OF_SERVERS) == of_servers
    ]
    most = WIDE_AREA.bytes_per_s * _MEGABITS
    for number, (at_s, label) in enumerate(sorted(marked)):
        axes.axvline(at_s, color=MARK, linewidth=0.8, linestyle="--")
        axes.annotate(
            label,
            # Above all bars, and names that are near one another one above the other.
            (at_s, most * (1.1 + 0.3 * (number % _LEVELS))),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=MARK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
