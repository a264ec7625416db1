"""The interval gate: shares of [lo ≤ c + t ≤ hi] for a public c and an offset t in the keys.

One key of a distributed comparison function for α = −t, evaluated at two points (Boyle, Chandran,
Gilboa, Gupta, Ishai, Kumar and Rathee, EUROCRYPT 2021, Sec. 4.1). All arithmetic is mod 2^n. With
p = c − lo and a width of w = hi − lo + 1,

    [lo ≤ c + t ≤ hi] = [p − w < α] − [p < α] + [p < w],

because subtracting α from p, and from p − w, wraps exactly where it is smaller. It is right for
every c and t. The values are bits, so that XOR adds them.
"""

import secrets
from collections.abc import Sequence

import numpy as np

from precad.common.secret import Secret
from precad.norm_check.fss.evaluate import Bits, evaluate
from precad.norm_check.fss.generate import generate
from precad.norm_check.fss.keys import DcfKeys
from precad.norm_check.fss.prg import ONE, PRG_KEY_BYTES, WORD, Blocks, Words
from precad.norm_check.fss.roots import draw_roots
from precad.norm_check.fss.tree import MOST_BITS, modulus_mask


def deal_intervals(
    offsets: Words, contexts: Sequence[Secret], bits: int = MOST_BITS
) -> tuple[DcfKeys, DcfKeys]:
    """Both servers' keys, from fresh randomness: a second call has nothing in common with this.

    Args:
        offsets: ``[n, g] uint64``: t of g gates for each of n contexts, below 2^bits.
        contexts: n; each names all that its offsets depend on (``draw_roots``).
        bits: the words' size.

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
        keys: this server's, of N gates.
        points: ``[N] uint64``, the public c; below 2^n, like the bounds.
        low: ``[N] uint64``; public, and no secret offset is in it.
        high: ``[N] uint64``, above ``low`` or below it: an interval may wrap.

    Returns:
        ``[N] uint8``: in an interval 1 at exactly one server, outside the same at both.

    Raises:
        ValueError: shapes differ, a word is too large, or an interval holds every word.
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
