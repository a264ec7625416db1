"""What would fit, for a task whose numbers leave too little room in the ring.

Each refusal names the field to change, its value, and a value that fits; a number of fractional
bits that is named satisfies every rule, so that following it never leads to the next refusal.
Only a refused task loads this.
"""

import math
from collections.abc import Callable

from precad.common import headroom
from precad.common.description import MAX_FRACTIONAL_BITS
from precad.common.errors import Misconfiguration
from precad.common.task import Task


def refusal(task: Task) -> Misconfiguration:
    """The first rule that ``task`` breaks, and what would fit."""
    privacy, enrolment = task.privacy, task.enrolment
    if privacy.record_clip > privacy.client_clip:
        return Misconfiguration(
            "privacy.record_clip",
            privacy.record_clip,
            f"must be at most privacy.client_clip = {privacy.client_clip}",
        )
    if enrolment.min_clients > enrolment.clients:
        return Misconfiguration(
            "enrolment.min_clients",
            enrolment.min_clients,
            f"must be at most enrolment.clients = {enrolment.clients}",
        )
    if task.deadlines.work >= task.deadlines.collect:
        return Misconfiguration(
            "deadlines.work",
            task.deadlines.work,
            f"must be below deadlines.collect = {task.deadlines.collect}: uploads begin then, and "
            "have to arrive",
        )
    if not headroom.names_fit(task):
        names = [parameter.name for parameter in task.model.parameters]
        twice = next(name for name in names if names.count(name) > 1)
        return Misconfiguration(
            "model.parameters", twice, "names two parameters; each needs its own name"
        )
    return _of_client_clip(task) if headroom.ring_fits(task) else _of_ring(task)


def _of_client_clip(task: Task) -> Misconfiguration:
    most = headroom.MAX_CLIP_RATIO * task.privacy.record_clip
    return Misconfiguration(
        "privacy.client_clip",
        task.privacy.client_clip,
        f"must be at most {headroom.MAX_CLIP_RATIO}·privacy.record_clip = {most:g}: the "
        "rounding of a client's clip has to stay far below one record",
    )


def _of_ring(task: Task) -> Misconfiguration:
    if not headroom.bound_fits(task):
        return _of_bound(task)
    if not headroom.range_fits(task):
        return _of_range(task)
    return _of_sum(task) if headroom.noise_fits(task) else _of_noise(task)


def _of_bound(task: Task) -> Misconfiguration:
    fitting = _fitting(task, headroom.ring_fits) or _fitting(task, headroom.bound_fits)
    if not fitting:
        return Misconfiguration(
            "privacy.client_clip",
            task.privacy.client_clip,
            "β = floor(C·2^f) must be from 1 to 2^25, and no number of fractional_bits gives "
            f"that: use a clip from 2^-{MAX_FRACTIONAL_BITS} to 2^24",
        )
    rule = f"β = floor(C·2^f) = {task.bound} must be from 1 to 2^25 = {headroom.MAX_BOUND}"
    return Misconfiguration(
        "fractional_bits", task.fractional_bits, f"{rule}; {_use(task, fitting)}"
    )


def _of_range(task: Task) -> Misconfiguration:
    most = (headroom.RANGE_LIMIT - 1) // (2 * headroom.TAU * task.bound)
    return Misconfiguration(
        "model.parameters",
        f"d = {task.dimension}",
        f"2τβd must be below 2^63; with β = {task.bound} at most d = {most} fits: "
        "use fewer fractional_bits or a smaller model",
    )


def _of_noise(task: Task) -> Misconfiguration:
    rule = (
        f"the noise's standard deviation is {task.noise_units:.4g} units of the last "
        f"place and must be at least {headroom.MIN_NOISE_UNITS:g}"
    )
    if fitting := _fitting(task, headroom.ring_fits):
        return Misconfiguration(
            "fractional_bits",
            task.fractional_bits,
            f"{rule}; {_use(task, fitting)}, or a larger privacy.noise_multiplier",
        )
    least = headroom.MIN_NOISE_UNITS / _clip_units(task)
    return Misconfiguration(
        "privacy.noise_multiplier",
        task.privacy.noise_multiplier,
        f"{rule}, which no number of fractional_bits gives; with {task.fractional_bits} of them "
        f"use a multiplier of at least {_four_digits(least, up=True)}",
    )


def _of_sum(task: Task) -> Misconfiguration:
    # n·β alone is always far below 2^62: n and β are limited themselves.
    room = headroom.SUM_LIMIT - task.enrolment.clients * task.bound
    most = room / (2 * headroom.NOISE_DEVIATIONS * _clip_units(task))
    return Misconfiguration(
        "privacy.noise_multiplier",
        task.privacy.noise_multiplier,
        f"n·β + {headroom.NOISE_DEVIATIONS:g} standard deviations of both servers' noise must be "
        f"below 2^62; use a multiplier of at most {_four_digits(most, up=False)}",
    )


def _clip_units(task: Task) -> float:
    """R'·2^f."""
    return math.ldexp(task.effective_record_clip, task.fractional_bits)


def _fitting(task: Task, fits: Callable[[Task], bool]) -> list[int]:
    values = {name: getattr(task, name) for name in Task.model_fields}
    # Made without checks, or a number that doesn't fit would be refused in its turn.
    return [
        bits
        for bits in range(1, MAX_FRACTIONAL_BITS + 1)
        if fits(Task.model_construct(**values | {"fractional_bits": bits}))
    ]


def _use(task: Task, fitting: list[int]) -> str:
    few = task.fractional_bits < fitting[0]
    return f"use at least {fitting[0]}" if few else f"use at most {fitting[-1]}"


def _four_digits(value: float, *, up: bool) -> str:
    """Four digits, above (or below) the exact value by up to one in the last."""
    exponent = math.floor(math.log10(value)) - 3
    digits = math.floor(value / 10.0**exponent) + (1 if up else -1)
    return f"{digits}e{exponent}"
