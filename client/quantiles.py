"""Quantiles from prefix sums: each bin is tested by the rank's deviation.

The q-quantile is in the first bin whose prefix sum P reaches q·N, N being how many
values there are. A bin stands unless one of two one-sided tests rejects it:

- the rank is reached there: then every P from it on is at least q·N, and so is the mean
  of any few of them;
- it isn't reached before: then every P before it is below q·N, and so is any mean.

A mean is Gaussian with a known deviation, so each test errs as often as it says. Single
prefix sums are rough, and what is printed reaches from the first to the last bin that
stands: means make that a third as wide. They say less where their bins have many
records, so they take up fewer bins the more records seem to be around the rank.
"""

from functools import cache

import numpy as np

from precad.client.decoded_prefixes import prefix_rows, rising
from precad.common import Block, Booleans, Floats

_NEAR = 0.3
"""Deviations of a prefix sum: bins within so many of the rank may share a mean."""
_MOST_BITS = 6
"""A mean is of 2^6 bins at most."""


def quantile_interval(
    block: Block,
    cells: Floats,
    rank: float,
    *,
    noise: float,
    z: float,
    any_width: bool = False,
) -> tuple[float, float, float]:
    """Return a quantile and the ends of the bins that stand, in the column's scale.

    Args:
        block: A query's for quantiles.
        cells: A group's released cells in records, ``[k]``; the last is of missing
            values.
        rank: q, between 0 and 1.
        noise: Standard deviation of each cell.
        z: How many deviations a test allows.
        any_width: Whether the ends hold all that stands by means of any width, such as
            those of other cells than these.
    """
    rows = prefix_rows(block.column, block.runs)[:-1]
    prefixes = rows @ cells
    seem = rising(prefixes)
    reached = rank * seem[-1]
    near = np.abs(seem - reached) / (noise * np.linalg.norm(rows[-1]))
    bits = min(_MOST_BITS, int(np.count_nonzero(near < _NEAR)).bit_length())

    def stand(width: int) -> Booleans:
        deviations = noise * _deviations(block.column, rank, width)
        tested = _centred(prefixes, rank, width) / deviations
        # The last bin has reached every rank, and none is before the first.
        reaches = np.append(tested[width - 1 : -1] >= -z, True)
        reaches[1:] &= tested[: len(reaches) - 1] < z
        return reaches

    widths = range(_MOST_BITS + 1) if any_width else [bits]
    stands = np.any([stand(1 << each) for each in widths], axis=0)
    if not stands.any():
        # Of single prefix sums, the first that reaches the rank always stands.
        stands = stand(1)
    found = np.flatnonzero(stands)
    bounds = block.query.bounds
    low = bounds[found[0]]
    high = bounds[found[-1] + 1]
    value = float(np.interp(reached, np.append(0.0, seem), bounds))
    return min(max(value, low), high), low, high


@cache
def _deviations(column: tuple[int, ...], rank: float, width: int) -> Floats:
    """Return the deviations of ``_centred`` for cells of deviation 1."""
    rows = prefix_rows(column, (len(column),))[:-1]
    deviations: Floats = np.linalg.norm(_centred(rows, rank, width), axis=1)
    return deviations


def _centred(prefixes: Floats, rank: float, width: int) -> Floats:
    """Return means of so many prefix sums, less q·N: of all that begin or end inside.

    ``prefixes`` are ``[bins, …]``; the result is ``[bins + width − 1, …]``.
    """
    begin = np.arange(1 - width, len(prefixes))
    first = np.maximum(begin, 0)
    last = np.minimum(begin + width, len(prefixes))
    sums = np.cumsum(np.concatenate([0.0 * prefixes[:1], prefixes]), axis=0)
    means = (sums[last] - sums[first]).T / (last - first)
    centred: Floats = means.T - rank * prefixes[-1]
    return centred
