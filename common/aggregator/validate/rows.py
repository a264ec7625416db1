"""Random projections of a share: the linear half of the range test.

Rows have entries −1, 0, 1 with probabilities 1/4, 1/2, 1/4: the difference of two random bits.
They are expanded from a secret that no client knows, bound to the submission's both commitments:
no client can choose its update after its rows, and the servers get the same rows unasked
(docs/soundness.md, "Part 1: the range test").

Speed matters here (k·d entries a submission), and exactness more: entries come from a table of
four at a time, and words are cut into two 32-bit halves whose sums over a block are integers far
below 2^53, so that float64 products are exact in any order of summation.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from precad.common.identifiers import ClientId, Digest
from precad.common.keystream import Keystream
from precad.common.ring import RingVector
from precad.common.secret import Secret

BLOCK = 2048
"""Coordinates whose entries stand together in the stream; a block of rows fits in L2. Part of
the rows' definition: both servers must use the same."""
_ENTRIES_PER_BYTE = 4
_LOW_BITS = 32
_LOW_MASK = 2**_LOW_BITS - 1


def _entry_table() -> NDArray[np.void]:
    """Four entries for each byte: bits (0, 1), (2, 3) … are (u, v), the entry is u − v."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    entries = bits[:, 0::2].astype(np.float64) - bits[:, 1::2]
    # As one opaque item a byte, so that a look-up moves all four entries.
    return np.ascontiguousarray(entries).view(f"V{_ENTRIES_PER_BYTE * 8}").reshape(256)


_TABLE = _entry_table()


def row_blocks(
    row_secret: Secret,
    dimension: int,
    k: int,
    *,
    task: Digest,
    attempt: int,
    client: ClientId,
    commitment_a: bytes,
    commitment_b: bytes,
) -> Iterator[NDArray[np.float64]]:
    """A submission's rows, ``BLOCK`` coordinates at a time.

    Args:
        row_secret: 32 bytes that both servers hold and no client knows.
        dimension: d.
        k: number of rows.
        task: digest of the task.
        attempt: the round.
        client: who submitted.
        commitment_a: commitment to server A's share.
        commitment_b: commitment to server B's share.

    Yields:
        ``[k, ≤ BLOCK] float64`` of −1, 0, 1; overwritten by the next.
    """
    stream = Keystream(
        row_secret,
        "validate/rows",
        task.value,
        attempt,
        client.encoded(),
        commitment_a,
        commitment_b,
    )
    buffer = np.empty(k * BLOCK // _ENTRIES_PER_BYTE, dtype=_TABLE.dtype)
    for start in range(0, dimension, BLOCK):
        width = min(BLOCK, dimension - start)
        row_bytes = -(-width // _ENTRIES_PER_BYTE)
        indices = np.frombuffer(stream.read(k * row_bytes), dtype=np.uint8)
        out = buffer[: indices.size]
        _TABLE.take(indices, out=out, mode="clip")  # "raise" would copy through a buffer
        yield out.view(np.float64).reshape(k, row_bytes * _ENTRIES_PER_BYTE)[:, :width]


def project(
    row_secret: Secret,
    share: RingVector,
    k: int,
    *,
    task: Digest,
    attempt: int,
    client: ClientId,
    commitment_a: bytes,
    commitment_b: bytes,
) -> RingVector:
    """This server's share of z = S·X mod 2^64.

    Args:
        row_secret: 32 bytes that both servers hold and no client knows.
        share: ``[d] int64``, this server's share of X.
        k: number of rows.
        task: digest of the task.
        attempt: the round.
        client: who submitted.
        commitment_a: commitment to server A's share.
        commitment_b: commitment to server B's share.

    Returns:
        ``[k] int64``.
    """
    z = np.zeros(k, dtype=np.int64)
    blocks = row_blocks(
        row_secret,
        share.size,
        k,
        task=task,
        attempt=attempt,
        client=client,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
    )
    for place, rows in enumerate(blocks):
        words = share[place * BLOCK : (place + 1) * BLOCK]
        low = rows @ (words & _LOW_MASK).astype(np.float64)
        high = rows @ (words >> _LOW_BITS).astype(np.float64)
        z += low.astype(np.int64) + (high.astype(np.int64) << _LOW_BITS)
    return z
