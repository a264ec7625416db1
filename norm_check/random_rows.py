"""Random projections of a share: the linear half of the range test.

Rows have entries −1, 0, 1 with probabilities 1/4, 1/2, 1/4: the difference of two random bits.
They are expanded from a key that no client knows: no client can choose its update after its rows,
and the servers get the same rows unasked (docs/soundness.md, "Part 1: the range test").

The stream is AES-256-CTR. For every 64 coordinates, and for each of the k rows, it holds two
64-bit masks, u then v, little-endian; entry i is bit i of u minus bit i of v. Both servers must
read it alike: pinned bytes say how (tests/vectors).
"""

import numpy as np
from numpy.typing import NDArray

from precad.common.kernel import BLOCK, MASKS, Projection, projection_in_use
from precad.common.keystream import Keystream
from precad.common.ring import RingVector
from precad.common.secret import Secret

MASK_BYTES = 8 * MASKS
"""Bytes of the stream for a row and 64 coordinates."""
HALF_BITS = 32
"""Bits of half a word."""
_AT_ONCE = 640 << 10
"""Bytes of masks that are drawn and used together: with 40 rows those of a piece of a body. They
stay in L2, or nearly; what fewer at once gain there they lose by their calls."""


class Rows:
    """A share's projections on k secret rows, absorbed in pieces.

    Args:
        key: 32 secret bytes, of this submission's rows alone.
    """

    def __init__(
        self, key: Secret, dimension: int, k: int, projection: Projection | None = None
    ) -> None:
        self._stream = Keystream(key, "validate/rows")
        self._project_blocks = projection or projection_in_use()
        self._dimension = dimension
        self._absorbed = 0
        self._z = np.zeros((k, 2), dtype=np.int64)
        self._blocks = min(_AT_ONCE // (k * MASK_BYTES), -(-dimension // BLOCK))
        self._masks = np.empty((self._blocks, k, MASKS), dtype="<u8")

    def absorb(self, words: RingVector) -> None:
        """The share's next words, ``[n] int64``: pieces come in order, each once.

        n is a multiple of 64 but in the last piece.

        Raises ValueError: the piece doesn't fit behind those absorbed before.
        """
        after = self._absorbed + words.size
        if after > self._dimension:
            raise ValueError(f"{after} words for rows of {self._dimension} coordinates")
        if after < self._dimension and words.size % BLOCK:
            raise ValueError(
                f"a piece of {words.size} words ends at {after} of {self._dimension}: all pieces "
                f"but the last are multiples of {BLOCK}"
            )
        whole = words.size - words.size % BLOCK
        step = self._blocks * BLOCK
        for start in range(0, whole, step):
            self._project(words[start : min(whole, start + step)])
        if whole < words.size:
            last = np.zeros(BLOCK, dtype=np.int64)
            last[: words.size - whole] = words[whole:]
            self._project(last)
        self._absorbed = after
        if after == self._dimension:
            # Whoever decides on many keeps all of their rows until then.
            self._masks = self._masks[:0].copy()

    def z(self) -> RingVector:
        """This share's projections mod 2^64, ``[k] int64``.

        Raises ValueError: words are missing.
        """
        halves = self.halves()
        z: RingVector = halves[:, 0] + (halves[:, 1] << HALF_BITS)
        return z

    def halves(self) -> NDArray[np.int64]:
        """The projections of the words' low and high halves, ``[k, 2] int64``, unreduced.

        Raises ValueError: words are missing.
        """
        if self._absorbed < self._dimension:
            raise ValueError(f"only {self._absorbed} of {self._dimension} words were absorbed")
        return self._z.copy()

    def _project(self, words: RingVector) -> None:
        masks = self._masks[: words.size // BLOCK]
        self._stream.read_into(masks.data.cast("B"))
        self._project_blocks(np.ascontiguousarray(words), masks, self._z)
