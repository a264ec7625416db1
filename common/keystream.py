"""Expanding a short secret into many words: HKDF-SHA256, then AES-256-CTR.

Every expansion names its purpose and its context (task, round, client, commitments …), so that
no two uses of one key ever share a stream. AES is OpenSSL's, or that of the library in
``common/kernel`` where the processor has VAES: the same bytes in two thirds of the time.
"""

import struct
import sys
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from precad.common.kernel.kernel import Fill, stream_in_use
from precad.common.ring import RingVector
from precad.common.secret import Secret

KEY_BYTES = 32
DOMAIN = b"precad/v1/"
_ZEROS = memoryview(bytes(1 << 17))


def encode_context(purpose: str, *context: bytes | int) -> bytes:
    """``precad/v1/<purpose>`` and the context, each part with its length: injective.

    An int stands for its 8 bytes; which parts are ints is fixed by the purpose.
    """
    parts = [DOMAIN + purpose.encode()]
    parts += [struct.pack("<Q", c) if isinstance(c, int) else c for c in context]
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def derive(key: Secret, purpose: str, *context: bytes | int) -> Secret:
    """A 32-byte key for ``purpose``: HKDF-SHA256 with the context as info."""
    info = encode_context(purpose, *context)
    return Secret(HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key.reveal()))


class Keystream:
    """A sequential reader of AES-256-CTR(derive(key, purpose, *context)).

    Args:
        key: 32 secret bytes.
        purpose: what the stream is for; part of the derivation.
        context: what it is bound to; ints are encoded as 8 bytes little-endian.
    """

    def __init__(self, key: Secret, purpose: str, *context: bytes | int) -> None:
        # A fixed counter start is safe: every derived key is used for one stream only.
        self._source = _source(derive(key, purpose, *context))

    def read(self, length: int) -> bytes:
        """The next ``length`` bytes."""
        return bytes(self.read_into(memoryview(bytearray(length))))

    def words(self, count: int) -> RingVector:
        """The next ``count`` uniform ring elements, ``[count] int64``."""
        return self.words_into(np.empty(count, dtype=np.int64))

    def words_into(self, out: RingVector) -> RingVector:
        """As ``words``: the next uniform ring elements, as many as ``out`` has, which is returned.

        Args:
            out: ``[n] int64``, contiguous; whatever is in it is lost.
        """
        self.read_into(out.data.cast("B"))
        if sys.byteorder == "big":
            out.byteswap(inplace=True)
        return out

    def read_into(self, out: memoryview) -> memoryview:
        """The next bytes, as many as ``out`` has; a writable view of bytes, which is returned."""
        self._source.read_into(out)
        return out


class _Source(Protocol):
    def read_into(self, out: memoryview) -> None:
        """The next bytes of AES-256-CTR from counter 0, as many as ``out`` has."""


class _Compiled:
    """By the library of ``common/kernel``, which makes the key's schedule at each call."""

    def __init__(self, key: Secret, fill: Fill) -> None:
        self._key = key
        self._fill = fill
        self._read = 0

    def read_into(self, out: memoryview) -> None:
        self._fill(self._key.reveal(), self._read, out)
        self._read += len(out)


class _OpenSSL:
    """By OpenSSL, which encrypts zeros."""

    def __init__(self, key: Secret) -> None:
        cipher = Cipher(algorithms.AES256(key.reveal()), modes.CTR(bytes(16)))
        self._encryptor = cipher.encryptor()

    def read_into(self, out: memoryview) -> None:
        for start in range(0, len(out), len(_ZEROS)):
            size = min(len(_ZEROS), len(out) - start)
            self._encryptor.update_into(_ZEROS[:size], out[start : start + size])


def _source(key: Secret) -> _Source:
    fill = stream_in_use()
    return _OpenSSL(key) if fill is None else _Compiled(key, fill)
