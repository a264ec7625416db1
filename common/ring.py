"""The ring Z_2^64, and keystreams of its elements (HKDF-SHA256, then AES-256-CTR).

Shares, masks and sums are ``[d] int64``, little-endian on the wire. NumPy's int64
*array* arithmetic wraps modulo 2^64. Python's ints don't wrap, so scalars pass through
``signed``.

Every expansion of a key names its purpose and its context (task, round, client,
commitments …), so that no two uses of one key ever share a stream. The commitments to
the seeds of a submission's masks, their openings and expansions are here too: the
dealer, which squares a_A + a_B, loads nothing else of a submission.
"""

import struct
import sys

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

from precad.common import Digest, Role, Secret

RingVector = NDArray[np.int64]
"""``[d] int64``: elements of Z_2^64, by their signed representatives in
[−2^63, 2^63)."""

WORD_BYTES = 8
"""Bytes of an element."""
MODULUS = 2**64
_HALF = 2**63
KEY_BYTES = 32
"""Bytes of every key that is expanded."""
SEED_BYTES = KEY_BYTES
"""Bytes of the seed that a mask is expanded from."""
SALT_BYTES = 32
"""Bytes of a commitment's salt."""
DOMAIN = b"precad/v1/"
"""What every encoded context begins with, before its purpose."""
CACHED_WORDS = 1 << 16
"""Words that are drawn, masked or added together: the processor's cache holds them."""
_ZEROS = memoryview(bytes(1 << 18))
_pack_length = struct.Struct("<I").pack
_pack_length_and_number = struct.Struct("<IQ").pack


def signed(value: int) -> int:
    """Return the representative of ``value`` mod 2^64 in [−2^63, 2^63)."""
    return (value + _HALF) % MODULUS - _HALF


def dot(x: RingVector, y: RingVector) -> int:
    """Return the inner product ⟨x, y⟩ of two ``[n] int64``, mod 2^64 and signed."""
    # Wraps as np.dot does, and takes 0.6 of its time: integers have no BLAS.
    return signed(int(np.einsum("i,i", x, y)))


def to_bytes(x: RingVector) -> bytes:
    """Return the little-endian bytes of a vector, 8 for each element."""
    return x.astype("<i8", copy=False).tobytes()


def from_bytes(data: bytes | bytearray | memoryview) -> RingVector:
    """Return the vector whose ``to_bytes`` is ``data``, as a copy that may be changed.

    Raises ValueError: the length isn't a multiple of 8.
    """
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def view_words(data: bytes | bytearray | memoryview) -> RingVector:
    """Return the vector of ``from_bytes`` without a copy: it may not be changed.

    Raises ValueError: the length isn't a multiple of 8.
    """
    return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)


def encode_context(purpose: str, *context: bytes | int) -> bytes:
    """Return ``precad/v1/<purpose>`` and the context, each part behind its length.

    The encoding is injective: different parts never give the same bytes. An int stands
    for its 8 bytes; which parts are ints is fixed by the purpose.
    """
    encoded = []
    # Plain, because it is called hundreds of times a round.
    for part in (DOMAIN + purpose.encode(), *context):
        if isinstance(part, int):
            encoded.append(_pack_length_and_number(8, part))
        else:
            encoded += (_pack_length(len(part)), part)
    return b"".join(encoded)


def digest_of(purpose: str, *context: bytes | int) -> Digest:
    """Return the SHA-256 of ``encode_context(purpose, *context)``."""
    return Digest.of(encode_context(purpose, *context))


def derive(key: Secret, purpose: str, *context: bytes | int) -> Secret:
    """Return a 32-byte key for ``purpose``: HKDF-SHA256, with the context as info."""
    info = encode_context(purpose, *context)
    return Secret(HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key.reveal()))


class Keystream:
    """A sequential reader of AES-256-CTR under ``derive(key, purpose, *context)``."""

    def __init__(self, key: Secret, purpose: str, *context: bytes | int) -> None:
        stream_key = derive(key, purpose, *context).reveal()
        # A fixed counter start is safe: every derived key is used for one stream only.
        self._encryptor = Cipher(
            algorithms.AES256(stream_key), modes.CTR(bytes(16))
        ).encryptor()

    def words(self, count: int) -> RingVector:
        """Return the next ``count`` uniform ring elements, ``[count] int64``."""
        return self.words_into(np.empty(count, dtype=np.int64))

    def words_into(self, out: RingVector) -> RingVector:
        """Fill ``out``, a contiguous ``[n] int64``, with the next words; return it."""
        self.read_into(out.data.cast("B"))
        if sys.byteorder == "big":
            out.byteswap(inplace=True)
        return out

    def read_into(self, out: memoryview) -> memoryview:
        """Fill ``out``, a writable view of bytes, with the next bytes; return it."""
        return fill(out, self._encryptor)


def fill(out: memoryview, encryptor: CipherContext) -> memoryview:
    """Fill ``out``, a writable view of bytes, with a cipher's next bytes; return it."""
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
    """Return the commitment c_j = SHA-256(role j, ctx, salt_j, s_j) to a mask's seed.

    The salt hides the seed, and the hash binds to it. Role and context ``ctx`` are
    bound too: otherwise one client's commitment could stand for another's, or for the
    other role's.
    """
    return digest_of(
        "seed-commitment",
        role.value.encode(),
        ctx.value,
        salt.reveal(),
        seed.reveal(),
    )


def opens(
    *,
    commitment: Digest,
    role: Role,
    ctx: Digest,
    salt: Secret,
    seed: Secret,
) -> bool:
    """Return whether ``commitment`` is the one of ``role`` to this seed in ``ctx``.

    A salt or a seed of a wrong length opens nothing.
    """
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
    """Return the stream of the mask a_j = PRG(s_j; role j, ctx, c_A, c_B).

    It stands in x = b + a_A + a_B; ``words(n)`` reads it. It is bound to the
    submission, so that one seed never masks two vectors alike.
    """
    return Keystream(
        seed,
        "mask",
        role.value.encode(),
        ctx.value,
        commitment_a.value,
        commitment_b.value,
    )
