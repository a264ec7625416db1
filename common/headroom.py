"""Room in the ring for a task's bounds, sums and noise (docs/soundness.md, "Headroom"), and R'.

Each refusal names the field to change, its value, and a value that fits; a number of fractional
bits that is named satisfies every rule, so that following it never leads to the next refusal.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from precad.common import checks
from precad.common.errors import Misconfiguration

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
_SUM_LIMIT = 2**62
_RANGE_LIMIT = 2**63


def effective_record_clip(record_clip: float, dimension: int, fractional_bits: int) -> float:
    """R' = R + √d·2^−f: the most that one record moves a client's encoded sum, as a real number.

    Records are clipped to R and encoded before they are summed, so one record moves the sum
    by at most R; where the client's clip acts, its truncation can move neighbours apart by one
    more unit in each coordinate.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.positive("record_clip", record_clip, "the bound on a record's gradient")
    checks.count("dimension", dimension, 1)
    checks.count("fractional_bits", fractional_bits)
    return record_clip + math.ldexp(math.sqrt(dimension), -fractional_bits)


def client_noise_multiplier(noise_multiplier: float, sensitivity_ratio: float) -> float:
    """√2·σ·R'/C: both servers' noise over one client's bound; PRECAD Lemma 8 with R' for R.

    Args:
        noise_multiplier: σ, each server's noise over R'.
        sensitivity_ratio: R'/C.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.noise_multiplier(noise_multiplier)
    checks.positive("sensitivity_ratio", sensitivity_ratio, "R'/C, record over client clip")
    return math.sqrt(2) * noise_multiplier * sensitivity_ratio


@dataclass(frozen=True, slots=True)
class Headroom:
    """What decides how much room there is; all but the number of fractional bits f."""

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

    def bound(self, bits: int) -> int:
        """β = floor(C·2^f), the client bound in units of the last place."""
        # Exact, and no float that could overflow.
        numerator, denominator = self.client_clip.as_integer_ratio()
        return (numerator << bits) // denominator

    def effective_record_clip(self, bits: int) -> float:
        """R' with ``bits`` fractional bits."""
        return effective_record_clip(self.record_clip, self.dimension, bits)

    def noise_units(self, bits: int) -> float:
        """σ·R'·2^f, one server's standard deviation in units of the last place."""
        return self.noise_multiplier * math.ldexp(self.effective_record_clip(bits), bits)

    def check(self, bits: int) -> None:
        """Refuse ``bits`` where they leave too little room.

        Raises:
            Misconfiguration: names the field, the value and what would fit.
        """
        if not self._bound_fits(bits):
            self._refuse_bound(bits)
        if not self._range_fits(bits):
            self._refuse_range(bits)
        if not self._noise_fits(bits):
            self._refuse_noise(bits)
        if not self._sum_fits(bits):
            self._refuse_sum(bits)

    def _bound_fits(self, bits: int) -> bool:
        return 1 <= self.bound(bits) <= MAX_BOUND

    def _range_fits(self, bits: int) -> bool:
        return 2 * TAU * self.bound(bits) * self.dimension < _RANGE_LIMIT

    def _noise_fits(self, bits: int) -> bool:
        return self.noise_units(bits) >= MIN_NOISE_UNITS

    def _sum_fits(self, bits: int) -> bool:
        # Both servers' noise, as if it added up fully.
        noise = 2 * NOISE_DEVIATIONS * self.noise_units(bits)
        return self.clients * self.bound(bits) < _SUM_LIMIT - noise

    def _fitting(self, *rules: Callable[[int], bool]) -> list[int]:
        return [f for f in range(1, MAX_FRACTIONAL_BITS + 1) if all(rule(f) for rule in rules)]

    def _fitting_all(self) -> list[int]:
        # In this order: the noise of a dimension that is out of range may be no number.
        return self._fitting(self._bound_fits, self._range_fits, self._noise_fits, self._sum_fits)

    def _refuse_bound(self, bits: int) -> NoReturn:
        rule = f"β = floor(C·2^f) = {self.bound(bits)} must be from 1 to 2^25 = {MAX_BOUND}"
        fitting = self._fitting_all() or self._fitting(self._bound_fits)
        if not fitting:
            raise Misconfiguration(
                "privacy.client_clip",
                self.client_clip,
                "β = floor(C·2^f) must be from 1 to 2^25, and no number of fractional_bits gives "
                f"that: use a clip from 2^-{MAX_FRACTIONAL_BITS} to 2^24",
            )
        raise Misconfiguration("fractional_bits", bits, f"{rule}; {_use(bits, fitting)}")

    def _refuse_range(self, bits: int) -> NoReturn:
        most = (_RANGE_LIMIT - 1) // (2 * TAU * self.bound(bits))
        raise Misconfiguration(
            "model.parameters",
            f"d = {self.dimension}",
            f"2τβd must be below 2^63; with β = {self.bound(bits)} at most d = {most} fits: "
            "use fewer fractional_bits or a smaller model",
        )

    def _refuse_noise(self, bits: int) -> NoReturn:
        rule = (
            f"the noise's standard deviation is {self.noise_units(bits):.4g} units of the last "
            f"place and must be at least {MIN_NOISE_UNITS:g}"
        )
        if fitting := self._fitting_all():
            raise Misconfiguration(
                "fractional_bits",
                bits,
                f"{rule}; {_use(bits, fitting)}, or a larger privacy.noise_multiplier",
            )
        least = MIN_NOISE_UNITS / math.ldexp(self.effective_record_clip(bits), bits)
        raise Misconfiguration(
            "privacy.noise_multiplier",
            self.noise_multiplier,
            f"{rule}, which no number of fractional_bits gives; with {bits} of them use a "
            f"multiplier of at least {_four_digits(least, up=True)}",
        )

    def _refuse_sum(self, bits: int) -> NoReturn:
        # n·β alone is always far below 2^62: n and β are limited themselves.
        room = _SUM_LIMIT - self.clients * self.bound(bits)
        scale = math.ldexp(self.effective_record_clip(bits), bits)
        most = room / (2 * NOISE_DEVIATIONS * scale)
        raise Misconfiguration(
            "privacy.noise_multiplier",
            self.noise_multiplier,
            f"n·β + {NOISE_DEVIATIONS:g} standard deviations of both servers' noise must be below "
            f"2^62; use a multiplier of at most {_four_digits(most, up=False)}",
        )


def _use(bits: int, fitting: list[int]) -> str:
    return f"use at least {fitting[0]}" if bits < fitting[0] else f"use at most {fitting[-1]}"


def _four_digits(value: float, *, up: bool) -> str:
    """Four digits, above (or below) the exact value by up to one in the last."""
    exponent = math.floor(math.log10(value)) - 3
    digits = math.floor(value / 10.0**exponent) + (1 if up else -1)
    return f"{digits}e{exponent}"
