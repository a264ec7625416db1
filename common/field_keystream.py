"""Expanding a secret into random elements of the field, as ``keystream.py`` does for the ring."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from precad.common.keystream import derive
from precad.common.prime_field import FieldVector, P, first_not_below
from precad.common.secret import Secret

_ZEROS = memoryview(bytes(1 << 18))


class FieldKeystream:
    """Uniform words below p, each at a place of its own: any piece can be expanded alone.

    Word i is the first below p of W_0[i], W_1[i] …; W_r are the words of AES-256-CTR under
    derive(key, purpose, *context) from the counter r·2^64 on. Reducing mod p instead would give
    small words twice the chance of others: 2^−32 a word, that is .8 % over 10^6 of them.

    Args:
        key: 32 secret bytes.
        purpose: what the stream is for; part of the derivation.
        context: what it is bound to; ints are encoded as 8 bytes little-endian.
    """

    def __init__(self, key: Secret, purpose: str, *context: bytes | int) -> None:
        self._cipher = algorithms.AES256(derive(key, purpose, *context).reveal())

    def words(self, count: int, start: int = 0) -> FieldVector:
        """Words ``start`` to ``start + count``, ``[count] uint64``, all below p."""
        found = self._drawn(0, start, count)
        at, again = first_not_below(found), 0
        while at is not None:
            again += 1
            for each in at + np.flatnonzero(found[at:] >= np.uint64(P)):
                found[each] = self._drawn(again, start + int(each), 1)[0]
            at = first_not_below(found)
        return found

    def _drawn(self, again: int, start: int, count: int) -> FieldVector:
        """Words of W_again: two to a block of the cipher."""
        odd = start % 2
        counter = (again << 64) + start // 2
        encryptor = Cipher(self._cipher, modes.CTR(counter.to_bytes(16, "big"))).encryptor()
        words = np.empty(odd + count, dtype="<u8")
        out = words.data.cast("B")
        for at in range(0, len(out), len(_ZEROS)):
            size = min(len(_ZEROS), len(out) - at)
            encryptor.update_into(_ZEROS[:size], out[at : at + size])
        return words[odd:].astype(np.uint64, copy=False)
