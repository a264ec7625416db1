"""Room in the ring for a task's bounds, sums and noise (docs/soundness.md, "Headroom"), and R'."""

import math
from dataclasses import dataclass

TAU = 7
"""Half-width of the range test in units of β: |z| ≤ τβ."""
MAX_BOUND = 2**25
"""Largest β for which whatever passes the range test has X·X < 2^62."""
MIN_NOISE_UNITS = 1024.0
"""Least noise standard deviation in units of the last place: below it the discrete Gaussian's
PLD may not be taken for the continuous one's."""
NOISE_DEVIATIONS = 10.0
"""Standard deviations of noise for which a round's sum must have room."""
MAX_FRACTIONAL_BITS = 52
SUM_LIMIT = 2**62
RANGE_LIMIT = 2**63


def effective_record_clip(record_clip: float, dimension: int, fractional_bits: int) -> float:
    """R' = R + √d·2^−f: the most that one record moves a client's encoded sum, as a real number.

    Records are clipped to R and encoded before they are summed, so one record moves the sum
    by at most R; where the client's clip acts, its truncation can move neighbours apart by one
    more unit in each coordinate.
    """
    return record_clip + math.ldexp(math.sqrt(dimension), -fractional_bits)


@dataclass(frozen=True, slots=True)
class Headroom:
    """What decides how much room there is, and whether it is enough."""

    record_clip: float
    """R."""
    client_clip: float
    """C."""
    noise_multiplier: float
    """σ."""
    dimension: int
    """d."""
    clients: int
    """n."""
    fractional_bits: int
    """f."""

    @property
    def bound(self) -> int:
        """β = floor(C·2^f), the client bound in units of the last place."""
        # Exact, and no float that could overflow.
        numerator, denominator = self.client_clip.as_integer_ratio()
        return (numerator << self.fractional_bits) // denominator

    @property
    def effective_record_clip(self) -> float:
        """R'."""
        return effective_record_clip(self.record_clip, self.dimension, self.fractional_bits)

    @property
    def noise_units(self) -> float:
        """σ·R'·2^f, one server's standard deviation in units of the last place."""
        return self.noise_multiplier * math.ldexp(self.effective_record_clip, self.fractional_bits)

    @property
    def bound_fits(self) -> bool:
        """β is at least one unit, and passes no product."""
        return 1 <= self.bound <= MAX_BOUND

    @property
    def range_fits(self) -> bool:
        """2τβd < 2^63: the range test's projections can't wrap."""
        return 2 * TAU * self.bound * self.dimension < RANGE_LIMIT

    @property
    def noise_fits(self) -> bool:
        """The noise is fine enough to count as continuous."""
        return self.noise_units >= MIN_NOISE_UNITS

    @property
    def sum_fits(self) -> bool:
        """A round's sum with both servers' noise can't wrap."""
        # Both servers' noise, as if it added up fully.
        noise = 2 * NOISE_DEVIATIONS * self.noise_units
        return self.clients * self.bound < SUM_LIMIT - noise

    @property
    def suffices(self) -> bool:
        """All four rules hold."""
        # In this order: the noise of a dimension that is out of range may be no number.
        return self.bound_fits and self.range_fits and self.noise_fits and self.sum_fits
