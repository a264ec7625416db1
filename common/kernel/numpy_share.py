"""A server's pass over a piece of b and its own mask, by NumPy: what every kernel must equal."""

from precad.common.ring import RingVector, dot


def share_words(
    b: RingVector, a: RingVector, total: RingVector | None, *, adds_b: bool
) -> tuple[int, int]:
    """Make the mask ``a`` into this server's share of x, and add that to ``total``.

    Args:
        b: ``[n] int64``, contiguous; may be read-only.
        a: ``[n] int64``, contiguous: the mask; changed in place into the share.
        total: ``[n] int64``, contiguous, changed in place; None where nothing is summed.
        adds_b: whether the share is b + a, or a alone.

    Returns:
        ⟨b, a⟩ with the mask, and ⟨b, b⟩, both mod 2^64 and signed.
    """
    crossed, squared = dot(b, a), dot(b, b)
    if adds_b:
        a += b
    if total is not None:
        total += a
    return crossed, squared
