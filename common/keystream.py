"""Expanding a short secret into many words: HKDF-SHA256, then AES-256-CTR.

Every expansion names its purpose and its context (task, round, client, commitments …), so that
no two uses of one key ever share a stream.
"""

import struct
import sys

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from precad.common.ring import RingVector
from precad.common.secret import Secret

KEY_BYTES = 32
DOMAIN = b"precad/v1/"
_ZEROS = memoryview(bytes(1 << 18))
_LENGTH, _NUMBER = struct.Struct("<I").pack, struct.Struct("<IQ").pack


def encode_context(purpose: str, *context: bytes | int) -> bytes:
    """``precad/v1/<purpose>`` and the context, each part with its length: injective.

    An int stands for its 8 bytes; which parts are ints is fixed by the purpose.
    """
    encoded: list[bytes] = []
    # Hundreds of times a round.
    for part in (DOMAIN + purpose.encode(), *context):
        encoded += (_NUMBER(8, part),) if isinstance(part, int) else (_LENGTH(len(part)), part)
    return b"".join(encoded)


def derive(key: Secret, purpose: str, *context: bytes | int) -> Secret:
    """A 32-byte key for ``purpose``: HKDF-SHA256 with the context as info."""
    info = encode_context(purpose, *context)
    return Secret(HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key.reveal()))


class Keystream:
    """A sequential reader of AES-256-CTR(derive(key, purpose, *context))."""

    def __init__(self, key: Secret, purpose: str, *context: bytes | int) -> None:
        stream_key = derive(key, purpose, *context).reveal()
        # A fixed counter start is safe: every derived key is used for one stream only.
        self._encryptor = Cipher(algorithms.AES256(stream_key), modes.CTR(bytes(16))).encryptor()

    def read(self, length: int) -> bytes:
        """The next ``length`` bytes."""
        return bytes(self.read_into(memoryview(bytearray(length))))

    def words(self, count: int) -> RingVector:
        """The next ``count`` uniform ring elements, ``[count] int64``."""
        return self.words_into(np.empty(count, dtype=np.int64))

    def words_into(self, out: RingVector) -> RingVector:
        """As ``words``, in place of what is in ``out``, ``[n] int64``, contiguous: returned."""
        self.read_into(out.data.cast("B"))
        if sys.byteorder == "big":
            out.byteswap(inplace=True)
        return out

    def read_into(self, out: memoryview) -> memoryview:
        """The next bytes, as many as ``out`` has; a writable view of bytes, which is returned."""
        return fill(out, self._encryptor)


def fill(out: memoryview, encryptor: CipherContext) -> memoryview:
    """The cipher's next bytes, as many as ``out`` has, which is returned."""
    for start in range(0, len(out), len(_ZEROS)):
        size = min(len(_ZEROS), len(out) - start)
        encryptor.update_into(_ZEROS[:size], out[start : start + size])
    return out
