"""A server's part of a distributed comparison function: its share of [x < α], alone."""

import numpy as np
from numpy.typing import NDArray

from precad.norm_check.fss.keys import DcfKeys
from precad.norm_check.fss.prg import LEAF, ONE, SEED, WORD, FixedKeyPrg, Words
from precad.norm_check.fss.tree import LEAF_VALUES, modulus_mask, parts, turn

Bits = NDArray[np.uint8]
"""``[…] uint8``, each 0 or 1."""
_WORD_BITS = 64
_TOGETHER = 1 << 13
"""Gates that go down their trees together: their blocks stay in the processor's cache."""


def evaluate(keys: DcfKeys, points: Words) -> Bits:
    """This server's share by XOR of [x < α]: 1 at exactly one of the servers where x < α.

    Args:
        keys: this server's, of N gates.
        points: ``[q, N] uint64``, below 2^n: q points for each gate; public.

    Returns:
        ``[q, N] uint8``, 0 or 1.

    Raises:
        ValueError: the points don't fit the keys: a caller's mistake.
    """
    if points.shape[1:] != (keys.gates,):
        raise ValueError(f"points of shape {points.shape} for {keys.gates} gates")
    if (points > modulus_mask(keys.bits)).any():
        raise ValueError(f"points must be below 2^{keys.bits}")
    prg = FixedKeyPrg(keys.prg_key)
    shares = np.empty(points.shape, dtype=np.uint8)
    for part in parts(keys.gates, _TOGETHER):
        shares[:, part] = _evaluate(prg, keys.part(part), points[:, part])
    return shares


def _evaluate(prg: FixedKeyPrg, keys: DcfKeys, points: Words) -> Bits:
    """One row for all points, q times N: NumPy is several times as fast on those."""
    repeats = len(points)
    row = np.ascontiguousarray(points).reshape(-1)
    nodes = np.empty((row.size, 2), dtype=WORD)
    children, correction = np.empty_like(nodes), np.empty_like(nodes)
    nodes.reshape(*points.shape, 2)[:] = keys.roots
    tiled = correction.reshape(*points.shape, 2)
    controls = np.tile(keys.controls, repeats)
    values = np.zeros(row.size, dtype=WORD)
    # All ones where the control bit is set; at the root it is the party's number.
    corrected = np.negative(np.full_like(nodes, keys.party))
    for level, shared in enumerate(keys.corrections):
        right = turn(row, level, keys.bits)
        nodes[:, 0] |= right
        prg.stretch(nodes, children)
        tiled[:] = shared
        right &= controls
        controls >>= ONE
        correction[:, 0] ^= right
        correction &= corrected
        children ^= correction
        low = children[:, 0]
        values ^= low
        np.negative(low & ONE, out=corrected[:, 0])
        corrected[:, 1] = corrected[:, 0]
        low &= SEED
        nodes, children = children, nodes
    nodes[:, 0] |= LEAF
    prg.stretch(nodes, children)
    tiled[:] = keys.finals
    children ^= correction & corrected
    place = row & np.uint64(LEAF_VALUES - 1)
    words = children[np.arange(row.size), (place // np.uint64(_WORD_BITS)).astype(np.intp)]
    shares = ((words >> place % np.uint64(_WORD_BITS)) ^ (values >> ONE)) & ONE
    found: Bits = shares.astype(np.uint8).reshape(points.shape)
    return found
