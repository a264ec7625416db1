"""Fixed point: real vectors as integers with f fractional bits, and the clips that hold in them.

Encoding rounds toward zero, so that it never lengthens a vector: ‖encode(x)‖ ≤ ‖x‖·2^f.

Two clips in float64 hold in the integers too. A record's gradient is clipped to
R(1−2^−20), encoded, and summed as integers, so that one record moves the sum by at most
R·2^f whatever the chunking. A client's sum is clipped to (β·2^−f)(1−2^−30) and encoded
again, so that X·X ≤ β² holds exactly (docs/soundness.md, "Honest updates keep the bound").
No sum makes the client's clip raise: an owner that falls silent would tell everybody
something about its records.
"""

import math

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.ring import RingVector

RECORD_MARGIN = 1.0 - 2.0**-20
CLIENT_MARGIN = 1.0 - 2.0**-30
_AGAIN = 1.0 - 2.0**-20


def clip_record_norm(
    gradients: NDArray[np.float64], record_clip: float
) -> NDArray[np.float64]:
    """Each record's row, ``[records, d] float64``, scaled to norm at most R(1−2^−20) if longer.

    PRECAD Algorithm 2, line 4. Raises Misconfiguration: a gradient holds NaN or an
    infinity.
    """
    relative, unit, lengths = _relative(gradients)
    bound = record_clip * RECORD_MARGIN
    with np.errstate(over="ignore"):
        limits = bound / unit
    # Never through the absolute norm: it may overflow though every entry is finite.
    factors = np.divide(
        bound, lengths, out=np.ones_like(lengths), where=lengths > limits
    )
    clipped: NDArray[np.float64] = np.where(
        lengths > limits, relative * factors, gradients
    )
    return clipped


def clip_record_adaptively(
    gradients: NDArray[np.float64], record_clip: float, stabiliser: float
) -> NDArray[np.float64]:
    """Each row g as R(1−2^−20)·g/(‖g‖ + s/(‖g‖ + s)): PSAC (Xia et al. 2023; DP-CERT eq. 9).

    The divisor is above ‖g‖, so every row's norm is below R, as ``clip_record_norm``
    has it: R stays the sensitivity. Zero stays zero. s, the ``stabiliser``, is r in the
    paper, and above 0.

    Raises Misconfiguration: a gradient holds NaN or an infinity.
    """
    relative, unit, lengths = _relative(gradients)
    with np.errstate(over="ignore"):
        # Of a norm that overflows the correction is 0; of a tiny unit it may be
        # infinite, and the row, which encodes to zero anyway, becomes zero.
        correction = stabiliser / (lengths * unit + stabiliser) / unit
    scaled: NDArray[np.float64] = relative * (
        record_clip * RECORD_MARGIN / (lengths + correction)
    )
    return scaled


def _relative(
    gradients: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows over their largest entries, those entries, and the norms of the rows so scaled."""
    # Scaled by the largest entry first: squares of huge gradients would overflow.
    largest = np.maximum(
        gradients.max(axis=1, initial=0.0), -gradients.min(axis=1, initial=0.0)
    )
    if not np.isfinite(largest).all():
        row = int(np.argmin(np.isfinite(largest)))
        field = f"gradient of sampled record {row}"
        remedy = "must be finite; check that record, the loss and the learning rate"
        raise Misconfiguration(field, float(largest[row]), remedy)
    unit = np.where(largest > 0, largest, 1.0)[:, None]
    relative = gradients / unit
    lengths = np.linalg.norm(relative, axis=1, keepdims=True)
    return relative, unit, lengths


def clip_update(total: RingVector, bound: int, fractional_bits: int) -> RingVector:
    """The integer sum, projected so that X·X ≤ β²; PRECAD Algorithm 2, line 7.

    ``[d] int64``: ``total`` itself where it already is so short. Where float64 lets the
    scaled sum slip over β, it is scaled by 1−2^−20 up to three times more, and then
    zero.

    Raises Misconfiguration: β < 1, which no task has.
    """
    if bound < 1:
        raise Misconfiguration("bound", bound, "β must be at least 1")
    if squared_norm(total) <= bound * bound:
        return total
    real = decode(total, fractional_bits)
    target = math.ldexp(bound, -fractional_bits) * CLIENT_MARGIN
    largest = float(np.max(np.abs(real)))
    norm = largest * float(np.linalg.norm(real / largest))
    for again in range(4):  # once, and three times again
        clipped = encode(real * (target / norm * _AGAIN**again), fractional_bits)
        if squared_norm(clipped) <= bound * bound:
            return clipped
    return np.zeros_like(total)


def squared_norm(x: RingVector) -> int:
    """X·X over the integers, exact for any int64 vector."""
    largest = max(int(x.max(initial=0)), -int(x.min(initial=0)))
    if largest * largest * max(x.size, 1) < 2**63:
        return int(np.dot(x, x))
    return sum(value * value for value in x.tolist())


_LIMIT = 2.0**62


def encode(x: NDArray[np.float64], fractional_bits: int) -> RingVector:
    """``trunc(x·2^f)``, same shape, int64.

    Raises Misconfiguration: an element is NaN, infinite, or its encoding is 2^62 or
    more.
    """
    with np.errstate(over="ignore"):  # an infinity is refused below
        scaled = x * math.ldexp(1.0, fractional_bits)
    # Extremes hand NaN on, and the comparisons are False for it.
    if not (scaled.min(initial=0.0) > -_LIMIT and scaled.max(initial=0.0) < _LIMIT):
        where = tuple(int(i) for i in np.argwhere(~(np.abs(scaled) < _LIMIT))[0])
        remedy = (
            f"must be finite and below 2^{62 - fractional_bits} to be encoded with "
            f"{fractional_bits} fractional bits; check the data and the loss for NaN"
        )
        raise Misconfiguration(f"update{list(where)}", float(x[where]), remedy)
    return scaled.astype(np.int64)  # which drops the fraction


def decode(x: RingVector, fractional_bits: int) -> NDArray[np.float64]:
    """``x·2^−f`` in float64, same shape."""
    return np.ldexp(x.astype(np.float64), -fractional_bits)
