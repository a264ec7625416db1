"""The ring Z_2^64: keystreams of its elements (HKDF-SHA256, then AES-256-CTR), and fixed point.

Shares, masks and sums are ``[d] int64``, little-endian on the wire. NumPy's int64
*array* arithmetic wraps modulo 2^64; Python ints don't, so scalars pass through
``signed``.

Every expansion names its purpose and its context (task, round, client, commitments …),
so that no two uses of one key ever share a stream. The seeds of a submission's masks
are committed to, opened and expanded here: the dealer, which squares a_A + a_B, loads
no more of a submission.

Updates become elements with f fractional bits, and clips in float64 hold in the
integers too. Encoding rounds toward zero, so that it never lengthens a vector:
‖encode(x)‖ ≤ ‖x‖·2^f. Record: gradients are clipped to R(1−2^−20), encoded, and summed
as integers, so that one record moves the sum by at most R·2^f whatever the chunking.
Client: the sum is clipped to (β·2^−f)(1−2^−30) and encoded again, so that X·X ≤ β²
holds exactly (docs/soundness.md, "Honest updates keep the bound"). No sum makes the
client's clip raise: an owner that falls silent would tell everybody something about its
records.
"""

import math
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

from precad.common.errors import Misconfiguration
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


RECORD_MARGIN = 1.0 - 2.0**-20
CLIENT_MARGIN = 1.0 - 2.0**-30
_AGAIN = 1.0 - 2.0**-20


def clip_record_norm(
    gradients: NDArray[np.float64], record_clip: float
) -> NDArray[np.float64]:
    """Each record's row, ``[records, d] float64``, scaled to norm at most R(1−2^−20) if longer.

    PRECAD Algorithm 2, line 4. Raises Misconfiguration: a gradient holds NaN or an
    infinity.
    """
    relative, unit, lengths = _relative(gradients)
    bound = record_clip * RECORD_MARGIN
    with np.errstate(over="ignore"):
        limits = bound / unit
    # Never through the absolute norm: it may overflow though every entry is finite.
    factors = np.divide(
        bound, lengths, out=np.ones_like(lengths), where=lengths > limits
    )
    clipped: NDArray[np.float64] = np.where(
        lengths > limits, relative * factors, gradients
    )
    return clipped


def clip_record_adaptively(
    gradients: NDArray[np.float64], record_clip: float, stabiliser: float
) -> NDArray[np.float64]:
    """Each row g as R(1−2^−20)·g/(‖g‖ + s/(‖g‖ + s)): PSAC (Xia et al. 2023; DP-CERT eq. 9).

    The divisor is above ‖g‖, so every row's norm is below R, as ``clip_record_norm``
    has it: R stays the sensitivity. Zero stays zero. s, the ``stabiliser``, is r in the
    paper, and above 0.

    Raises Misconfiguration: a gradient holds NaN or an infinity.
    """
    relative, unit, lengths = _relative(gradients)
    with np.errstate(over="ignore"):
        # Of a norm that overflows the correction is 0; of a tiny unit it may be
        # infinite, and the row, which encodes to zero anyway, becomes zero.
        correction = stabiliser / (lengths * unit + stabiliser) / unit
    scaled: NDArray[np.float64] = relative * (
        record_clip * RECORD_MARGIN / (lengths + correction)
    )
    return scaled


def _relative(
    gradients: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows over their largest entries, those entries, and the norms of the rows so scaled."""
    # Scaled by the largest entry first: squares of huge gradients would overflow.
    largest = np.maximum(
        gradients.max(axis=1, initial=0.0), -gradients.min(axis=1, initial=0.0)
    )
    if not np.isfinite(largest).all():
        row = int(np.argmin(np.isfinite(largest)))
        field = f"gradient of sampled record {row}"
        remedy = "must be finite; check that record, the loss and the learning rate"
        raise Misconfiguration(field, float(largest[row]), remedy)
    unit = np.where(largest > 0, largest, 1.0)[:, None]
    relative = gradients / unit
    lengths = np.linalg.norm(relative, axis=1, keepdims=True)
    return relative, unit, lengths


def clip_update(total: RingVector, bound: int, fractional_bits: int) -> RingVector:
    """The integer sum, projected so that X·X ≤ β²; PRECAD Algorithm 2, line 7.

    ``[d] int64``: ``total`` itself where it already is so short. Where float64 lets the
    scaled sum slip over β, it is scaled by 1−2^−20 up to three times more, and then
    zero.

    Raises Misconfiguration: β < 1, which no task has.
    """
    if bound < 1:
        raise Misconfiguration("bound", bound, "β must be at least 1")
    if squared_norm(total) <= bound * bound:
        return total
    real = decode(total, fractional_bits)
    target = math.ldexp(bound, -fractional_bits) * CLIENT_MARGIN
    largest = float(np.max(np.abs(real)))
    norm = largest * float(np.linalg.norm(real / largest))
    for again in range(4):  # once, and three times again
        clipped = encode(real * (target / norm * _AGAIN**again), fractional_bits)
        if squared_norm(clipped) <= bound * bound:
            return clipped
    return np.zeros_like(total)


def squared_norm(x: RingVector) -> int:
    """X·X over the integers, exact for any int64 vector."""
    largest = max(int(x.max(initial=0)), -int(x.min(initial=0)))
    if largest * largest * max(x.size, 1) < 2**63:
        return int(np.dot(x, x))
    return sum(value * value for value in x.tolist())


_LIMIT = 2.0**62


def encode(x: NDArray[np.float64], fractional_bits: int) -> RingVector:
    """``trunc(x·2^f)``, same shape, int64.

    Raises Misconfiguration: an element is NaN, infinite, or its encoding is 2^62 or
    more.
    """
    with np.errstate(over="ignore"):  # an infinity is refused below
        scaled = x * math.ldexp(1.0, fractional_bits)
    # Extremes hand NaN on, and the comparisons are False for it.
    if not (scaled.min(initial=0.0) > -_LIMIT and scaled.max(initial=0.0) < _LIMIT):
        where = tuple(int(i) for i in np.argwhere(~(np.abs(scaled) < _LIMIT))[0])
        remedy = (
            f"must be finite and below 2^{62 - fractional_bits} to be encoded with "
            f"{fractional_bits} fractional bits; check the data and the loss for NaN"
        )
        raise Misconfiguration(f"update{list(where)}", float(x[where]), remedy)
    return scaled.astype(np.int64)  # which drops the fraction


def decode(x: RingVector, fractional_bits: int) -> NDArray[np.float64]:
    """``x·2^−f`` in float64, same shape."""
    return np.ldexp(x.astype(np.float64), -fractional_bits)
