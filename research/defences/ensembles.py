"""What other defences promise of the same votes, for their own way of training."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precad.certify.guarantee import LARGEST_GROUP
from precad.certify.intervals import Intervals, vote_counts
from precad.certify.prediction import largest_group
from precad.common.arrays import Booleans, Floats, Integers
from precad.common.checks import count, positive, rate


@dataclass(frozen=True, slots=True)
class DefenceRadii:
    """Radii to draw beside this system's; not its certificates.

    Attributes:
        defence: its name.
        labels: [points] int64, the clean predictions.
        certified: [points] bool; False where the defence says nothing.
        radius: [points] int64, so many changed records; 0 where not ``certified``.
    """

    defence: str
    labels: Integers
    certified: Booleans
    radius: Integers


def ma_expectation_bound(
    value: npt.ArrayLike, k: int, epsilon: float, delta: float
) -> Floats:
    """Ma, Zhu, Hsu 2019: e^{−kε}(J + δ/(e^ε − 1)) − δ/(e^ε − 1), at least 0, for J in [0, 1].

    A statistical certificate: of an expectation over the test set (the accuracy, say),
    not of one point's prediction. Expanded, it is Xie Thm 3's lower bound.
    """
    offset = rate("delta", delta) / math.expm1(positive("epsilon", epsilon))
    decayed = math.exp(-count("k", k) * epsilon) * (
        np.asarray(value, dtype=np.float64) + offset
    )
    return np.maximum(0.0, decayed - offset)


def bagging_holds(
    p_a: Floats, p_b: Floats, k: int, training_size: int, bag_size: int
) -> Booleans:
    """Jia, Cao, Gong 2021, Thm 1: whether A stays ahead after k records were changed.

    Bags of s records are drawn with replacement from n. A changed data set of n'
    records shares m = max(n, n') − k with the clean one, and a bag avoids the rest with
    probability (m/n)^s and (m/n')^s. So A stays ahead when p_A − p_B > 1 + (n'/n)^s −
    2(m/n)^s for all n' in [n−k, n+k].
    """
    n, s = training_size, bag_size
    if k >= n:
        return np.zeros(len(p_a), dtype=bool)
    # Below n the right side grows with n'; above, it peaks where (n'/(n'−k))^{s−1} = 2.
    sizes = {n, n + k}
    if s > 1 and k:
        peak = k / -math.expm1(-math.log(2) / (s - 1))
        sizes |= {
            min(max(size, n), n + k) for size in (math.floor(peak), math.ceil(peak))
        }
    worst = max((size / n) ** s - 2 * ((size - k) / n) ** s for size in sizes)
    return np.asarray(p_a - p_b > 1 + worst)


def bagging_radii(
    intervals: Intervals, training_size: int, bag_size: int, limit: int = LARGEST_GROUP
) -> DefenceRadii:
    """Radii of an ensemble trained on bags; any mix of k additions, deletions and changes.

    Args:
        intervals: from the votes of models each trained on its own bag.
        training_size: n.
        bag_size: s, records drawn with replacement.
        limit: largest group searched.
    """
    count("training_size", training_size, least=1)
    count("bag_size", bag_size, least=1)
    certified = intervals.p_a > intervals.p_b
    radius = np.zeros(len(certified), dtype=np.int64)
    a, b = intervals.p_a[certified], intervals.p_b[certified]
    radius[certified] = largest_group(
        lambda k, i: bagging_holds(a[i], b[i], k, training_size, bag_size),
        len(a),
        limit,
    )
    return DefenceRadii("bagging", intervals.labels, certified, radius)


def partition_radii(counts: npt.ArrayLike) -> DefenceRadii:
    """Deep partition aggregation (Levine and Feizi 2021, Thm 1), deterministic.

    Each model saw one part of the data, chosen by a hash, so one added or deleted
    record moves one vote: radius ⌊(n_c − max_{c'≠c}(n_{c'} + 1[c' < c]))/2⌋, ties going
    to the lower class.

    Args:
        counts: [points, classes], one vote a partition.
    """
    array = vote_counts(counts)
    rows = np.arange(len(array))
    labels: Integers = np.argmax(array, axis=1).astype(np.int64)
    rivals = array + (np.arange(array.shape[1]) < labels[:, None])
    rivals[rows, labels] = -1
    radius = (array[rows, labels] - rivals.max(axis=1)) // 2
    return DefenceRadii("partitions", labels, np.ones(len(array), dtype=bool), radius)
