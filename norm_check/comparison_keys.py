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

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.keystream import encode_context
from precad.common.secret import Secret

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


# The shape of a comparison's tree, whose leaves are the words of n bits.
#
# Level i turns left where bit n − 1 − i of a word is 0, right where it is 1. The last seven levels
# are one block's 128 bits, one for each word (Boyle, Gilboa and Ishai, "Function secret sharing:
# improvements and extensions", CCS 2016, Sec. 3.2.3).


TERMINATED = 7
"""Levels that the tree ends early."""
LEAF_VALUES = 1 << TERMINATED
LEAST_BITS, MOST_BITS = TERMINATED + 1, 64


def turn(words: Words, level: int, bits: int) -> Words:
    """``[N]``: 1 where a word's path turns right at ``level``, 0 where left."""
    right = words >> np.uint64(bits - 1 - level)
    right &= ONE
    return right


def turns(words: Words, bits: int) -> Words:
    """``[m, N]``: all turns of the paths of ``[N]`` words; m = n − 7."""
    places = np.arange(bits - 1, TERMINATED - 1, -1, dtype=WORD)
    right = words >> places[:, None]
    right &= ONE
    return right


def modulus_mask(bits: int) -> np.uint64:
    """2^n − 1: arithmetic mod 2^n is that of 64 bits under this mask."""
    return np.uint64(2**bits - 1)


def parts(gates: int, together: int) -> Iterator[slice]:
    """The gates of a batch, about ``together`` of them at a time, in parts of one size.

    A small rest would take as many calls of NumPy as a whole part.
    """
    count = max(round(gates / together), min(gates, 1))
    ends = np.linspace(0, gates, count + 1).astype(int)
    yield from (slice(start, end) for start, end in pairwise(ends.tolist()))


# Keys of a distributed comparison function, and their bytes.
#
# One server's keys of a batch, little-endian, for N gates on words of n bits with m = n − 7 levels:
#
#     version 1 ‖ party ‖ n ‖ 7 ‖ N in 4 bytes ‖ the generator's public key, 16 bytes
#     N roots of 16 bytes ‖ m·N correction words of 16 bytes, level by level
#     N control words of 8 bytes ‖ N final words of 16 bytes
#
# 952 bytes a gate at n = 64 (docs/function-secret-sharing.md, "Key format").


VERSION = 1
_HEADER = struct.Struct(f"<BBBBI{PRG_KEY_BYTES}s")
_REMEDY = "the dealer and both servers must run the same version of precad"


def gate_bytes(bits: int = MOST_BITS) -> int:
    """Bytes of one gate's key, for one server."""
    return (2 + bits - TERMINATED) * BLOCK_BYTES + WORD.itemsize


def keys_bytes(gates: int, bits: int = MOST_BITS) -> int:
    """Bytes of a batch's keys, for one server."""
    return _HEADER.size + gates * gate_bytes(bits)


@dataclass(frozen=True, slots=True, eq=False)
class DcfKeys:
    """One server's keys of N functions x ↦ [x < α] on Z_2^n; m = n − 7.

    Used once: whoever holds both servers' keys, or two keys from one root, learns about α.
    """

    party: int
    """0 or 1: whose keys these are."""
    bits: int
    """n."""
    prg_key: bytes
    """The generator's, 16 bytes; public."""
    roots: Blocks = field(repr=False)
    """``[N, 2]``: this server's alone."""
    corrections: Blocks = field(repr=False)
    """``[m, N, 2]``: of each level, the same for both servers. Bit 0 of the low word is the left
    child's control bit, bit 1 the value bit, the rest the seed."""
    controls: Words = field(repr=False)
    """``[N]``: bit i says whether level i corrects the two children's control bits differently."""
    finals: Blocks = field(repr=False)
    """``[N, 2]``: of the leaf's 128 values."""

    @property
    def gates(self) -> int:
        """N."""
        return len(self.roots)

    def part(self, gates: slice | NDArray[np.intp]) -> "DcfKeys":
        """The keys of some of the gates; without a copy for a slice."""
        return replace(
            self,
            roots=self.roots[gates],
            corrections=self.corrections[:, gates],
            controls=self.controls[gates],
            finals=self.finals[gates],
        )

    def to_bytes(self) -> bytes:
        """What the dealer sends to this server, directly, and to nobody else."""
        header = _HEADER.pack(VERSION, self.party, self.bits, TERMINATED, self.gates, self.prg_key)
        arrays = self.roots, self.corrections, self.controls, self.finals
        return b"".join((header, *(np.ascontiguousarray(each, dtype=WORD).data for each in arrays)))


