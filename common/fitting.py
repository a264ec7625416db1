"""What would fit, for a task whose numbers leave too little room in the ring.

Each refusal names the field to change, its value, and a value that fits; a number of fractional
bits that is named satisfies every rule, so that following it never leads to the next refusal.
Only a refused task loads this.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from precad.common.errors import Misconfiguration
from precad.common.headroom import (
    MAX_BOUND,
    MAX_FRACTIONAL_BITS,
    MIN_NOISE_UNITS,
    NOISE_DEVIATIONS,
    RANGE_LIMIT,
    SUM_LIMIT,
    TAU,
    Headroom,
)


def refusal(room: Headroom) -> Misconfiguration:
    """Why ``room`` doesn't suffice: the first rule that it breaks, and what would fit."""
    if not room.bound_fits:
        return _of_bound(room)
    if not room.range_fits:
        return _of_range(room)
    return _of_sum(room) if room.noise_fits else _of_noise(room)


def _of_bound(room: Headroom) -> Misconfiguration:
    fitting = _fitting(room, lambda each: each.suffices) or _fitting(
        room, lambda each: each.bound_fits
    )
    if not fitting:
        return Misconfiguration(
            "privacy.client_clip",
            room.client_clip,
            "β = floor(C·2^f) must be from 1 to 2^25, and no number of fractional_bits gives "
            f"that: use a clip from 2^-{MAX_FRACTIONAL_BITS} to 2^24",
        )
    rule = f"β = floor(C·2^f) = {room.bound} must be from 1 to 2^25 = {MAX_BOUND}"
    return Misconfiguration(
        "fractional_bits", room.fractional_bits, f"{rule}; {_use(room, fitting)}"
    )


def _of_range(room: Headroom) -> Misconfiguration:
    most = (RANGE_LIMIT - 1) // (2 * TAU * room.bound)
    return Misconfiguration(
        "model.parameters",
        f"d = {room.dimension}",
        f"2τβd must be below 2^63; with β = {room.bound} at most d = {most} fits: "
        "use fewer fractional_bits or a smaller model",
    )


def _of_noise(room: Headroom) -> Misconfiguration:
    rule = (
        f"the noise's standard deviation is {room.noise_units:.4g} units of the last "
        f"place and must be at least {MIN_NOISE_UNITS:g}"
    )
    if fitting := _fitting(room, lambda each: each.suffices):
        return Misconfiguration(
            "fractional_bits",
            room.fractional_bits,
            f"{rule}; {_use(room, fitting)}, or a larger privacy.noise_multiplier",
        )
    least = MIN_NOISE_UNITS / _clip_units(room)
    return Misconfiguration(
        "privacy.noise_multiplier",
        room.noise_multiplier,
        f"{rule}, which no number of fractional_bits gives; with {room.fractional_bits} of them "
        f"use a multiplier of at least {_four_digits(least, up=True)}",
    )


def _of_sum(room: Headroom) -> Misconfiguration:
    # n·β alone is always far below 2^62: n and β are limited themselves.
    most = (SUM_LIMIT - room.clients * room.bound) / (2 * NOISE_DEVIATIONS * _clip_units(room))
    return Misconfiguration(
        "privacy.noise_multiplier",
        room.noise_multiplier,
        f"n·β + {NOISE_DEVIATIONS:g} standard deviations of both servers' noise must be below "
        f"2^62; use a multiplier of at most {_four_digits(most, up=False)}",
    )


def _clip_units(room: Headroom) -> float:
    """R'·2^f."""
    return math.ldexp(room.effective_record_clip, room.fractional_bits)


def _fitting(room: Headroom, fits: Callable[[Headroom], bool]) -> list[int]:
    numbers = range(1, MAX_FRACTIONAL_BITS + 1)
    return [bits for bits in numbers if fits(replace(room, fractional_bits=bits))]


def _use(room: Headroom, fitting: list[int]) -> str:
    few = room.fractional_bits < fitting[0]
    return f"use at least {fitting[0]}" if few else f"use at most {fitting[-1]}"


def _four_digits(value: float, *, up: bool) -> str:
    """Four digits, above (or below) the exact value by up to one in the last."""
    exponent = math.floor(math.log10(value)) - 3
    digits = math.floor(value / 10.0**exponent) + (1 if up else -1)
    return f"{digits}e{exponent}"
