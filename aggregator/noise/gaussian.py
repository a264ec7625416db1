"""The discrete Gaussian N_Z(0, s²), P[y] ∝ f(y) = exp(−y²/2s²), drawn by vectorised rejection.

A proposal is a block q, an offset u uniform in [0, B) and a sign; its magnitude is y = qB + u. A
block is picked with probability m_q/2^64 (``blocks``), so y is proposed with m_q/(2^64·B), and it
is accepted with probability c·f(y)/m_q, which is at most 1. What is accepted has probability
∝ f(y): m_q cancels, whatever it was rounded to. Zero with a minus is refused, or it would count
twice. About 95 of 100 proposals are accepted.

**Exactness.** Block, offset and sign are integers from uniform bits. Acceptance compares a uniform
U in [0, 1) with c·f(y)/m_q: in float64 where they are further apart than ``MARGIN`` = 2^−32, and
in as many decimal digits and bits of U as it takes where they aren't, once in 2^31 proposals. The
float64 value is within 2^−48 (twelve roundings and ``exp``); NumPy's ``exp`` would have to be
wrong by a million of its last places to decide anything wrongly. So no decision is approximate.

**Statistical distance.** Only the tail beyond 256 blocks is missing. They reach at least 16s, and
the discrete Gaussian is sub-Gaussian with s² (Canonne, Kamath and Steinke 2020, Fact 19), so the
total variation distance of a sample is at most P[|y| ≥ 16s] ≤ 2·e^−128 < 2^−183: ``TAIL``. Of d
coordinates in T rounds it is at most d·T times that; for d·T = 10^12, below 2^−143. It would add
(1 + e^ε)·d·T·2^−183 to δ: nothing at any ε that means something, so no account carries it. An s
whose table reached less far is refused.

**Bits.** The operating system's CSPRNG gives a fresh key a call, expanded by AES-256-CTR: three
words a proposal. How many proposals were refused says nothing about those that were accepted.

Source: rejection from a table by blocks as in Karney 2016 and Micciancio and Walter 2017; the
distribution and why it is private: Canonne, Kamath and Steinke 2020.
"""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.noise.blocks import COLUMNS, Blocks, weight
from precad.common.keystream import Keystream
from precad.common.ring import RingVector
from precad.common.secret import Secret

LEAST, LIMIT = 0.5, 2.0**58
"""s lies in [1/2, 2^58): the largest magnitude, and twice it, fit a word."""
REACH = 16
"""Standard deviations that the table covers at least."""
TAIL = 2.0**-183
"""Total variation distance of a sample from N_Z(0, s²), at most: 2·exp(−16²/2)."""
MARGIN = 2.0**-32
"""Where U is nearer to the probability of acceptance, exact arithmetic decides."""
CHUNK = 1 << 15
"""Proposals at a time: the arrays stay in the processor's cache."""
_WORDS = 3


def fresh_stream() -> Keystream:
    """Bits for one call, from the operating system's CSPRNG."""
    return Keystream(Secret.random(), "noise")


class DiscreteGaussian:
    """Discrete Gaussian N_Z(0, s²) for each coordinate, within 2^−183 a coordinate.

    Args:
        noise_units: s, standard deviation in units of the last place (``Task.noise_units``).
        stream: makes the source of a call's bits; tests give one that repeats itself.
        margin: as ``MARGIN``; tests have everything decided exactly.

    Raises:
        ValueError: s isn't in [1/2, 2^58).
    """

    def __init__(
        self,
        noise_units: float,
        stream: Callable[[], Keystream] = fresh_stream,
        margin: float = MARGIN,
    ) -> None:
        if not LEAST <= noise_units < LIMIT:
            raise ValueError(f"noise_units is {noise_units}: give a number from 1/2 to below 2^58")
        self.noise_units = noise_units
        self._stream, self._margin = stream, margin
        self._blocks = Blocks.of(noise_units)
        if COLUMNS << self._blocks.width_bits < REACH * noise_units:
            raise ValueError(f"noise_units is {noise_units}: its table reaches less than 16 of it")

    def draw(self, dimension: int) -> RingVector:
        """Fresh noise, ``[d] int64`` in units of the last place; any number of threads at once."""
        stream, drawn = self._stream(), np.empty(dimension, dtype=np.int64)
        done = 0
        while done < dimension:
            accepted = self._accepted(stream, min(CHUNK, _proposals(dimension - done)))
            accepted = accepted[: dimension - done]
            drawn[done : done + accepted.size] = accepted
            done += accepted.size
        return drawn

    def _accepted(self, stream: Keystream, count: int) -> RingVector:
        """What is accepted of ``count`` proposals."""
        pick, place, chance = stream.words(_WORDS * count).view(np.uint64).reshape(_WORDS, count)
        blocks, width_bits = self._blocks, self._blocks.width_bits
        column = (pick % COLUMNS).astype(np.intp)
        # The upper 56 bits of a word that is uniform; the lower 8 picked the column.
        own = pick >> np.uint64(8) < blocks.thresholds[column]
        block = np.where(own, column, blocks.others[column])
        begin = block << width_bits
        magnitude = (place & np.uint64((1 << width_bits) - 1)).view(np.int64) + begin
        minus = place.view(np.int64) >> 63

        # f(y)/f(qB) = exp(−(y − qB)(y + qB)/2s²), without the cancellation of a quotient.
        gap = (magnitude - begin).astype(np.float64)
        gap *= magnitude + begin
        gap *= -0.5 / self.noise_units**2
        np.exp(gap, out=gap)
        gap *= blocks.tightness[block]
        gap -= (chance >> np.uint64(11)).view(np.int64) * 2.0**-53
        accepted: NDArray[np.bool_] = gap > 0
        for i in np.flatnonzero(np.abs(gap) <= self._margin):
            accepted[i] = self._exactly(int(chance[i]), int(magnitude[i]), int(block[i]), stream)
        accepted &= (magnitude | ~minus) != 0
        # −y for a minus: the complement, and one more.
        signed: RingVector = (magnitude ^ minus) - minus
        return signed[accepted]

    def _exactly(self, chance: int, magnitude: int, block: int, stream: Keystream) -> bool:
        """Whether U < c·f(y)/m_q, where ``chance`` is U's first 64 bits."""
        bits = 64
        while True:
            digits = 30 + bits // 3
            with localcontext(Context(prec=digits)):
                bound = self._blocks.scale * weight(magnitude, self.noise_units)
                bound *= Decimal(1 << bits) / self._blocks.masses[block]
                # Ten times the error of ``weight``, for the products and the sums here.
                error = bound.scaleb(9 - digits)
                if chance + 1 <= bound - error:
                    return True
                if chance >= bound + error:
                    return False
            chance = chance << 64 | int(stream.words(1).view(np.uint64)[0])
            bits += 64


def _proposals(missing: int) -> int:
    """Enough, most of the time, for ``missing`` to be accepted."""
    return missing + missing // 16 + 64