def keys_from_bytes(
    data: bytes | bytearray | memoryview, *, party: int, gates: int, bits: int = MOST_BITS
) -> DcfKeys:
    """The keys that ``party`` was sent for ``gates`` gates; a view of ``data``, not a copy.

    There is one encoding of each batch of keys: whatever isn't it is refused here, so that nothing
    else is ever evaluated.

    Raises:
        Misconfiguration: another version, party, word size, number or length, or a bit is set
            that belongs to no key. It shows no secret.
    """
    if len(data) < _HEADER.size:
        raise Misconfiguration(
            "gate keys", f"{len(data)} bytes", f"shorter than a header; {_REMEDY}"
        )
    version, *rest, prg_key = _HEADER.unpack_from(data)
    found = dict(zip(("party", "bits", "terminated", "gates"), rest, strict=True))
    expected = {"party": party, "bits": bits, "terminated": TERMINATED, "gates": gates}
    if version != VERSION:
        raise Misconfiguration("gate keys' version", version, f"must be {VERSION}; {_REMEDY}")
    for name, right in expected.items():
        if found[name] != right:
            raise Misconfiguration(f"gate keys' {name}", found[name], f"must be {right}; {_REMEDY}")
    if len(data) != keys_bytes(gates, bits):
        raise Misconfiguration(
            "gate keys", f"{len(data)} bytes", f"must have {keys_bytes(gates, bits)}; {_REMEDY}"
        )
    levels = bits - TERMINATED
    shapes = (gates, 2), (levels, gates, 2), (gates,), (gates, 2)
    keys = DcfKeys(party, bits, prg_key, *_arrays(memoryview(data)[_HEADER.size :], *shapes))
    for name, stray in (
        ("roots", keys.roots[:, 0] & ~SEED),
        ("controls", keys.controls >> np.uint64(levels)),
    ):
        if stray.any():
            raise Misconfiguration(
                f"gate keys' {name}", f"gate {stray.argmax()}", f"unused bits must be 0; {_REMEDY}"
            )
    return keys


def _arrays(data: memoryview, *shapes: tuple[int, ...]) -> Iterator[Words]:
    words, start = np.frombuffer(data, dtype=WORD), 0
    for shape in shapes:
        size = int(np.prod(shape))
        yield words[start : start + size].reshape(shape)
        start += size


# The randomness of a batch of keys: fresh, and bound to what the keys are for.


FRESH_BYTES = 32


def draw_roots(contexts: Sequence[Secret], gates: int) -> Blocks:
    """Roots of ``gates`` gates for each context, for both servers: ``[2, n·gates, 2] uint64``.

    Fresh at every call, from the operating system's CSPRNG. Should a machine that was set back
    ever draw the same bytes again, other contexts still have other roots: two keys from one root
    show at which bit their offsets first differ.

    Args:
        contexts: n; each names all that its gates' offsets depend on.
    """
    return derive_roots(Secret.random(FRESH_BYTES), contexts, gates)


def derive_roots(fresh: Secret, contexts: Sequence[Secret], gates: int) -> Blocks:
    """SHAKE-256 of ``fresh``, the context's number and the context: server 0's roots, then 1's."""
    roots = np.empty((2, len(contexts), gates, 2), dtype=WORD)
    for number, context in enumerate(contexts):
        named = encode_context("gate-roots", fresh.reveal(), number, context.reveal())
        drawn = hashlib.shake_256(named).digest(2 * gates * BLOCK_BYTES)
        roots[:, number] = np.frombuffer(drawn, dtype=WORD).reshape(2, gates, 2)
    return roots.reshape(2, -1, 2)
