"""Fixed point with f fractional bits, rounding toward zero.

Toward zero, so that encoding never lengthens a vector: ‖encode(x)‖ ≤ ‖x‖·2^f.
"""

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
        scaled = np.ldexp(x, fractional_bits)
    # The comparison is False for NaN.
    bad = ~(np.abs(scaled) < _LIMIT)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise Misconfiguration(
            f"update{list(where)}",
            float(x[where]),
            f"must be finite and below 2^{62 - fractional_bits} to be encoded with "
            f"{fractional_bits} fractional bits; check the data and the loss for NaN",
        )
    return np.trunc(scaled).astype(np.int64)


def decode(x: RingVector, fractional_bits: int) -> NDArray[np.float64]:
    """``x·2^−f`` in float64, same shape."""
    return np.ldexp(x.astype(np.float64), -fractional_bits)
