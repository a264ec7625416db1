"""What a released sum answers, and how far the noise may have moved each answer.

An answer is a ratio of two sums of released numbers, and the noise's size is public: so
an interval holds the values that its own test doesn't reject (Fieller), where both
servers drew their noise. It is about the records that were pooled, with values clipped
as asked, and says nothing of a population that they may be drawn from. The simultaneous
intervals hold all at once (Šidák).
"""

import math
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
from pydantic import BaseModel

from precad.common import (
    Block,
    Floats,
    Misconfiguration,
    ModelVector,
    Task,
    frozen_kw_only_dataclass,
)

CONFIDENCE = 0.95
"""Of each interval, and of all simultaneous ones together."""
_TINY = 1e-9
"""Stands for a denominator that noise made zero or less."""


class Answer(BaseModel, frozen=True, use_attribute_docstrings=True):
    """One answer, in the column's own unit, with its intervals."""

    query: str
    group: str
    """The level of `by`; empty without it."""
    of: str
    """A level, a bin, `records`, `mean`, `standard deviation` or `missing`."""
    measure: str
    """`count`, `share` or `value`."""
    value: float
    """As released: a count may be below 0."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Its upper end."""
    low_together: float
    """Lower end of the interval that holds with all others at once."""
    high_together: float
    """Its upper end."""
    moved_by_record: float | None
    """Of a count: one bad owner of b records moves it by at most b times this."""


_Interval = tuple[float, float, float]
"""Value, low and high."""
_Estimate = tuple[str, str, _Interval]
"""What it is of, the measure, and these."""


def answers_of(
    task: Task, released: ModelVector, records: int | None = None
) -> list[Answer]:
    """Return all answers of a task that asks.

    ``released`` is the decoded sum, ``[d]``; ``records`` how many all counted owners
    have, which both servers state. Raises Misconfiguration: a mean needs it.
    """
    groups = [
        _group(task, block, at, released=released, records=records)
        for block in task.blocks
        for at in range(len(block.groups))
    ]
    half = (1.0 + CONFIDENCE) / 2.0
    alone = [list(_estimates(group, half)) for group in groups]
    half = (1.0 + CONFIDENCE ** (1.0 / sum(map(len, alone)))) / 2.0
    return [
        Answer(
            query=group.block.query.name,
            group=group.name,
            of=of,
            measure=measure,
            value=value,
            low=low,
            high=high,
            low_together=low_together,
            high_together=high_together,
            moved_by_record=moved_by_record(task, group.block)
            if measure == "count"
            else None,
        )
        for group, estimates in zip(groups, alone, strict=True)
        for (of, measure, (value, low, high)), (
            _,
            _,
            (_, low_together, high_together),
        ) in zip(estimates, _estimates(group, half), strict=True)
    ]


def moved_by_record(task: Task, block: Block) -> float:
    """Return the most that a bad owner moves a block's count, for each of its records.

    All of R may go into one cell, of which an honest record has u.
    """
    return task.mechanism.sensitivity_units / block.unit


def deviation(task: Task, block: Block) -> float:
    """Return the standard deviation of both servers' noise in a block's count."""
    return math.sqrt(2.0) * task.mechanism.noise_units / block.unit


@frozen_kw_only_dataclass
class _Group:
    """One group's released cells in records, then how many it has, then 1."""

    block: Block
    name: str
    numbers: Floats
    """``[k + 2]``."""
    deviations: Floats
    """Standard deviations of the noise in them."""

    def row(self, factors: dict[int, float]) -> Floats:
        """Return ``[k + 2]`` factors, 0 but at these places."""
        row = np.zeros(len(self.numbers))
        row[list(factors)] = list(factors.values())
        return row


