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

from precad.common import Floats, Integers, Misconfiguration, RingVector, Words

RECORD_MARGIN = 1.0 - 2.0**-20
"""Factor by which a record's gradient is clipped below R, for float64's rounding."""
CLIENT_MARGIN = 1.0 - 2.0**-30
"""Factor by which a client's sum is clipped below β·2^−f, for float64's rounding."""
_LIMIT = 2.0**62
"""Bound on the absolute value of an encoded element."""


def clip_record_norm(gradients: Floats, record_clip: float) -> Floats:
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
    return np.where(too_long, relative * factors, gradients)


def clip_record_adaptively(
    gradients: Floats, record_clip: float, stabiliser: float
) -> Floats:
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
    return relative * (record_clip * RECORD_MARGIN / (relative_norms + correction))


def _by_largest_entry(
    gradients: Floats,
) -> tuple[Floats, Floats, Floats]:
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
        raise Misconfiguration(
            f"gradient of sampled record {row}",
            float(largest[row]),
            "must be finite; check that record, the loss and the learning rate",
        )
    unit = np.where(largest > 0, largest, 1.0)[:, None]
    relative = gradients / unit
    relative_norms = np.linalg.norm(relative, axis=1, keepdims=True)
    return relative, unit, relative_norms


def clip_update(total: RingVector, bound: int, fractional_bits: int) -> RingVector:
    """Return a client's sum, scaled so that X·X ≤ β²; PRECAD Algorithm 2, line 7.

    ``total`` and the result are ``[d] int64``, ``bound`` is β in units of the last
    place, 2^−f. A sum that is short enough comes back itself. Every sum takes the same
    steps: how long they take tells nothing of the records.

    A scaled entry is at most (1+2^−53)^5 times its real value, the exact norm's root
    and the factor included, and rounding toward zero adds nothing; so the margin of
    2^−30 holds in any dimension. Were it not so, zero would be sent.

    Raises Misconfiguration: β < 1, which no task has.
    """
    if bound < 1:
        raise Misconfiguration("bound", bound, "β must be at least 1")
    square = squared_norm(total)
    factor = bound * CLIENT_MARGIN / math.sqrt(max(square, 1))
    clipped = encode(decode(total, fractional_bits) * factor, fractional_bits)
    if squared_norm(clipped) > bound * bound:
        clipped = np.zeros_like(total)
    return total if square <= bound * bound else clipped


_HALF_WORD = 32
_LOW = np.int64(2**_HALF_WORD - 1)
_AT_ONCE = 2**15
"""Entries that are squared together: what lies between stays in the cache."""


def squared_norm(x: RingVector) -> int:
    """Return X·X over the integers, exact for any ``[n] int64``, by the same steps."""
    square = 0
    for start in range(0, x.size, _AT_ONCE):
        some = x[start : start + _AT_ONCE]
        high = some >> _HALF_WORD
        low = some & _LOW
        # X = 2^32·high + low: no product of the two passes 64 bits.
        square += _exact_sum(high * high) << (2 * _HALF_WORD)
        square += _exact_sum(high * low) << (_HALF_WORD + 1)
        square += _exact_sum(low.view(np.uint64) * low.view(np.uint64))
    return square


def _exact_sum(products: Integers | Words) -> int:
    """Return the sum of fewer than 2^31 words over the integers."""
    low = products & products.dtype.type(_LOW)
    return (int((products >> _HALF_WORD).sum()) << _HALF_WORD) + int(low.sum())


def encode(x: Floats, fractional_bits: int) -> RingVector:
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
        raise Misconfiguration(
            f"update{list(index)}",
            float(x[index]),
            f"must be finite and below 2^{62 - fractional_bits} to be encoded with "
            f"{fractional_bits} fractional bits; check the data and the loss for NaN",
        )
    return scaled.astype(np.int64)  # drops the fraction: rounds toward zero


def decode(x: RingVector, fractional_bits: int) -> Floats:
    """Return ``x·2^−f`` in float64, in the shape of ``x``."""
    # By a power of two: exact, and a tenth of what ldexp takes.
    return x.astype(np.float64) * 2.0**-fractional_bits
