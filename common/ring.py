"""The ring Z_2^64, and keystreams of its elements (HKDF-SHA256, then AES-256-CTR).

Shares, masks and sums are ``[d] int64``, little-endian on the wire. NumPy's int64
*array* arithmetic wraps modulo 2^64; Python ints don't, so scalars pass through
``signed``.

Every expansion names its purpose and its context (task, round, client, commitments …),
so that no two uses of one key ever share a stream. The seeds of a submission's masks are
committed to, opened and expanded here: the dealer, which squares a_A + a_B, loads no more
of a submission.
"""

import struct
import sys
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import (
    Cipher,
    CipherContext,
    algorithms,
    modes,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from precad.common.identifiers import Digest, Role, Secret

RingVector: TypeAlias = NDArray[np.int64]
"""``[d] int64``: elements of Z_2^64 by their signed representatives in [-2^63, 2^63).
"""

WORD_BYTES = 8
MODULUS = 2**64
_HALF = 2**63
KEY_BYTES = 32
SEED_BYTES = KEY_BYTES
SALT_BYTES = 32
DOMAIN = b"precad/v1/"
CACHED_WORDS = 1 << 16
"""Words that are drawn, masked or added together: they stay in the processor's cache."""
_ZEROS = memoryview(bytes(1 << 18))
_LENGTH = struct.Struct("<I").pack
_NUMBER = struct.Struct("<IQ").pack


def signed(value: int) -> int:
    """The representative of ``value`` mod 2^64 in [-2^63, 2^63)."""
    return (value + _HALF) % MODULUS - _HALF


def dot(x: RingVector, y: RingVector) -> int:
    """⟨x, y⟩ mod 2^64 as a signed Python int."""
    # Wraps like np.dot, and takes 0.6 of its time: integers have no BLAS.
    return signed(int(np.einsum("i,i", x, y)))


def to_bytes(x: RingVector) -> bytes:
    """Little-endian bytes, 8 per element."""
    return x.astype("<i8", copy=False).tobytes()


def byte_view(x: RingVector) -> memoryview:
    """The bytes of ``to_bytes`` without a copy, where the machine is little-endian."""
    return np.ascontiguousarray(x.astype("<i8", copy=False)).data.cast("B")


def from_bytes(data: bytes | bytearray | memoryview) -> RingVector:
    """Inverse of ``to_bytes``; a copy that may be written to.

    Raises ValueError: the length isn't a multiple of 8.
    """
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def view_words(data: bytes | bytearray | memoryview) -> RingVector:
    """As ``from_bytes``, without a copy: it may not be written to."""
    return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)


def encode_context(purpose: str, *context: bytes | int) -> bytes:
    """``precad/v1/<purpose>`` and the context, each part with its length: injective.

    An int stands for its 8 bytes; which parts are ints is fixed by the purpose.
    """
    encoded: list[bytes] = []
    # Hundreds of times a round.
    for part in (DOMAIN + purpose.encode(), *context):
        encoded += (
            (_NUMBER(8, part),) if isinstance(part, int) else (_LENGTH(len(part)), part)
        )
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
        self._encryptor = Cipher(
            algorithms.AES256(stream_key), modes.CTR(bytes(16))
        ).encryptor()

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


def commit(
    role: Role,
    ctx: Digest,
    *,
    salt: Secret,
    seed: Secret,
) -> Digest:
    """c_j = SHA-256(role j, ctx, salt_j, s_j): hiding by the salt, binding by the hash.

    Bound to role and context, or one client's commitment could be another's, or the
    other role's.
    """
    parts = role.value.encode(), ctx.value, salt.reveal(), seed.reveal()
    return Digest.of(encode_context("seed-commitment", *parts))


def opens(
    *,
    commitment: Digest,
    role: Role,
    ctx: Digest,
    salt: Secret,
    seed: Secret,
) -> bool:
    """Whether ``commitment`` is to this seed of ``role`` in ``ctx``; False for wrong lengths."""
    if len(salt) != SALT_BYTES or len(seed) != SEED_BYTES:
        return False
    return commit(role, ctx, salt=salt, seed=seed) == commitment


def mask_stream(
    seed: Secret,
    role: Role,
    *,
    ctx: Digest,
    commitment_a: Digest,
    commitment_b: Digest,
) -> Keystream:
    """a_j = PRG(s_j; role j, ctx, c_A, c_B), where x = b + a_A + a_B: ``words(n)`` reads it.

    Bound to the submission, so that one seed never masks two vectors alike.
    """
    names = ctx.value, commitment_a.value, commitment_b.value
    return Keystream(seed, "mask", role.value.encode(), *names)
