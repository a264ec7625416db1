"""A distributed comparison function gate by gate, in Python's integers: what NumPy must equal.

Written from the paper's algorithm (Boyle et al., EUROCRYPT 2021, Fig. 1) with left and right
children, one bit of value, and the block layout of docs/function-secret-sharing.md.
"""

import struct
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

SEED = 2**128 - 4


@dataclass(frozen=True)
class PlainKey:
    """One server's key of one function."""

    root: int
    corrections: list[tuple[int, int, int, int]]
    """Of each level: seed, value bit, control bits of the left and the right child."""
    final: int

    def encoded(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Root, correction words, control word, final word."""
        words = [seed | value << 1 | left for seed, value, left, _ in self.corrections]
        control = sum((left ^ right) << i for i, (*_, left, right) in enumerate(self.corrections))
        return (
            self.root.to_bytes(16, "little"),
            b"".join(word.to_bytes(16, "little") for word in words),
            struct.pack("<Q", control),
            self.final.to_bytes(16, "little"),
        )


class Stretch:
    """A node's children, and a leaf's bits."""

    def __init__(self, prg_key: bytes) -> None:
        self._aes = Cipher(algorithms.AES128(prg_key), modes.ECB()).encryptor()

    def block(self, x: int) -> int:
        permuted = self._aes.update(x.to_bytes(16, "little"))
        return int.from_bytes(permuted, "little") ^ x

    def child(self, seed: int, right: int) -> tuple[int, int, int]:
        """Seed, value bit, control bit."""
        block = self.block(seed | right)
        return block & SEED, block >> 1 & 1, block & 1

    def leaf(self, seed: int) -> int:
        return self.block(seed | 2)


def plain_keys(
    prg_key: bytes, alpha: int, roots: tuple[int, int], bits: int
) -> tuple[PlainKey, PlainKey]:
    stretch = Stretch(prg_key)
    seeds, controls, reached = [root & SEED for root in roots], [0, 1], 0
    own, corrections = tuple(seeds), []
    for level in range(bits - 7):
        keep = alpha >> (bits - 1 - level) & 1
        lose = 1 - keep
        children = [[stretch.child(seed, right) for right in (0, 1)] for seed in seeds]
        seed = children[0][lose][0] ^ children[1][lose][0]
        value = children[0][lose][1] ^ children[1][lose][1] ^ reached
        if lose == 0:
            value ^= 1  # All that turns left where alpha turns right is below alpha.
        left = children[0][0][2] ^ children[1][0][2] ^ keep ^ 1
        right = children[0][1][2] ^ children[1][1][2] ^ keep
        corrections.append((seed, value, left, right))
        reached ^= children[0][keep][1] ^ children[1][keep][1] ^ value
        for party in (0, 1):
            kept_seed, _, control = children[party][keep]
            seeds[party] = kept_seed ^ (seed if controls[party] else 0)
            controls[party] = control ^ (controls[party] & (right if keep else left))
    final = stretch.leaf(seeds[0]) ^ stretch.leaf(seeds[1])
    for place in range(128):
        final ^= (reached ^ (place < alpha % 128)) << place
    return PlainKey(own[0], corrections, final), PlainKey(own[1], corrections, final)


def plain_share(prg_key: bytes, party: int, key: PlainKey, x: int, bits: int) -> int:
    stretch, seed, control, value = Stretch(prg_key), key.root, party, 0
    for level, (cw_seed, cw_value, *cw_controls) in enumerate(key.corrections):
        turn = x >> (bits - 1 - level) & 1
        seed, child_value, child_control = stretch.child(seed, turn)
        if control:
            seed ^= cw_seed
            child_value ^= cw_value
            child_control ^= cw_controls[turn]
        value ^= child_value
        control = child_control
    leaf = stretch.leaf(seed) ^ (key.final if control else 0)
    return value ^ (leaf >> x % 128 & 1)
