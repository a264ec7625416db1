"""Which block of integers a proposal lies in: an alias table in integers (Walker 1977).

The magnitudes are cut into 256 blocks of B = 2^b integers, block q being [qB, (q+1)B). It is to
be picked with a probability near its largest weight, f(qB) = exp(−(qB)²/2s²). All that is needed
of the table is that its own probabilities are known exactly: each block has a whole mass m_q out
of 2^64 with m_q ≥ c·f(qB), for one whole c, and acceptance divides by m_q again.
"""

from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Self

import numpy as np
from numpy.typing import NDArray

COLUMNS = 256
COLUMN_BITS = 56
"""A column of the table holds 2^56 of the mass: 8 bits pick the column, 56 the place in it."""
_TOTAL = COLUMNS << COLUMN_BITS
_WIDEST = 8
"""A block is at most s/8 wide, so that most proposals are accepted; 256 reach beyond 16s."""
_DIGITS = 60


@dataclass(frozen=True, slots=True)
class Blocks:
    """The proposal's table for one s.

    Args:
        width_bits: b; a block has 2^b integers.
        scale: c.
        masses: m_q of each of the 256 blocks; their sum is 2^64.
        thresholds: ``[256] uint64``, at most 2^56; below it a column stands for its own block.
        others: ``[256] int64``, the block that the rest of a column stands for.
        tightness: ``[256] float64``, c·f(qB)/m_q, at most 1: the acceptance at a block's beginning.
    """

    width_bits: int
    scale: int
    masses: tuple[int, ...]
    thresholds: NDArray[np.uint64]
    others: NDArray[np.int64]
    tightness: NDArray[np.float64]

    @classmethod
    def of(cls, noise_units: float) -> Self:
        """The table for N_Z(0, s²), in a few milliseconds.

        Args:
            noise_units: s, in units of the last place, taken for exactly the number that it is.
        """
        # The greatest power of two that is at most s/8, and 1 for a small s.
        width_bits = max(0, (int(noise_units) // _WIDEST).bit_length() - 1)
        with localcontext(Context(prec=_DIGITS)):
            weights = [weight(q << width_bits, noise_units) for q in range(COLUMNS)]
            scale = int((_TOTAL - 2 * COLUMNS) / sum(weights))
            # One more than the whole part: above c·f(qB), whose 60 digits err far less than 1.
            masses = [int(scale * each) + 1 for each in weights]
            # What is left over makes the first block a little less tight, and changes nothing else.
            masses[0] += _TOTAL - sum(masses)
            tightness = [float(scale * w / m) for w, m in zip(weights, masses, strict=True)]
        thresholds, others = _alias_table(masses)
        return cls(
            width_bits,
            scale,
            tuple(masses),
            np.array(thresholds, dtype=np.uint64),
            np.array(others, dtype=np.int64),
            np.array(tightness, dtype=np.float64),
        )


def weight(magnitude: int, noise_units: float) -> Decimal:
    """f(y) = exp(−y²/2s²) in the decimal context's precision.

    Relative error below 10^(8−digits) for y ≤ 256·max(1, s/8) and s ≥ 1/2: the exponent is at most
    131,072, its four roundings err by 10^(1−digits)/2 of it each, and ``exp`` is correctly rounded.
    """
    s = Decimal(noise_units)
    return (-Decimal(magnitude) * magnitude / (2 * s * s)).exp()


def _alias_table(masses: list[int]) -> tuple[list[int], list[int]]:
    """Thresholds and other blocks such that each block q is picked by exactly m_q of 2^64 words."""
    full = 1 << COLUMN_BITS
    left, thresholds, others = list(masses), [full] * len(masses), list(range(len(masses)))
    short = [q for q, mass in enumerate(left) if mass < full]
    long = [q for q, mass in enumerate(left) if mass > full]
    while short:
        column, giver = short.pop(), long[-1]
        thresholds[column], others[column] = left[column], giver
        left[giver] -= full - left[column]
        if left[giver] <= full:
            long.pop()
            if left[giver] < full:
                short.append(giver)
    return thresholds, others
