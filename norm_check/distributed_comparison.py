"""The dealer's part of a distributed comparison function: two keys to each [x < α].

A binary tree of blocks whose leaves are the words x (Boyle, Chandran, Gilboa, Gupta, Ishai, Kumar
and Rathee, "Function secret sharing for mixed-mode and fixed-point secure computation", EUROCRYPT
2021, Fig. 1; here with values of one bit, added by XOR). On the way to α the two servers' seeds
are independent and their control bits differ. Where x leaves that way a correction word makes
seeds and control bits equal, so that all further values cancel, and lets the value bits differ in
all exactly where x turned left and α turns right, which is where x < α.

No branch and no address depends on α, a root or a key.
"""

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precad.common.secret import Secret
from precad.norm_check.comparison_keys import (
    LEAF,
    LEAF_VALUES,
    LEAST_BITS,
    MOST_BITS,
    ONE,
    PRG_KEY_BYTES,
    SEED,
    TERMINATED,
    WORD,
    Blocks,
    DcfKeys,
    FixedKeyPrg,
    Words,
    draw_roots,
    modulus_mask,
    parts,
    turn,
    turns,
)

_WORD_BITS = 64
_GENERATED_TOGETHER = 1 << 10
"""Gates that go down their trees together: what all their levels leave stays in the cache."""


def generate(
    prg_key: bytes, alpha: Words, roots: Blocks, bits: int = MOST_BITS
) -> tuple[DcfKeys, DcfKeys]:
    """Both servers' keys of the functions x ↦ [x < α].

    Args:
        prg_key: 16 bytes, fresh for this batch; public.
        alpha: ``[N] uint64``, each below 2^n.
        roots: ``[2, N, 2] uint64``, uniform, and never used before: two keys from one root show
            at which bit two α first differ. ``comparison_keys.draw_roots`` makes them.

    Raises ValueError: shapes, α or n don't fit: a caller's mistake.
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
    for part in parts(gates, _GENERATED_TOGETHER):
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


# A server's part of a distributed comparison function: its share of [x < α], alone.


Bits = NDArray[np.uint8]
"""``[…] uint8``, each 0 or 1."""
_EVALUATED_TOGETHER = 1 << 13
"""Gates that go down their trees together: their blocks stay in the processor's cache."""


def evaluate(keys: DcfKeys, points: Words) -> Bits:
    """This server's share by XOR of [x < α]: 1 at exactly one of the servers where x < α.

    Args:
        points: ``[q, N] uint64``, below 2^n: q points for each gate; public.

    Returns:
        ``[q, N] uint8``, 0 or 1.

    Raises ValueError: the points don't fit the keys: a caller's mistake.
    """
    if points.shape[1:] != (keys.gates,):
        raise ValueError(f"points of shape {points.shape} for {keys.gates} gates")
    if (points > modulus_mask(keys.bits)).any():
        raise ValueError(f"points must be below 2^{keys.bits}")
    prg = FixedKeyPrg(keys.prg_key)
    shares = np.empty(points.shape, dtype=np.uint8)
    for part in parts(keys.gates, _EVALUATED_TOGETHER):
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


# The interval gate: shares of [lo ≤ c + t ≤ hi] for a public c and an offset t in the keys.
#
# One key of a distributed comparison function for α = −t, evaluated at two points (Boyle, Chandran,
# Gilboa, Gupta, Ishai, Kumar and Rathee, EUROCRYPT 2021, Sec. 4.1). All arithmetic is mod 2^n. With
# p = c − lo and a width of w = hi − lo + 1,
#
#     [lo ≤ c + t ≤ hi] = [p − w < α] − [p < α] + [p < w],
#
# because subtracting α from p, and from p − w, wraps exactly where it is smaller. It is right for
# every c and t. The values are bits, so that XOR adds them.


def deal_intervals(
    offsets: Words, contexts: Sequence[Secret], bits: int = MOST_BITS
) -> tuple[DcfKeys, DcfKeys]:
    """Both servers' keys, from fresh randomness: a second call has nothing in common with this.

    Args:
        offsets: ``[n, g] uint64``: t of g gates for each of n contexts, below 2^bits.

    Returns:
        Keys of n·g gates, context by context: server 0's, then server 1's.
    """
    named, gates = offsets.shape
    if named != len(contexts):
        raise ValueError(f"offsets of shape {offsets.shape} for {len(contexts)} contexts")
    roots = draw_roots(contexts, gates)
    return generate_intervals(secrets.token_bytes(PRG_KEY_BYTES), offsets.reshape(-1), roots, bits)


def generate_intervals(
    prg_key: bytes, offsets: Words, roots: Blocks, bits: int = MOST_BITS
) -> tuple[DcfKeys, DcfKeys]:
    """As ``deal_intervals``, of ``[N]`` offsets and given randomness (``generate``)."""
    return generate(prg_key, np.negative(offsets) & modulus_mask(bits), roots, bits)


def evaluate_intervals(keys: DcfKeys, points: Words, low: Words, high: Words) -> Bits:
    """This server's shares by XOR of [low ≤ c + t ≤ high], computed alone.

    Args:
        points: ``[N] uint64``, the public c; below 2^n, like the bounds.
        low: ``[N] uint64``; public, and no secret offset is in it.
        high: ``[N] uint64``, above ``low`` or below it: an interval may wrap.

    Returns:
        ``[N] uint8``: in an interval 1 at exactly one server, outside the same at both.

    Raises ValueError: shapes differ, a word is too large, or an interval holds every word.
    """
    mask = modulus_mask(keys.bits)
    if not points.shape == low.shape == high.shape == (keys.gates,):
        raise ValueError(f"{points.shape} points in {low.shape} to {high.shape}: {keys.gates}")
    width = (high - low + ONE) & mask
    if not width.all():
        raise ValueError("an interval of all words needs no gate")
    ends = np.empty((2, points.size), dtype=WORD)
    ends[0] = (points - low) & mask
    ends[1] = (ends[0] - width) & mask
    at_start, before = evaluate(keys, ends)
    shares: Bits = at_start ^ before
    if keys.party == 0:
        shares ^= ends[0] < width
    return shares
