"""Pictures of answers: one a query, with each answer's 95 % interval."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from precad.client.results import Answer
from precad.common import Block

_ROW = 0.24
"""Inches that an answer takes."""
_LEAST_SHOWN = 1e-3
"""Slopes differ by powers of ten: the scale is logarithmic beyond it, or the least."""


def draw(folder: Path, blocks: Sequence[Block], answers: Sequence[Answer]) -> None:
    """Write a picture of each query, numbered by its place in the task.

    It has a row for each answer, or of survival each group's curve.
    """
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for number, block in enumerate(blocks, start=1):
        query = block.query
        of_times = query.kind == "survival"
        own = [each for each in answers if each.query == query.name]
        # Values say more than shares, and these than counts: alphabetically the last.
        measure = "share" if of_times else max(each.measure for each in own)
        shown = [each for each in own if each.measure == measure]
        # Of a row's numbers what compares: covariances have units of their own.
        compared = [
            each for each in shown if each.of.startswith(("slope", "correlation"))
        ]
        shown = compared or shown
        height = 4.0 if of_times else 1.2 + _ROW * len(shown)
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axes = figure.subplots()
        axes.set_title(f"{query.name}: {measure}, 95 %", loc="left")
        if query.kind == "least-squares":
            least = min(abs(each.value) for each in compared)
            axes.set_xscale("symlog", linthresh=max(least, _LEAST_SHOWN))
        for group in block.groups:
            rows = [each for each in shown if each.group == group]
            values, low, high = np.array(
                [(each.value, each.low, each.high) for each in rows]
            ).T
            if of_times:
                times = query.bounds[1:]
                axes.fill_between(times, low, high, alpha=0.25)
                axes.plot(times, values, label=group or "all")
            else:
                labels = [f"{group} {each.of}" for each in rows]
                axes.barh(labels, values, alpha=0.3)
                axes.hlines(labels, low, high)
        if of_times:
            axes.set(xlabel=query.column, ylim=(0, 1), xlim=(0, None))
            axes.legend()
        else:
            axes.invert_yaxis()
        figure.savefig(folder / f"{number}.png", dpi=150)
