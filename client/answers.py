"""What a released sum answers, and how far the noise may have moved each answer.

An answer is a ratio of two sums of released numbers, and the noise's size is public: so
an interval holds the values that its own test doesn't reject (Fieller), where both
servers drew their noise. It is about the records that were pooled, with values clipped
as asked, and says nothing of a population that they may be drawn from. The simultaneous
intervals hold all at once (Šidák).
"""

import math
from collections.abc import Iterator
from functools import partial
from statistics import NormalDist

import numpy as np

from precad.client.answer_ratios import (
    UNKNOWN,
    Estimate,
    Group,
    moments,
    ratio,
    rooted,
)
from precad.client.answers_of_models import of_levels, of_numbers
from precad.client.answers_of_rows import of_rows
from precad.client.decoded_prefixes import prefix_rows
from precad.client.independence import independence
from precad.client.quantiles import quantile_interval
from precad.client.results import Answer
from precad.client.survival import (
    bounded_curve,
    curve,
    log_rank,
    median,
    prefixes_of,
)
from precad.common import (
    BOX_PLOT,
    MISSING,
    Block,
    Floats,
    Misconfiguration,
    ModelVector,
    Task,
)

CONFIDENCE = 0.95
"""Of each interval, and of all simultaneous ones together."""
_ALONE = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
"""z of an interval by itself."""


def answers_of(
    task: Task,
    released: ModelVector,
    records: int | None = None,
    *,
    bad_records: int = 0,
) -> list[Answer]:
    """Return all answers of a task that asks.

    ``released`` is the decoded sum, ``[d]``; ``records`` how many all counted owners
    have, which both servers state; ``bad_records`` how many of them bad owners have.
    Raises Misconfiguration: a mean needs their number.
    """
    estimates = partial(estimates_of, task, released, records)
    alone = list(estimates())
    each_of_all = CONFIDENCE ** (1.0 / len(alone))
    together = estimates(z=NormalDist().inv_cdf((1.0 + each_of_all) / 2.0))
    without = [UNKNOWN for _ in alone]
    if bad_records:
        # They add a vector of norm b·R at most, and noise has √2·σ·R'. So what their
        # vectors may be is a ball, as what noise may be at b·R/(√2·σ·R') deviations.
        mechanism = task.mechanism
        noise = mechanism.noise_multiplier * mechanism.sensitivity
        ball = bad_records * mechanism.unit_clip / (math.sqrt(2.0) * noise)
        without = [
            bounds for *_, (_, _, bounds) in estimates(z=ball, off=bad_records / ball)
        ]
    answers = []
    for (block, at, (of, measure, interval)), (*_, others), bounds in zip(
        alone, together, without, strict=True
    ):
        value, low, high = interval
        _, low_together, high_together = others[-1]
        _, low_without_bad, high_without_bad = bounds
        moved = moved_by_record(task, block) if measure == "count" else None
        bounded = math.isfinite(low_without_bad)
        answers.append(
            Answer(
                query=block.query.name,
                group=block.groups[at],
                of=of,
                measure=measure,
                value=value,
                low=low,
                high=high,
                low_together=low_together,
                high_together=high_together,
                moved_by_record=moved,
                low_without_bad=low_without_bad if bounded else None,
                high_without_bad=high_without_bad if bounded else None,
            )
        )
    return answers


def estimates_of(
    task: Task,
    released: ModelVector,
    records: int | None,
    *,
    z: float = _ALONE,
    off: float = 0.0,
) -> Iterator[tuple[Block, int, Estimate]]:
    """Yield all answers at z deviations, by block and group; ``off`` as of ``_group``.

    Raises Misconfiguration: as ``answers_of``.
    """
    for block in task.blocks:
        for at in range(len(block.groups)):
            group = _group(
                task, block, at, released=released, records=records, off=off, z=z
            )
            for estimate in _estimates(group):
                yield block, at, estimate


def moved_by_record(task: Task, block: Block) -> float:
    """Return the most that a bad owner moves a block's count, for each of its records.

    All of R may go into one cell, of which an honest record has u; or, of a quantile's
    rank, into that rank's row.
    """
    most = math.ldexp(task.mechanism.unit_clip, task.fractional_bits)
    return most / block.unit * _longest_row(block)


def rank_error(task: Task, block: Block) -> float:
    """Return how far noise moves a block's last rank, at 95 %, in records."""
    return _ALONE * cell_deviation(task, block) * _longest_row(block)


def cell_deviation(task: Task, block: Block) -> float:
    """Return the standard deviation of both servers' noise in a released number."""
    return math.sqrt(2.0) * task.mechanism.noise_units / block.unit


def _longest_row(block: Block) -> float:
    """Return the largest norm of what makes a count, or a prefix sum, of cells."""
    if not block.runs:
        return 1.0
    return float(np.linalg.norm(prefix_rows(block.column, block.runs)[-1]))


