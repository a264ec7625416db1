"""The dealer's part of a distributed comparison function: two keys to each [x < α].

A binary tree of blocks whose leaves are the words x (Boyle, Chandran, Gilboa, Gupta, Ishai, Kumar
and Rathee, "Function secret sharing for mixed-mode and fixed-point secure computation", EUROCRYPT
2021, Fig. 1; here with values of one bit, added by XOR). On the way to α the two servers' seeds
are independent and their control bits differ. Where x leaves that way a correction word makes
seeds and control bits equal, so that all further values cancel, and lets the value bits differ in
all exactly where x turned left and α turns right, which is where x < α.

No branch and no address depends on α, a root or a key.
"""

import numpy as np

from precad.norm_check.fss.keys import DcfKeys
from precad.norm_check.fss.prg import LEAF, ONE, SEED, WORD, Blocks, FixedKeyPrg, Words
from precad.norm_check.fss.tree import (
    LEAF_VALUES,
    LEAST_BITS,
    MOST_BITS,
    TERMINATED,
    modulus_mask,
    parts,
    turns,
)

_WORD_BITS = 64
_TOGETHER = 1 << 10
"""Gates that go down their trees together: what all their levels leave stays in the cache."""


def generate(
    prg_key: bytes, alpha: Words, roots: Blocks, bits: int = MOST_BITS
) -> tuple[DcfKeys, DcfKeys]:
    """Both servers' keys of the functions x ↦ [x < α].

    Args:
        prg_key: 16 bytes, fresh for this batch; public.
        alpha: ``[N] uint64``, each below 2^n.
        roots: ``[2, N, 2] uint64``, uniform, and never used before: two keys from one root show
            at which bit two α first differ. ``roots.draw_roots`` makes them.
        bits: n, the words' size, 8 to 64.

    Raises:
        ValueError: shapes, α or n don't fit: a caller's mistake.
    """
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise ValueError(f"words of {bits} bits: {LEAST_BITS} to {MOST_BITS} may be compared")
    if alpha.ndim != 1 or roots.shape != (2, alpha.size, 2):
        raise ValueError(f"roots of shape {roots.shape} for alpha of shape {alpha.shape}")
    if (alpha > modulus_mask(bits)).any():
        raise ValueError(f"alpha must be below 2^{bits}")
    gates, prg = alpha.size, FixedKeyPrg(prg_key)
    roots = roots.astype(WORD)
    roots[..., 0] &= SEED
    corrections = np.empty((bits - TERMINATED, gates, 2), dtype=WORD)
    controls = np.empty(gates, dtype=WORD)
    finals = np.empty((gates, 2), dtype=WORD)
    for part in parts(gates, _TOGETHER):
        path = turns(alpha[part], bits)
        kept, leaves = _descend(prg, path, roots[:, part], lost=corrections[:, part])
        controls[part], reached = _correct(path, kept, corrections[:, part])
        finals[part] = leaves ^ _leaf_values(alpha[part], reached)
    of_0, of_1 = (
        DcfKeys(party, bits, prg_key, roots[party], corrections, controls, finals)
        for party in (0, 1)
    )
    return of_0, of_1


def _descend(prg: FixedKeyPrg, path: Words, roots: Blocks, lost: Blocks) -> tuple[Words, Blocks]:
    """Both servers' way to α.

    Args:
        prg: the batch's.
        path: ``[m, N]``, α's turns.
        roots: ``[2, N, 2]``.
        lost: ``[m, N, 2]``, written: the XOR of both servers' children that the path loses.

    Returns:
        ``[m, N]``: the low words of the XOR of the children that it keeps; ``[N, 2]``: the XOR of
        both servers' leaves.
    """
    kept = np.empty_like(path)
    # Kept and lost child, each at both servers.
    nodes = np.empty((2, *roots.shape), dtype=WORD)
    children = np.empty_like(nodes)
    nodes[0] = roots
    # One row for both servers, and one for each: NumPy is several times as fast on those.
    low, lost_low = (each.reshape(-1, 2)[:, 0] for each in nodes)
    low_0, low_1 = nodes[0, :, :, 0]
    # All ones where server 0's control bit is set; where it isn't, server 1's is.
    corrected = np.zeros_like(roots[0])
    for level, turned in enumerate(path):
        low_0 |= turned
        low_1 |= turned
        nodes[1] = nodes[0]
        lost_low ^= ONE
        prg.stretch(nodes, children)
        (own, other), (own_lost, other_lost) = children
        np.bitwise_xor(own[:, 0], other[:, 0], out=kept[level])
        np.bitwise_xor(own_lost, other_lost, out=lost[level])
        # The lost child's seeds become equal; the kept one's control bits go on being different.
        correction = lost[level].copy()
        correction[:, 0] |= ONE
        correction[:, 0] ^= kept[level] & ONE
        corrected &= correction
        np.bitwise_xor(own, corrected, out=nodes[0, 0])
        corrected ^= correction
        np.bitwise_xor(other, corrected, out=nodes[0, 1])
        np.negative(low_0 & ONE, out=corrected[:, 0])
        corrected[:, 1] = corrected[:, 0]
        low &= SEED
    low |= LEAF
    prg.stretch(nodes[0], children[0])
    return kept, children[0, 0] ^ children[0, 1]


def _correct(path: Words, kept: Words, corrections: Blocks) -> tuple[Words, Words]:
    """Make correction words of the lost children, whose seeds they have already.

    Where α turns right the lost child is the left one, and its values must be 1 more than those
    that α has reached.

    Returns:
        ``[N]`` control words, and ``[N]``: the value bits that α reaches.
    """
    low = corrections[:, :, 0]
    differ = kept ^ low
    reached = (differ[-1] >> ONE & ONE) ^ path[-1]
    # Control bits: the left child's, so that they are fixed where it is the kept one.
    unlike = ~differ
    unlike &= ONE
    fix = path ^ ONE
    fix &= unlike
    unlike <<= np.arange(len(path), dtype=WORD)[:, None]
    # Value bits: of this turn, and of what was reached before, which is the turn before it and
    # the value bits of both children there.
    fix ^= path << ONE
    differ &= LEAF
    differ ^= path << ONE
    fix[1:] ^= differ[:-1]
    low ^= fix
    return np.bitwise_or.reduce(unlike, axis=0), reached


def _leaf_values(alpha: Words, reached: Words) -> Blocks:
    """``[N, 2]``: bit j of a block is [j < α's last seven bits], and what is reached already."""
    last = (alpha & np.uint64(LEAF_VALUES - 1)).astype(np.int64)
    values = np.empty((alpha.size, 2), dtype=WORD)
    for word in range(2):
        ones = np.clip(last - _WORD_BITS * word, 0, _WORD_BITS - 1).astype(WORD)
        values[:, word] = (ONE << ones) - ONE
    # A shift by 64 isn't defined: the first word's top bit is set where j = 63 is below.
    values[:, 0] |= (last >= _WORD_BITS).astype(WORD) << np.uint64(_WORD_BITS - 1)
    return values ^ np.negative(reached)[:, None]
