"""Survival from prefix sums by bin: Kaplan–Meier and the log-rank test.

A record is an event in its bin or leaves in it, never both, so prefix sums of both stand
side by side at the norm of one. Leaving has two more bins: still there after the last
one, and no time known. At risk in a bin are all with a known time less who left before
and half of those who leave in it: the life table's rule, which comes near to
Kaplan–Meier of exact times.

Deviations are by the delta method, whose slopes are taken by small steps.
"""

import math
from collections.abc import Callable

import numpy as np

from precad.client.decoded_prefixes import prefix_rows, rising
from precad.common import Block, Floats

_HALF = 0.5
_STEP = 1e-3
"""Records by which a prefix sum is moved to see what that changes."""


def prefixes_of(block: Block, cells: Floats, off: float = 0.0) -> Floats:
    """Return a group's prefix sums of both runs, made to rise, of its cells ``[k]``.

    Each is first moved as far as cells that are off by a vector of norm ``off``, in
    records, may move it.
    """
    rows = prefix_rows(block.column, block.runs)
    free = rows @ cells + off * np.linalg.norm(rows, axis=1)
    return np.concatenate([rising(run) for run in np.split(free, block.runs[:1])])


def curve(block: Block, prefixes: Floats, *, noise: float, z: float) -> Floats:
    """Return survival at the bins' ends, its low and its high end, ``[3, bins]``.

    Args:
        block: The query's.
        prefixes: A group's, ``[k]``.
        noise: Standard deviation of a released cell, in records.
        z: How many deviations of log S the interval has on either side.
    """
    rows = prefix_rows(block.column, block.runs)
    found = _log_survival(prefixes)
    off = z * noise * _deviation(rows, prefixes, _log_survival)
    curves: Floats = np.exp(np.minimum([found, found - off, found + off], 0.0))
    return curves


def bounded_curve(block: Block, cells: Floats, off: float) -> Floats:
    """Return survival, and between what it is of cells off by a vector of that norm.

    Log S at a bin's end is log(A_t − E_t) − log A_1, and of each earlier bin k
    log(A_k − E_k) − log(A_{k+1} − E_k). E_k are events until its end, and A_k all with
    a known time less who left before its middle. So S falls with E_t and with who left,
    and rises with all with a known time and with each earlier E_k, of which none is
    above E_t: at an extreme each prefix sum is at an end of what it may be. Once all
    may be gone nothing is known but that S doesn't rise.

    Returns ``[3, bins]``, as ``curve``, of a group's cells ``[k]``; these and ``off``
    are in records.
    """
    bins = block.runs[0]
    fewest, most = (prefixes_of(block, cells, by) for by in (-off, off))
    least_known, most_known = (each[bins - 1] + each[-2] for each in (fewest, most))
    before = np.tri(bins, k=-1, dtype=bool)

    def at_ends(events: Floats, gone: Floats, known: float) -> Floats:
        left = np.broadcast_to(gone[bins:-2], events.shape)
        after = known - events[:, -1:]
        prefixes = np.concatenate([events, left, after, after], axis=1)
        return np.exp(np.diagonal(_log_survival(prefixes)))

    of_few = fewest[:bins, np.newaxis]
    of_many = most[:bins, np.newaxis]
    low = at_ends(np.where(before, of_few.T, of_many), most, least_known)
    early = np.where(before, np.minimum(of_many.T, of_few), of_few)
    high = at_ends(early, fewest, most_known)
    some = least_known - most[:bins] - most[bins:-2] >= 1.0
    high = np.minimum.accumulate(np.where(some, high, 1.0))
    value = np.exp(_log_survival(prefixes_of(block, cells)))
    return np.array([value, low * some, high])


def median(block: Block, curves: Floats) -> tuple[float, float, float]:
    """Return the end of the first bin where half or fewer are left, and where it may be.

    A median after the last bin is that one's end. ``curves`` are ``curve``'s.
    """
    times = block.query.bounds[1:]
    value, low, high = (
        times[min(int(np.sum(each > _HALF)), len(times) - 1)] for each in curves
    )
    return value, low, high


def log_rank(block: Block, groups: Floats, *, noise: float) -> float:
    """Return the p-value of equal hazards in both groups' populations.

    Observed less expected events of the first group, over the deviation of sampling
    (hypergeometric, bin by bin) and of the noise together.

    Args:
        block: The query's.
        groups: Both groups' prefix sums, one after the other: ``[2k]``.
        noise: Standard deviation of a released cell, in records.
    """
    own = prefix_rows(block.column, block.runs)
    rows = np.asarray(np.kron(np.eye(2), own), np.float64)
    by_noise = noise * _deviation(rows, groups, lambda both: _compared(both)[0])
    off, sampled = _compared(groups)
    square = off**2 / (sampled + by_noise**2)
    return math.erfc(math.sqrt(square / 2.0))


def _compared(groups: Floats) -> tuple[Floats, Floats]:
    """Return the first group's events less those expected, and sampling's variance."""
    (first, at_risk), (second, others) = map(_life_table, np.split(groups, 2, axis=-1))
    events = first + second
    risk = at_risk + others
    share = at_risk / risk
    sampled = events * share * (1.0 - share) * (risk - events) / (risk - 1.0)
    return np.sum(first - events * share, axis=-1), np.sum(sampled, axis=-1)


def _log_survival(prefixes: Floats) -> Floats:
    """Return log S at the bins' ends, ``[…, bins]``; prefix sums are ``[…, k]``."""
    events, at_risk = _life_table(prefixes)
    found: Floats = np.cumsum(np.log1p(-events / at_risk), axis=-1)
    return found


def _life_table(prefixes: Floats) -> tuple[Floats, Floats]:
    """Return events and records at risk, ``[…, bins]`` both; at risk are more."""
    bins = prefixes.shape[-1] // 2 - 1
    ended = prefixes[..., :bins]
    gone = prefixes[..., bins:-2]
    events = np.diff(ended, prepend=0.0)
    leaving = np.diff(gone, prepend=0.0)
    known = prefixes[..., bins - 1 : bins] + prefixes[..., -2:-1]
    exposed = known - ended - gone + events + leaving / 2.0
    return events, np.maximum(exposed, np.maximum(events + 0.5, 1.0))


def _deviation(
    rows: Floats, prefixes: Floats, function: Callable[[Floats], Floats]
) -> Floats:
    """Return the deviation of a function of prefix sums, for cells of deviation 1."""
    moved = prefixes + _STEP * np.eye(len(prefixes))
    slopes = (function(moved) - function(prefixes)) / _STEP
    return np.asarray(np.linalg.norm(rows.T @ slopes, axis=0), np.float64)
