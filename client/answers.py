"""What a released sum answers, and how far the noise may have moved each answer.

An answer is a ratio of two sums of released numbers, and the noise's size is public: so
an interval holds the values that its own test doesn't reject (Fieller), where both
servers drew their noise. It is about the records that were pooled, with values clipped
as asked, and says nothing of a population that they may be drawn from. The simultaneous
intervals hold all at once (Šidák).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.fixed_point import Floats
from precad.common.frozen import frozen_kw_only_dataclass
from precad.common.mechanism import owner_bound
from precad.common.model import ModelVector
from precad.common.questions import Block
from precad.common.task import Task

CONFIDENCE = 0.95
"""Of each interval, and of all simultaneous ones together."""
_TINY = 1e-9
"""Stands for a denominator that noise made zero or less."""


@frozen_kw_only_dataclass
class Answer:
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


_Found = tuple[str, str, float, float, float]
"""What it is of, the measure, value, low and high."""


def answers_of(
    task: Task, released: ModelVector, records: int | None = None
) -> list[Answer]:
    """Return all answers of a task that asks.

    ``released`` is the decoded sum, ``[d]``; ``records`` how many all counted owners
    have, which both servers state. Raises Misconfiguration: a mean needs it.
    """
    numbers = np.ldexp(released.astype(np.float64), task.fractional_bits)
    noise = math.sqrt(2.0) * task.mechanism.noise_units
    groups = [
        _Group.of(block, at, numbers=numbers, noise=noise, task=task, records=records)
        for block in task.blocks
        for at in range(len(block.groups))
    ]
    half = (1.0 + CONFIDENCE) / 2.0
    alone = [(group, list(group.found(half))) for group in groups]
    count = sum(len(found) for _, found in alone)
    both = (1.0 + CONFIDENCE ** (1.0 / count)) / 2.0
    norm = owner_bound(task.privacy.record_clip, task.fractional_bits)
    return [
        Answer(
            query=group.block.query.name,
            group=group.name,
            of=of,
            measure=measure,
            value=value,
            low=low,
            high=high,
            low_together=wide[-2],
            high_together=wide[-1],
            moved_by_record=norm / group.block.unit if measure == "count" else None,
        )
        for group, found in alone
        for (of, measure, value, low, high), wide in zip(
            found, group.found(both), strict=True
        )
    ]


def expected_error(task: Task, block: Block) -> float:
    """Return how far noise moves a block's count at 95 %: half its interval."""
    noise = math.sqrt(2.0) * task.mechanism.noise_units / block.unit
    return NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0) * noise


@dataclass(frozen=True, slots=True)
class _Group:
    """One group's released cells in records, then how many it has, then 1."""

    block: Block
    name: str
    numbers: Floats
    deviations: Floats
    """Standard deviations of the noise in ``numbers``."""

    @classmethod
    def of(
        cls,
        block: Block,
        at: int,
        *,
        numbers: NDArray[np.float64],
        noise: float,
        task: Task,
        records: int | None,
    ) -> "_Group":
        """Take group ``at`` of a block out of all released ``numbers``, ``[d]``."""
        cells = len(block.cells)
        first = block.start + at * cells
        count = math.nan if records is None else float(records)
        deviation = 0.0
        counting = task.questions and task.questions.counting(block.query)
        if block.query.kind == "mean" and counting:
            (other,) = (each for each in task.blocks if each.query == counting)
            count = numbers[other.start + at] / other.unit
            deviation = noise / other.unit
        elif block.query.kind == "mean" and records is None:
            raise Misconfiguration(
                "records", None, "a mean needs how many records count: give them all"
            )
        own = numbers[first : first + cells] / block.unit
        return cls(
            block,
            block.groups[at],
            np.array([*own, count, 1.0]),
            np.array([noise / block.unit] * cells + [deviation, 0.0]),
        )

    def found(self, quantile: float) -> Iterator[_Found]:
        """Yield every answer with the interval of a two-sided test."""
        z = NormalDist().inv_cdf(quantile)
        cells = self.block.cells
        if self.block.query.kind == "mean":
            yield from self._moments(z)
            yield cells[2], "count", *self._ratio({2: 1.0}, {-1: 1.0}, z=z)
            return
        for place, cell in enumerate(cells):
            yield cell, "count", *self._ratio({place: 1.0}, {-1: 1.0}, z=z)
        if self.block.query.kind != "count":
            whole = dict.fromkeys(range(len(cells)), 1.0)
            for place, cell in enumerate(cells):
                yield cell, "share", *self._ratio({place: 1.0}, whole, z=z, most=1.0)

    def _moments(self, z: float) -> Iterator[_Found]:
        """Yield mean and standard deviation, of records with a value."""
        query = self.block.query
        lower = query.lower or 0.0
        scale = ((query.upper or 0.0) - lower) / 2.0
        present = {-2: 1.0, 2: -1.0}
        mean, low, high = self._ratio({0: 1.0}, present, z=z, least=-1.0, most=1.0)
        in_unit = [lower + scale * (1.0 + x) for x in (mean, low, high)]
        yield "mean", "value", *in_unit
        # v = 1 − Σ(1 − x²)/n − m², along its tangent in m: that is a ratio again, and
        # lies above v by (m − m̂)².
        top = {1: 1.0, 0: 2.0 * mean}
        lost, least, most = self._ratio(
            top, present, z=z, least=mean**2, most=1.0 + mean**2
        )
        off = max(high - mean, mean - low) ** 2
        variances = (lost, most + off, least)
        deviations = [math.sqrt(max(0.0, 1.0 + mean**2 - v)) for v in variances]
        yield "standard deviation", "value", *(scale * each for each in deviations)

    def _ratio(
        self,
        top: dict[int, float],
        bottom: dict[int, float],
        *,
        z: float,
        least: float = 0.0,
        most: float = math.inf,
    ) -> tuple[float, float, float]:
        """Return a ratio of sums of numbers, and the ends of what its test accepts.

        ``top`` and ``bottom`` have factors by place; the truth is in [least, most]. p is
        accepted where (a − p·b)² ≤ z²·Var(a − p·b).
        """
        a, b = (self._sum(each) for each in (top, bottom))
        squares = {place: z * z * d * d for place, d in enumerate(self.deviations)}
        size = len(self.numbers)

        def covariance(one: dict[int, float], other: dict[int, float]) -> float:
            return math.fsum(
                factor * other.get(place, 0.0) * squares[place % size]
                for place, factor in one.items()
            )

        second = b * b - covariance(bottom, bottom)
        first = a * b - covariance(top, bottom)
        rest = a * a - covariance(top, top)
        value = a / max(b, _TINY)
        accepted = [
            p
            for p in (least, most)
            if math.isfinite(p) and (second * p - 2.0 * first) * p + rest <= 0.0
        ]
        root = first * first - second * rest
        if root >= 0.0 and second:
            ends = [(first + sign * math.sqrt(root)) / second for sign in (-1.0, 1.0)]
            accepted += [p for p in ends if least <= p <= most]
        if not math.isinf(most):
            value = min(max(value, least), most)
        accepted = accepted or [min(max(value, least), most)]
        return value, min(accepted), max(accepted)

    def _sum(self, factors: dict[int, float]) -> float:
        return math.fsum(
            factor * self.numbers[place] for place, factor in factors.items()
        )
