"""Keys of a distributed comparison function, and their bytes.

One server's keys of a batch, little-endian, for N gates on words of n bits with m = n − 7 levels:

    version 1 ‖ party ‖ n ‖ 7 ‖ N in 4 bytes ‖ the generator's public key, 16 bytes
    N roots of 16 bytes ‖ m·N correction words of 16 bytes, level by level
    N control words of 8 bytes ‖ N final words of 16 bytes

952 bytes a gate at n = 64 (docs/function-secret-sharing.md, "Key format").
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.norm_check.fss.prg import BLOCK_BYTES, PRG_KEY_BYTES, SEED, WORD, Blocks, Words
from precad.norm_check.fss.tree import MOST_BITS, TERMINATED

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
