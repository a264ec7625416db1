"""What an evaluation's released cells say of a model.

Of two levels, cells are level × bin of the second one's probability: accuracy, both
recalls, AUC, log loss and calibration are ratios of sums of them. AUC and log loss are
of *binned* scores: two in one bin are a tie, and a bin's middle stands for it. Of more
levels they are true × said. Of a number they are the sums of x, 1 − x² and e², where e
is the error in halves of upper − lower, cut to 1.
"""

from collections.abc import Iterator

import numpy as np

from precad.client.answer_ratios import (
    Estimate,
    Group,
    Interval,
    moments,
    ratio,
    rooted,
)
from precad.common import BINARY, AnyNumbers, Floats

_WORST = 2.0
"""1 − R² at most."""


def of_levels(group: Group) -> Iterator[Estimate]:
    """Yield what is known of a model of levels."""
    (levels,) = group.block.levels.values()
    count = len(levels)
    cells = len(group.block.cells) - 1
    # [true, said]: what of the cells is right.
    right = np.eye(count)
    binary = count == BINARY
    bins = cells // count
    if binary:
        edges = np.array([0.0, *group.block.query.score_edges, 1.0])
        above = edges[:-1] >= 1 / BINARY
        right = np.stack([~above, above])
    ones = np.ones_like(right)

    def share(top: AnyNumbers, bottom: AnyNumbers, most: float = 1.0) -> Interval:
        above = group.of_cells(top)
        below = group.of_cells(bottom)
        return ratio(group, top=above, bottom=below, most=most)

    yield "accuracy", "value", share(right, ones)
    for place, level in enumerate(levels):
        here = (np.arange(count) == place)[:, np.newaxis]
        yield f"recall of {level}", "value", share(right * here, ones * here)
    if not binary:
        return
    middles = (edges[1:] + edges[:-1]) / 2.0
    loss = -np.log(np.stack([1.0 - middles, middles]))
    yield "log loss", "value", share(loss, ones, float(loss.max()))
    yield "AUC", "value", _area(group, bins)
    second = np.array([[0.0], [1.0]])
    for place in range(bins):
        here = np.arange(bins) == place
        scored = f"said {edges[place]:.3g} to {edges[place + 1]:.3g}"
        share_of = share(here * second, ones * here)
        yield f"{levels[1]} of those {scored}", "share", share_of


def of_numbers(group: Group) -> Iterator[Estimate]:
    """Yield R² and the root mean squared error."""
    _, off, present, around = moments(group)
    errors = group.row({2: 1.0})
    # R² below −1 counts as −1: of few records it would be anything.
    value, low, high = ratio(group, top=errors, bottom=around, most=_WORST)
    spread = ratio(group, top=around, bottom=present, most=1.0)[1]
    off *= off
    high = min(high / (1.0 - off / spread), _WORST) if spread > off else _WORST
    yield "R²", "value", (1.0 - value, 1.0 - high, 1.0 - low)
    squares = ratio(group, top=errors, bottom=present, most=1.0)
    lower, upper = group.block.query.limited
    half = (upper - lower) / 2.0
    yield "root mean squared error", "value", rooted(squares, half)


def _area(group: Group, bins: int) -> Interval:
    """Return the area under the ROC curve, U/(n₀·n₁), U pairs being in the right order.

    Its test is Fieller's, of the noise in both products to first order at the released
    cells. The estimate is of the nearest cells that are counts: none below 0. These
    rise with each released cell, so what bad owners add leaves them in a box.
    """
    cells = group.numbers[: BINARY * bins].reshape(BINARY, bins)
    (ordered, total), _ = _pairs(_counts(cells))
    value = ordered / total if total else 0.5
    if group.adversarial:
        off = group.z * group.deviations[0]
        return value, *_area_in_box(_counts(cells - off), _counts(cells + off))
    pairs, by_cell = _pairs(cells)
    right, every = map(group.of_cells, by_cell)
    _, low, high = ratio(group, top=right, bottom=every, most=1.0, values=pairs)
    return value, min(low, value), max(high, value)


def _area_in_box(least: Floats, most: Floats) -> tuple[float, float]:
    """Return the least and the most area of cells between these, both ``[2, bins]``.

    Of given cells of one level the area is a mean, of what rises or falls by bin, over
    the other level's. So at an extreme each level has its most on one side of some bin
    and its least on the other.
    """
    if not least.sum(axis=1).all():
        return 0.0, 1.0
    bins = least.shape[1]
    before = np.tri(bins + 1, bins, -1)[:, np.newaxis]
    # By cut, level and bin.
    early = np.where(before, most, least)
    late = np.where(before, least, most)

    def areas(below: Floats, above: Floats) -> Floats:
        passed = np.cumsum(below, axis=1) - below / 2.0
        every = np.outer(above.sum(axis=1), below.sum(axis=1))
        return np.asarray(above @ passed.T / every)

    low = areas(late[:, 0], early[:, 1]).min()
    high = areas(early[:, 0], late[:, 1]).max()
    return float(low), float(high)


def _pairs(cells: Floats) -> tuple[tuple[float, float], tuple[Floats, Floats]]:
    """Return pairs in the right order, and all; and how both move with each cell.

    ``cells`` are ``[2, bins]``, of the first level and the second; so are the latter.
    """
    below, above = cells
    passed = np.cumsum(below) - below / 2.0
    passing = above.sum() - np.cumsum(above) + above / 2.0
    totals = cells.sum(axis=1)
    right = np.stack([passing, passed])
    every = np.broadcast_to(totals[::-1, np.newaxis], cells.shape)
    return (float(above @ passed), float(totals.prod())), (right, every)


def _counts(cells: Floats) -> Floats:
    """Return the nearest cells that are at least 0 and have the same total.

    A constant is taken off all, and what is below 0 then is 0. All are where there is
    nothing to share out: then it is the largest.
    """
    total = max(float(cells.sum()), 0.0)
    ordered = -np.sort(-cells, axis=None)
    excess = (np.cumsum(ordered) - total) / np.arange(1, cells.size + 1)
    taken = excess[np.count_nonzero(ordered[1:] > excess[1:])]
    counts: Floats = np.maximum(cells - taken, 0.0)
    return counts
