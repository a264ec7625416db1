"""Fixed point with f fractional bits, rounding toward zero.

Toward zero, so that encoding never lengthens a vector: ‖encode(x)‖ ≤ ‖x‖·2^f.
"""

import math

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.ring import RingVector

_LIMIT = 2.0**62


def encode(x: NDArray[np.float64], fractional_bits: int) -> RingVector:
    """``trunc(x·2^f)``, same shape, int64.

    Raises:
        Misconfiguration: an element is NaN, infinite, or its encoding is 2^62 or more.
    """
    with np.errstate(over="ignore"):  # an infinity is refused below
        scaled = x * math.ldexp(1.0, fractional_bits)
    # Extremes hand NaN on, and the comparisons are False for it.
    if not (scaled.min(initial=0.0) > -_LIMIT and scaled.max(initial=0.0) < _LIMIT):
        where = tuple(int(i) for i in np.argwhere(~(np.abs(scaled) < _LIMIT))[0])
        raise Misconfiguration(
            f"update{list(where)}",
            float(x[where]),
            f"must be finite and below 2^{62 - fractional_bits} to be encoded with "
            f"{fractional_bits} fractional bits; check the data and the loss for NaN",
        )
    return scaled.astype(np.int64)  # which drops the fraction


def decode(x: RingVector, fractional_bits: int) -> NDArray[np.float64]:
    """``x·2^−f`` in float64, same shape."""
    return np.ldexp(x.astype(np.float64), -fractional_bits)
