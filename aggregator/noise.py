"""The discrete Gaussian N_Z(0, s²), drawn by vectorised rejection.

An integer y has probability P[y] ∝ f(y) = exp(−y²/2s²).

A proposal is a block q, an offset u uniform in [0, B) and a sign; its magnitude is y =
qB + u. A block is picked with probability m_q/2^64 (``Blocks``), so y is proposed with
m_q/(2^64·B), and it is accepted with probability c·f(y)/m_q, which is at most 1. What
is accepted has probability ∝ f(y): m_q cancels, whatever it was rounded to. Zero with a
minus is refused, or it would count twice. About 95 of 100 proposals are accepted.

**Exactness.** Block, offset and sign are integers from uniform bits. Acceptance
compares a uniform U in [0, 1) with c·f(y)/m_q: in float64 where they are further apart
than ``MARGIN`` = 2^−32, and in as many decimal digits and bits of U as it takes where
they aren't, once in 2^31 proposals. The float64 value is within 2^−48 (twelve roundings
and ``exp``); NumPy's ``exp`` would have to be wrong by a million of its last places to
decide anything wrongly. So no decision is approximate.

**Statistical distance.** Only the tail beyond 256 blocks is missing. They reach at
least 16s, and the discrete Gaussian is sub-Gaussian with s² (Canonne, Kamath and
Steinke 2020, Fact 19), so the total variation distance of a sample is at most P[|y| ≥
16s] ≤ 2·e^−128 < 2^−183: ``TAIL``. Of d coordinates in T rounds it is at most d·T times
that; for d·T = 10^12, below 2^−143. It would add (1 + e^ε)·d·T·2^−183 to δ: nothing at
any ε that means something, so no account carries it. An s whose table reached less far
is refused.

**Bits.** The operating system's CSPRNG gives a fresh key a call, expanded by
AES-256-CTR: three words a proposal. How many proposals were refused says nothing about
those that were accepted.

Source: rejection from a table by blocks as in Karney 2016 and Micciancio and Walter
2017; the distribution and why it is private: Canonne, Kamath and Steinke 2020.
"""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import Protocol, Self

import numpy as np

from precad.common import (
    CLOCK,
    Booleans,
    Clock,
    Floats,
    Integers,
    Keystream,
    Mechanism,
    RingVector,
    Secret,
    Words,
    frozen_kw_only_dataclass,
)

# Which block of integers a proposal lies in: an alias table in integers (Walker 1977).
#
# The magnitudes are cut into 256 blocks of B = 2^b integers, block q being [qB,
# (q+1)B). It is to be picked with a probability near its largest weight, f(qB) =
# exp(−(qB)²/2s²). All that is needed of the table is that its own probabilities are
# known exactly: each block has a whole mass m_q out of 2^64 with m_q ≥ c·f(qB), for one
# whole c, and acceptance divides by m_q again.

COLUMNS = 256
COLUMN_BITS = 56
"""A column of the table holds 2^56 of the mass: 8 bits pick the column, 56 the place in
it."""
_TOTAL = COLUMNS << COLUMN_BITS


