"""Words in as few bits as they need: noisy shares between servers, steps to owners.

Of each word its low bits travel. Words are taken a cacheful at a time: of one such
piece first come the whole bytes of each word, then the bits that are left, the lowest
first, without gaps. So 64 bits a word are the words' own little-endian bytes.

A released sum S that has been rounded to multiples of 2^k (``rounded``) is a *step*: an
owner that holds θ_t makes θ_{t+1} from it, with ``apply_update``, to the same bits as
the servers. Rounding comes after the release: no guarantee changes. With 2^k at most an
eighth of one server's noise it adds at most (2^k)²/12, 1/768 of that noise's variance,
and the numbers that are left fit 7 to 10 bits.
"""

import numpy as np

from precad.common import (
    WORD_BYTES,
    Digest,
    Mechanism,
    Misconfiguration,
    RingVector,
    digest_of,
)

_BITS = 8 * WORD_BYTES
_AT_ONCE = 1 << 15
"""Words of a piece; a multiple of 8, so that only the last one ends inside a byte."""


def packed_bytes(count: int, bits: int) -> int:
    """Return how many bytes ``count`` words of ``bits`` bits take."""
    whole, rest = divmod(bits, 8)
    return count * whole + -(-count * rest // 8)


def pack(words: RingVector, bits: int) -> bytes:
    """Return the low ``bits`` (1 to 64) of each word of ``[n] int64``."""
    whole, rest = divmod(bits, 8)
    packed = []
    for start in range(0, words.size, _AT_ONCE):
        piece = np.ascontiguousarray(words[start : start + _AT_ONCE], dtype="<i8")
        octets = piece.view(np.uint8).reshape(-1, WORD_BYTES)
        packed.append(octets[:, :whole].tobytes())
        if rest:
            left = np.unpackbits(
                octets[:, [whole]], axis=1, count=rest, bitorder="little"
            )
            packed.append(np.packbits(left, bitorder="little").tobytes())
    return b"".join(packed)


def unpack(data: bytes | memoryview, count: int, bits: int) -> RingVector:
    """Return the words of ``pack``, ``[count] int64`` in [−2^(bits−1), 2^(bits−1)).

    Raises Misconfiguration: ``data`` has another length.
    """
    if len(data) != packed_bytes(count, bits):
        remedy = f"{count} words of {bits} bits have {packed_bytes(count, bits)}"
        raise Misconfiguration("packed words", f"{len(data)} bytes", remedy)
    whole, rest = divmod(bits, 8)
    packed = np.frombuffer(data, np.uint8)
    words = np.zeros(count, dtype="<i8")
    at = 0
    for start in range(0, count, _AT_ONCE):
        octets = words[start : start + _AT_ONCE].view(np.uint8).reshape(-1, WORD_BYTES)
        here = len(octets)
        low = here * whole
        octets[:, :whole] = packed[at : at + low].reshape(here, whole)
        at += low
        if rest:
            length = packed_bytes(here, rest)
            # Eight words' bits are rest bytes: a number whose parts are shifted out.
            eights = np.zeros((-(-here // 8), WORD_BYTES), np.uint8)
            padded = np.zeros(len(eights) * rest, np.uint8)
            padded[:length] = packed[at : at + length]
            eights[:, :rest] = padded.reshape(-1, rest)
            left = eights.view("<u8") >> np.arange(0, 8 * rest, rest, dtype=np.uint64)
            octets[:, whole] = left.astype(np.uint8).ravel()[:here]
            at += length
    # The highest bit is the sign.
    words <<= _BITS - bits
    words >>= _BITS - bits
    return words.astype(np.int64, copy=False)


def rounded(total: RingVector, mechanism: Mechanism) -> RingVector:
    """Return S/2^k, ``[n] int64``, to the nearest, halves upwards; S itself for k = 0.

    ``total`` is S, within ±2^62; k is ``Mechanism.step_shift``.
    """
    shift = mechanism.step_shift
    half = (1 << shift) >> 1
    return (total + half) >> shift


def step_bytes(total: RingVector, mechanism: Mechanism) -> bytes:
    """Return S as a step: its width in bits, then S/2^k in that width."""
    small = rounded(total, mechanism)
    largest = max(int(small.max(initial=0)), -1 - int(small.min(initial=0)))
    bits = largest.bit_length() + 1
    return bytes([bits]) + pack(small, bits)


def read_step(data: bytes | bytearray, mechanism: Mechanism) -> RingVector:
    """Return the rounded S of ``step_bytes``, ``[d] int64``, a multiple of 2^k.

    Raises Misconfiguration: it is no step of this task.
    """
    bits = data[0] if data else 0
    if not 1 <= bits <= _BITS - mechanism.step_shift:
        raise Misconfiguration("step's width", bits, "must be bits of a word")
    small = unpack(memoryview(data)[1:], mechanism.dimension, bits)
    small <<= mechanism.step_shift
    return small


def step_digest(task: Digest, version: int, data: bytes | bytearray) -> Digest:
    """Return the SHA-256 of the step that makes θ_version, for both to sign."""
    return digest_of("step", task.value, version, bytes(data))
