"""From two servers' bits to verdicts: 6 bytes a submission each way at k = 40, and nothing else.

A submission's bytes hold its k + 1 gates' bits in order, then whether the client's word to this
server is right; the first in the highest bit, and zeros behind the last.
"""

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import PeerViolation
from precad.norm_check.fss.evaluate import Bits

_BITS = 8


def submission_bytes(gates: int) -> int:
    """Bytes of one submission with so many gates."""
    return -(-(gates + 1) // _BITS)


def pack(bits: Bits, words_right: NDArray[np.bool_]) -> bytes:
    """What a server sends the other.

    Args:
        bits: ``[n, k + 1] uint8``, its shares (``gates.evaluate_gates``).
        words_right: ``[n] bool``: whether its own word of the header is what its mask and the
            body make (``share.words``).
    """
    return np.packbits(np.column_stack([bits, words_right]), axis=1).tobytes()


def verdicts(own: bytes, other: bytes, gates: int) -> NDArray[np.bool_]:
    """Which submissions are valid: all gates hold, and both of the client's words are right.

    Args:
        own: what ``pack`` made here.
        other: what the other server sent.
        gates: of a submission, k + 1.

    Returns:
        ``[n] bool``, the same at both servers.

    Raises:
        PeerViolation: the other server's message has another length, or bits behind its last.
    """
    width = submission_bytes(gates)
    if len(other) != len(own):
        raise PeerViolation(f"bits of {len(other)} bytes came, {len(own)} were expected")
    ours, theirs = (np.frombuffer(each, dtype=np.uint8).reshape(-1, width) for each in (own, other))
    ours, theirs = (np.unpackbits(each, axis=1) for each in (ours, theirs))
    if theirs[:, gates + 1 :].any():
        raise PeerViolation("the other server's bits have more behind their last")
    held = (ours ^ theirs)[:, :gates].all(axis=1)
    right: NDArray[np.bool_] = (ours & theirs)[:, gates] == 1
    return held & right
