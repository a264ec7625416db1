"""Fixed point: real vectors as integers with f fractional bits, and exact clips.

Encoding rounds toward zero, so it never lengthens a vector: ‖encode(x)‖ ≤ ‖x‖·2^f.

Two clips are computed in float64 and hold in the integers too. A record's gradient is
clipped to R(1−2^−20), encoded, and summed as integers, so that one record moves the sum
by at most R·2^f, however the records are split into chunks. A client's sum is clipped
to (β·2^−f)(1−2^−30) and encoded again, so that X·X ≤ β² holds exactly
(docs/soundness.md, "Honest updates keep the bound"). No sum makes the client's clip
raise: an owner that falls silent would tell everybody something about its records.
"""

import math

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.ring import RingVector

RECORD_MARGIN = 1.0 - 2.0**-20
"""Factor by which a record's gradient is clipped below R, for float64's rounding."""
CLIENT_MARGIN = 1.0 - 2.0**-30
"""Factor by which a client's sum is clipped below β·2^−f, for float64's rounding."""
_SHRINKING = 1.0 - 2.0**-20
"""Factor by which a client's sum is scaled again where it still is longer than β."""
_LIMIT = 2.0**62
"""Bound on the absolute value of an encoded element."""


def clip_record_norm(
    gradients: NDArray[np.float64], record_clip: float
) -> NDArray[np.float64]:
    """Return the records' gradients, each scaled to norm R(1−2^−20) if it is longer.

    PRECAD Algorithm 2, line 4. Gradients and result are ``[records, d] float64``;
    ``record_clip`` is R.

    Raises Misconfiguration: a gradient holds NaN or an infinity.
    """
    relative, unit, relative_norms = _by_largest_entry(gradients)
    bound = record_clip * RECORD_MARGIN
    with np.errstate(over="ignore"):
        limits = bound / unit
    too_long = relative_norms > limits
    # The absolute norm is never computed: it may overflow where no entry does.
    factors = np.divide(
        bound, relative_norms, out=np.ones_like(relative_norms), where=too_long
    )
    clipped: NDArray[np.float64] = np.where(too_long, relative * factors, gradients)
    return clipped


def clip_record_adaptively(
    gradients: NDArray[np.float64], record_clip: float, stabiliser: float
) -> NDArray[np.float64]:
    """Return each record's gradient g as R(1−2^−20)·g/(‖g‖ + s/(‖g‖ + s)).

    Per-sample adaptive clipping (PSAC; Xia et al. 2023; DP-CERT, eq. 9). Gradients and
    result are ``[records, d] float64``; ``record_clip`` is R, and ``stabiliser`` is s,
    above 0, which is r in the paper. The divisor is above ‖g‖, so every row's norm is
    below R as after ``clip_record_norm``: R stays the sensitivity. Zero stays zero.

    Raises Misconfiguration: a gradient holds NaN or an infinity.
    """
    relative, unit, relative_norms = _by_largest_entry(gradients)
    with np.errstate(over="ignore"):
        # The correction is 0 where the norm overflows. Where the unit is tiny it may be
        # infinite: the row, which encodes to zero anyway, becomes zero.
        correction = stabiliser / (relative_norms * unit + stabiliser) / unit
    scaled: NDArray[np.float64] = relative * (
        record_clip * RECORD_MARGIN / (relative_norms + correction)
    )
    return scaled


def _by_largest_entry(
    gradients: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return rows divided by their largest entries, these, and the quotients' norms.

    Squares of huge gradients would overflow; those of the quotients, ``[records, d]``,
    don't. Entries and norms are ``[records, 1]``; for a row of zeros the entry is 1.

    Raises Misconfiguration: a gradient holds NaN or an infinity.
    """
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
    relative_norms = np.linalg.norm(relative, axis=1, keepdims=True)
    return relative, unit, relative_norms


def clip_update(total: RingVector, bound: int, fractional_bits: int) -> RingVector:
    """Return a client's sum, scaled so that X·X ≤ β²; PRECAD Algorithm 2, line 7.

    ``total`` and the result are ``[d] int64``, ``bound`` is β in units of the last
    place. A sum that is short enough comes back itself. Where float64 lets the scaled
    sum slip over β, it is scaled by 1−2^−20 up to three times more, and replaced by
    zero then.

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
    for extra_scalings in range(4):
        factor = target / norm * _SHRINKING**extra_scalings
        clipped = encode(real * factor, fractional_bits)
        if squared_norm(clipped) <= bound * bound:
            return clipped
    return np.zeros_like(total)


def squared_norm(x: RingVector) -> int:
    """Return X·X over the integers, exact for any ``[n] int64``."""
    largest = max(int(x.max(initial=0)), -int(x.min(initial=0)))
    if largest * largest * max(x.size, 1) < 2**63:
        return int(np.dot(x, x))
    return sum(value * value for value in x.tolist())


def encode(x: NDArray[np.float64], fractional_bits: int) -> RingVector:
    """Return ``trunc(x·2^f)`` as int64, in the shape of ``x``.

    Raises Misconfiguration: an element is NaN, infinite, or its encoding is 2^62 or
    more in absolute value.
    """
    with np.errstate(over="ignore"):  # an infinity is refused below
        scaled = x * math.ldexp(1.0, fractional_bits)
    # NaN becomes the extreme of its array, and compares as False.
    if not (scaled.min(initial=0.0) > -_LIMIT and scaled.max(initial=0.0) < _LIMIT):
        first_bad = np.argwhere(~(np.abs(scaled) < _LIMIT))[0]
        index = tuple(int(axis_index) for axis_index in first_bad)
        remedy = (
            f"must be finite and below 2^{62 - fractional_bits} to be encoded with "
            f"{fractional_bits} fractional bits; check the data and the loss for NaN"
        )
        raise Misconfiguration(f"update{list(index)}", float(x[index]), remedy)
    return scaled.astype(np.int64)  # drops the fraction: rounds toward zero


def decode(x: RingVector, fractional_bits: int) -> NDArray[np.float64]:
    """Return ``x·2^−f`` in float64, in the shape of ``x``."""
    return np.ldexp(x.astype(np.float64), -fractional_bits)
