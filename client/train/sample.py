"""Which records take part in a round: Poisson sampling from the CSPRNG, and how many may."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from precad.common.errors import Misconfiguration
from precad.common.keystream import Keystream

_BLOCK = 1 << 16
_RARE = 2.0**-40


def poisson_sample(count: int, rate: float, randomness: Keystream) -> NDArray[np.int64]:
    """Each of ``count`` records independently with probability ``rate``; Algorithm 2, line 2.

    A record is drawn when its uniform 64-bit word is below floor(rate·2^64). For rates of 2^−12
    and more that is the rate itself; for smaller ones the probability is too low by less than
    2^−64, and never too high, so the accounted amplification holds.

    Args:
        count: |D_i|.
        rate: p_i.
        randomness: 8 bytes of it are used per record, drawn or not.

    Returns:
        The drawn indices, ascending, ``[≤ count] int64``.

    Raises:
        Misconfiguration: the rate lies outside (0, 1], or the count is negative.
    """
    if count < 0:
        raise Misconfiguration("count", count, "can't be negative")
    _check_rate(rate)
    threshold = int(Fraction(rate) * 2**64)
    drawn = [np.empty(0, np.int64)]
    for start in range(0, count, _BLOCK):
        words = randomness.words(min(_BLOCK, count - start)).view(np.uint64)
        # threshold itself doesn't fit 64 bits at rate 1.
        chosen = words <= np.uint64(threshold - 1) if threshold else np.zeros(words.shape, bool)
        drawn.append(np.flatnonzero(chosen) + start)
    return np.concatenate(drawn)


def most_records(count: int, rate: float) -> int:
    """M: the sample size that an attempt's work is padded to, public because its arguments are.

    The least M that a Poisson sample of ``count`` records at ``rate`` passes with a probability
    below 2^−40. A sample that does is replaced by the empty one: that keeps the account exact,
    because a neighbouring data set has the same sizes of samples (one gradient in it is zero).

    Args:
        count: |D_i| ≥ 0.
        rate: p_i.

    Raises:
        Misconfiguration: the rate lies outside (0, 1].
    """
    _check_rate(rate)
    # The tail is a regularised incomplete beta function; its relative error is below 1e-9.
    low, high = -1, count  # Pr[more than high] < 2^−40 <= Pr[more than low]
    while high - low > 1:
        middle = (low + high) // 2
        if float(bdtrc(middle, count, rate)) < _RARE * (1 - 1e-9):
            high = middle
        else:
            low = middle
    return high


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise Misconfiguration("record_rate", rate, "must lie in (0, 1]")
