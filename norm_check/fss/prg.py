"""The trees' pseudo-random generator: AES-128 under a public key, after Matyas, Meyer and Oseas.

A block x becomes π(x) ⊕ x, where π is AES under a key that is fixed for a batch: no key schedule a
node, and every node of a level in one call. π is public, and x can't be found from the result as
long as 126 bits of x are secret: in the ideal-cipher model whoever asks q times finds one of N
secret blocks with probability at most about N·q/2^126. N counts a batch's nodes only, because
every batch has a key of its own (Guo, Katz, Wang and Yu, "Efficient and secure multiparty
computation from fixed-key block ciphers", IEEE S&P 2020).

A block is two little-endian words. The lowest two bits of the first are no seed:

    bit   into the generator               out of it
    0     which child: 0 left, 1 right     the child's control bit
    1     1 for the leaf's own bits        the child's value bit
"""

from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

PRG_KEY_BYTES = 16
BLOCK_BYTES = 16
WORD = np.dtype("<u8")
Words: TypeAlias = NDArray[np.uint64]
"""``[…] uint64``, little-endian in memory: AES sees these bytes."""
Blocks: TypeAlias = NDArray[np.uint64]
"""``[…, 2] uint64``: the low word, then the high one."""

ONE = np.uint64(1)
LEAF = np.uint64(2)
SEED = np.uint64(2**64 - 4)
"""The bits of a low word that are seed."""


class FixedKeyPrg:
    """x ↦ π(x) ⊕ x on arrays of blocks; one object is used by one thread.

    Args:
        key: 16 bytes, fresh for each batch of keys, and public.
    """

    def __init__(self, key: bytes) -> None:
        # On blocks that are each used once ECB is the permutation itself: nothing is encrypted.
        self._permute = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()  # noqa: S305
        self._permuted = np.empty(0, dtype=WORD)

    def stretch(self, blocks: Blocks, out: Blocks) -> None:
        """Write π(x) ⊕ x for every block x; both arrays contiguous and of one shape."""
        size = blocks.size
        if self._permuted.size < size + 2:
            # The cipher wants up to 15 bytes beyond what it writes.
            self._permuted = np.empty(size + 2, dtype=WORD)
        self._permute.update_into(blocks.data.cast("B"), self._permuted.data.cast("B"))
        np.bitwise_xor(self._permuted[:size].reshape(blocks.shape), blocks, out=out)