def _group(
    task: Task,
    block: Block,
    at: int,
    *,
    released: ModelVector,
    records: int | None,
    off: float,
    z: float,
) -> Group:
    """Return group ``at`` of a block; ``off`` is the deviation of ``records``.

    Honest owners state them exactly: above 0 it is for what bad ones may add.

    Raises Misconfiguration: as ``answers_of``.
    """
    query = block.query
    if off and (query.has_numbers or query.kind == "evaluation"):
        # Sums are moved in two ways at once, of which a norm is tested.
        z *= math.sqrt(2.0)
    counting = None
    if query.has_numbers and task.questions is not None:
        counting = task.questions.counting(query)
        if counting is None and records is None:
            remedy = "say how many records all counted owners have: a mean needs it"
            raise Misconfiguration("records", None, remedy)

    def cells(block: Block, at: int) -> Floats:
        first = block.start + at * len(block.cells)
        own = released[first : first + len(block.cells)].astype(np.float64)
        return np.ldexp(own, task.fractional_bits) / block.unit

    of_count = np.array([float(records or 0)]), off
    for other in task.blocks:
        if other.query == counting:
            of_count = cells(other, at), cell_deviation(task, other)
    count, count_off = of_count
    own = cells(block, at)
    return Group(
        block=block,
        name=block.groups[at],
        numbers=np.concatenate([own, count, [1.0]]),
        deviations=np.append(
            [cell_deviation(task, block)] * len(own), [count_off, 0.0]
        ),
        first=cells(block, 0),
        z=z,
        adversarial=off > 0.0,
    )


def _estimates(group: Group) -> Iterator[Estimate]:
    """Yield a group's answers with the intervals of a two-sided test."""
    block = group.block
    query = block.query
    one = group.row({-1: 1.0})
    missing = group.row({len(block.cells) - 1: 1.0})
    if block.runs:
        sums = prefix_rows(block.column, block.runs)
        missing = group.of_cells(sums[-1] - sums[-2])
    if block.runs or block.row or query.kind == "evaluation":
        yield MISSING, "count", ratio(group, top=missing, bottom=one)
        if block.runs:
            yield from _of_runs(group)
        elif block.row:
            yield from of_rows(group)
        elif query.evaluates_number:
            yield from of_numbers(group)
        else:
            yield from of_levels(group)
        return
    if query.kind == "cross-table":
        shape = [len(levels) + 2 for levels in block.levels.values()]
        table = group.numbers[:-2].reshape(shape)[:-2, :-2]
        p_value = UNKNOWN
        if not group.adversarial:
            p_value = 3 * (independence(table, noise=group.deviations[0]),)
        yield "independent in the population", "p-value", p_value
    whole = group.of_cells(np.ones(len(block.cells)))
    for place, cell in enumerate(block.cells):
        row = group.row({place: 1.0})
        # Sums of x aren't answers by themselves.
        if query.kind != "mean" or row[2]:
            yield cell, "count", ratio(group, top=row, bottom=one)
        if query.kind in ("shares", "cross-table", "histogram"):
            yield cell, "share", ratio(group, top=row, bottom=whole, most=1.0)
    if query.lower is None or query.upper is None:
        return
    scale = (query.upper - query.lower) / 2.0
    of_x, off, present, around = moments(group)
    mean, low, high = (query.lower + scale * (1.0 + x) for x in of_x)
    yield "mean", "value", (mean, low, high)
    variance, low, high = ratio(group, top=around, bottom=present, most=1.0)
    squares = variance, low - off * off, high
    yield "standard deviation", "value", rooted(squares, scale)


def _of_runs(group: Group) -> Iterator[Estimate]:
    """Yield what is found from prefix sums."""
    block = group.block
    noise = float(group.deviations[0])
    cells = group.numbers[:-2]
    if block.query.kind == "quantiles":
        # Between what the test of an answer by itself leaves, with other cells too.
        z = group.z + _ALONE * group.adversarial
        for rank in block.query.quantiles or BOX_PLOT:
            found = quantile_interval(
                block, cells, rank, noise=noise, z=z, any_width=group.adversarial
            )
            yield f"quantile {rank:g}", "value", found
        return
    prefixes = prefixes_of(block, cells)
    if group.adversarial:
        curves = bounded_curve(block, cells, group.z * noise)
    else:
        curves = curve(block, prefixes, noise=noise, z=group.z)
    times = block.query.bounds[1:]
    for time, (value, low, high) in zip(times, curves.T, strict=True):
        yield f"survival at {time:g}", "share", (value, low, high)
    yield "median", "value", median(block, curves)
    first, *others = block.groups
    if others == [group.name]:
        both = np.append(prefixes_of(block, group.first), prefixes)
        p_value = 3 * (log_rank(block, both, noise=noise),)
        of = f"hazard as of {first} in the population"
        yield of, "p-value", UNKNOWN if group.adversarial else p_value