@frozen_kw_only_dataclass
class Blocks:
    """The proposal's table for one s.

    Args:
        width_bits: b; a block has 2^b integers.
        scale: c.
        masses: m_q of each of the 256 blocks; their sum is 2^64.
        thresholds: ``[256] uint64``, at most 2^56; below it a column stands for its own
            block.
        others: ``[256] int64``, the block that the rest of a column stands for.
        tightness: ``[256] float64``, c·f(qB)/m_q, at most 1: the acceptance at a
            block's beginning.
    """

    width_bits: int
    scale: int
    masses: tuple[int, ...]
    thresholds: Words
    others: Integers
    tightness: Floats

    @classmethod
    def of(cls, noise_units: float) -> Self:
        """Compute the table for N_Z(0, s²), in a few milliseconds.

        s is ``noise_units``, taken for exactly the number that the float is.
        """
        # The greatest power of two that is at most s/8, and 1 for a small s: most
        # proposals are accepted, and 256 blocks reach beyond 16s.
        width_bits = max(0, (int(noise_units) // 8).bit_length() - 1)
        with localcontext(Context(prec=60)):
            weights = [weight(q << width_bits, noise_units) for q in range(COLUMNS)]
            scale = int((_TOTAL - 2 * COLUMNS) / sum(weights))
            # One more than the whole part: above c·f(qB), whose 60 digits err far less
            # than 1.
            masses = [int(scale * block_weight) + 1 for block_weight in weights]
            # What is left over makes the first block a little less tight, and changes
            # nothing else.
            masses[0] += _TOTAL - sum(masses)
            tightness = [
                float(scale * block_weight / mass)
                for block_weight, mass in zip(weights, masses, strict=True)
            ]
        thresholds, others = _alias_table(masses)
        return cls(
            width_bits=width_bits,
            scale=scale,
            masses=tuple(masses),
            thresholds=thresholds,
            others=others,
            tightness=np.array(tightness),
        )


def weight(magnitude: int, noise_units: float) -> Decimal:
    """Return f(y) = exp(−y²/2s²) in the decimal context's precision.

    Relative error below 10^(8−digits) for y ≤ 256·max(1, s/8) and s ≥ 1/2: the exponent
    is at most 131,072, its four roundings err by 10^(1−digits)/2 of it each, and
    ``exp`` is correctly rounded.
    """
    s = Decimal(noise_units)
    return (-Decimal(magnitude) * magnitude / (2 * s * s)).exp()


def _alias_table(masses: list[int]) -> tuple[Words, Integers]:
    """Return thresholds and other blocks of the columns (Walker 1977).

    With them each block q is picked by exactly m_q of the 2^64 words. A block that has
    less mass than a column holds shares its column with one that has more.
    """
    full = 1 << COLUMN_BITS
    remaining = list(masses)
    thresholds = [full] * len(masses)
    others = list(range(len(masses)))
    short = [q for q, mass in enumerate(remaining) if mass < full]
    long = [q for q, mass in enumerate(remaining) if mass > full]
    while short:
        column = short.pop()
        giver = long[-1]
        thresholds[column] = remaining[column]
        others[column] = giver
        remaining[giver] -= full - remaining[column]
        if remaining[giver] <= full:
            long.pop()
            if remaining[giver] < full:
                short.append(giver)
    return np.array(thresholds, dtype=np.uint64), np.array(others, dtype=np.int64)


LEAST = 0.5
"""s is at least 1/2."""
LIMIT = 2.0**58
"""s is below 2^58: the largest magnitude, and twice it, fit a word."""
REACH = 16
"""How many standard deviations the table covers at least."""
TAIL = 2.0**-183
"""Total variation distance of a sample from N_Z(0, s²), at most: 2·exp(−16²/2)."""
MARGIN = 2.0**-32
"""Where U is nearer to the probability of acceptance, exact arithmetic decides."""
CHUNK = 1 << 15
"""How many proposals are made at a time: the arrays stay in the processor's cache."""
_WORDS = 3
"""Words of 64 bits for one proposal: its block, its offset and sign, its acceptance."""


def fresh_stream() -> Keystream:
    """Return the bits for one call: the operating system's CSPRNG gives a fresh key."""
    return Keystream(Secret.random(), "noise")


class NoiseSource(Protocol):
    """Where a server's noise comes from; tests replace it, and can switch it off."""

    def draw(self, dimension: int) -> RingVector:
        """Return fresh noise, ``[d] int64`` in units of the last place.

        It depends on nothing but ``dimension``, and may be called from several threads
        at once, while uploads are collected. Each result is for one use, and its
        caller may change it.
        """


class DiscreteGaussian:
    """Discrete Gaussian N_Z(0, s²) for each coordinate, within 2^−183 a coordinate.

    s is ``noise_units``, the standard deviation in units of the last place
    (``Mechanism.noise_units``). Tests give a ``stream`` of bits that repeats itself.
    Raises ValueError: s isn't in [1/2, 2^58).
    """

    def __init__(
        self, noise_units: float, stream: Callable[[], Keystream] = fresh_stream
    ) -> None:
        if not LEAST <= noise_units < LIMIT:
            raise ValueError(
                f"noise_units is {noise_units}: give a number from 1/2 to below 2^58"
            )
        self.noise_units = noise_units
        self._stream = stream
        self._blocks = Blocks.of(noise_units)
        if COLUMNS << self._blocks.width_bits < REACH * noise_units:
            raise ValueError(
                f"noise_units is {noise_units}: its table reaches less than 16 of it"
            )

    def draw(self, dimension: int) -> RingVector:
        """Return fresh noise, as ``NoiseSource.draw`` does."""
        stream = self._stream()
        drawn = np.empty(dimension, dtype=np.int64)
        done = 0
        while done < dimension:
            missing = dimension - done
            # Most of the time enough of them are accepted.
            proposals = min(CHUNK, missing + missing // 16 + 64)
            accepted = self._accepted(stream, proposals)[:missing]
            drawn[done : done + accepted.size] = accepted
            done += accepted.size
        return drawn

    def _accepted(self, stream: Keystream, count: int) -> RingVector:
        """Make ``count`` proposals, for ``draw``; return those that are accepted.

        The result is ``[n] int64`` with n ≤ ``count``, each a sample of its own.
        """
        words = stream.words(_WORDS * count).view(np.uint64)
        pick, place, chance = words.reshape(_WORDS, count)
        blocks = self._blocks
        width_bits = blocks.width_bits
        column = (pick % COLUMNS).astype(np.intp)
        # The upper 56 bits of a word that is uniform; the lower 8 picked the column.
        is_own_block = pick >> np.uint64(8) < blocks.thresholds[column]
        block = np.where(is_own_block, column, blocks.others[column])
        begin = block << width_bits
        magnitude = (place & np.uint64((1 << width_bits) - 1)).view(np.int64) + begin
        minus = place.view(np.int64) >> 63

        # f(y)/f(qB) = exp(−(y − qB)(y + qB)/2s²), without the cancellation of a
        # quotient. In the end the gap is the probability of acceptance less U.
        gap = (magnitude - begin).astype(np.float64)
        gap *= magnitude + begin
        gap *= -0.5 / self.noise_units**2
        np.exp(gap, out=gap)
        gap *= blocks.tightness[block]
        gap -= (chance >> np.uint64(11)).view(np.int64) * 2.0**-53
        accepted: Booleans = gap > 0
        for close in np.flatnonzero(np.abs(gap) <= MARGIN):
            accepted[close] = self._exactly(
                chance=int(chance[close]),
                magnitude=int(magnitude[close]),
                block=int(block[close]),
                stream=stream,
            )
        # Zero with a minus is refused.
        accepted &= (magnitude | ~minus) != 0
        # −y for a minus: the complement, and one more.
        signed: RingVector = (magnitude ^ minus) - minus
        return signed[accepted]

    def _exactly(
        self,
        *,
        chance: int,
        magnitude: int,
        block: int,
        stream: Keystream,
    ) -> bool:
        """Return whether U < c·f(y)/m_q, decided exactly, for a proposal close to it.

        Args:
            chance: U's first 64 bits.
            magnitude: y.
            block: q.
            stream: gives further bits of U.
        """
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


class DrawnAhead:
    """Noise that a thread of its own draws ahead of its use, to be used once.

    A ``NoiseSource`` that draws from ``source``.
    """

    def __init__(
        self, source: NoiseSource, dimension: int, clock: Clock = CLOCK
    ) -> None:
        self._source = source
        self._dimension = dimension
        self._changed = clock.condition()
        self._outcome: RingVector | Exception | None = None
        self._taken = False
        clock.start_thread("noise", self._draw)

    def draw(self, dimension: int) -> RingVector:
        """Return the noise, ``[d] int64``, once it is drawn; as ``NoiseSource.draw``.

        Raises RuntimeError: it was used before, or is of another dimension, a caller's
        bug. Whatever ``source`` raised is raised here.
        """
        with self._changed:
            if self._taken or dimension != self._dimension:
                raise RuntimeError(
                    f"noise for {self._dimension} words, used once: {dimension}"
                )
            self._taken = True
            while self._outcome is None:
                self._changed.wait()
            outcome = self._outcome
            self._outcome = None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _draw(self) -> None:
        outcome: RingVector | Exception
        try:
            outcome = self._source.draw(self._dimension)
        except Exception as error:  # noqa: BLE001 -- draw() raises it
            outcome = error
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()


def server_noise(
    mechanism: Mechanism, stream: Callable[[], Keystream] = fresh_stream
) -> DiscreteGaussian:
    """Return the noise that each server adds to one release: σ·R', in units.

    Simulations and tests give a ``stream`` of bits that repeats itself.
    """
    return DiscreteGaussian(mechanism.noise_units, stream)