def _group(
    task: Task,
    block: Block,
    at: int,
    *,
    released: ModelVector,
    records: int | None,
) -> _Group:
    """Return group ``at`` of a block. Raises Misconfiguration: as ``answers_of``."""
    counting = None
    if block.query.kind == "mean" and task.questions is not None:
        counting = task.questions.counting(block.query)
        if counting is None and records is None:
            remedy = "say how many records all counted owners have: a mean needs it"
            raise Misconfiguration("records", None, remedy)

    def cells(block: Block) -> Floats:
        first = block.start + at * len(block.cells)
        own = released[first : first + len(block.cells)].astype(np.float64)
        return np.ldexp(own, task.fractional_bits) / block.unit

    of_count = np.array([float(records or 0)]), 0.0
    for other in task.blocks:
        if other.query == counting:
            of_count = cells(other), deviation(task, other)
    count, off = of_count
    own = cells(block)
    return _Group(
        block=block,
        name=block.groups[at],
        numbers=np.concatenate([own, count, [1.0]]),
        deviations=np.array([deviation(task, block)] * len(own) + [off, 0.0]),
    )


def _estimates(group: _Group, quantile: float) -> Iterator[_Estimate]:
    """Yield a group's answers with the intervals of a two-sided test."""
    z = NormalDist().inv_cdf(quantile)
    query = group.block.query
    one = group.row({-1: 1.0})
    for place, cell in enumerate(group.block.cells):
        row = group.row({place: 1.0})
        # Sums of x aren't answers by themselves.
        if query.kind != "mean" or row[2]:
            yield cell, "count", _ratio(group, top=row, bottom=one, z=z)
        if query.kind in ("shares", "histogram"):
            whole = np.append(np.ones(len(group.block.cells)), [0.0, 0.0])
            yield cell, "share", _ratio(group, top=row, bottom=whole, z=z, most=1.0)
    if query.lower is None or query.upper is None:
        return
    scale = (query.upper - query.lower) / 2.0
    present = group.row({-2: 1.0, 2: -1.0})
    sum_x = group.row({0: 1.0})
    of_x = _ratio(group, top=sum_x, bottom=present, z=z, least=-1.0, most=1.0)
    mean, low, high = (query.lower + scale * (1.0 + x) for x in of_x)
    yield "mean", "value", (mean, low, high)
    # v = 1 − Σ(1 − x²)/n − m², along its tangent in m: that is a ratio again, and it
    # lies above v by (m − m̂)².
    m = of_x[0]
    top = group.row({0: 2.0 * m, 1: 1.0})
    lost, least, most = _ratio(
        group, top=top, bottom=present, z=z, least=m * m, most=1.0 + m * m
    )
    most += max(of_x[2] - m, m - of_x[1]) ** 2
    value, low, high = (
        scale * math.sqrt(max(0.0, 1.0 + m * m - v)) for v in (lost, most, least)
    )
    yield "standard deviation", "value", (value, low, high)


def _ratio(
    group: _Group,
    *,
    top: Floats,
    bottom: Floats,
    z: float,
    least: float = 0.0,
    most: float = math.inf,
) -> _Interval:
    """Return a ratio of sums of numbers, and the ends of what its test accepts.

    ``top`` and ``bottom`` are factors of the numbers; the truth is in [least, most]. p
    is accepted where (a − p·b)² ≤ z²·Var(a − p·b).
    """
    a, b = (float(each @ group.numbers) for each in (top, bottom))
    above, below = (each * z * group.deviations for each in (top, bottom))
    second = b * b - below @ below
    first = a * b - above @ below
    rest = a * a - above @ above
    accepted = [
        p
        for p in (least, most)
        if p < math.inf and (second * p - 2.0 * first) * p + rest <= 0.0
    ]
    square = first * first - second * rest
    if square >= 0.0 and second:
        ends = (first + math.sqrt(square) * np.array([-1.0, 1.0])) / second
        accepted += [float(p) for p in ends if least <= p <= most]
    value = a / max(b, _TINY)
    inside = min(max(value, least), most)
    if most < math.inf:
        value = inside
    accepted = accepted or [inside]
    return float(value), min(accepted), max(accepted)
