"""The task: a description whose numbers fit together.

All headroom rules of the ring (docs/soundness.md, "Headroom": soundness of validation, exactness of
sums, discreteness of the noise) are checked when a task is made, so that no round can meet them.
Each refusal names the field to change, its value, and a value that fits; a number of fractional
bits that is named satisfies every rule, so that following it never leads to the next refusal.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Self

from pydantic import model_validator

from precad.common.errors import Misconfiguration
from precad.common.task_schema import MAX_FRACTIONAL_BITS, Description, ObjectiveSection

TAU = 7
"""Half-width of the range test in units of β: |z| ≤ τβ."""
MAX_BOUND = 2**25
"""Largest β for which whatever passes the range test has X·X < 2^62."""
MIN_NOISE_UNITS = 1024.0
"""Least noise standard deviation in units of the last place: below it the discrete Gaussian's
PLD may not be taken for the continuous one's."""
NOISE_DEVIATIONS = 10.0
"""Standard deviations of noise for which a round's sum must have room."""
MAX_CLIP_RATIO = 1024
"""Largest C/R: the float64 rounding of a client's clip, up to C·2^−30, stays far below a record."""
SUM_LIMIT = 2**62
RANGE_LIMIT = 2**63


class Task(Description):
    """A training that data owners, two servers and a dealer agree on."""

    @cached_property
    def bound(self) -> int:
        """β = floor(C·2^f): the client bound in units of the last place."""
        # Exact, and no float that could overflow.
        numerator, denominator = self.privacy.client_clip.as_integer_ratio()
        return (numerator << self.fractional_bits) // denominator

    @cached_property
    def effective_record_clip(self) -> float:
        """R' = R + √d·2^−f + C·2^−18: the record's sensitivity with the rounding in it."""
        clips = self.privacy.record_clip, self.privacy.client_clip
        return effective_record_clip(*clips, self.dimension, self.fractional_bits)

    @cached_property
    def noise_units(self) -> float:
        """Standard deviation of one server's noise in units of the last place: σ·R'·2^f."""
        units = math.ldexp(self.effective_record_clip, self.fractional_bits)
        return self.privacy.noise_multiplier * units

    @cached_property
    def sensitivity_ratio(self) -> float:
        """R'/C: a record's sensitivity over a client's."""
        return self.effective_record_clip / self.privacy.client_clip

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """What no field decides alone; each error says what would fit."""
        if not suffices(self):
            raise _refusal(self)
        return self


def with_objective(task: Task, objective: ObjectiveSection | str) -> Task:
    """The same task with another record objective, by its name or in full.

    Raises:
        Misconfiguration: there is none of this name.
    """
    section = {"name": objective} if isinstance(objective, str) else objective.model_dump()
    values = task.model_dump(mode="json", exclude={"objective"})
    return Task.parse(values | {"objective": section})


def effective_record_clip(
    record_clip: float, client_clip: float, dimension: int, fractional_bits: int
) -> float:
    """R' = R + √d·2^−f + C·2^−18: the most that one record moves a client's encoded sum.

    A clipped and encoded gradient moves it by R, the client clip's truncation by one unit in each
    coordinate, and scaling again what float64 let slip over β by β·2^−f·2^−18.
    """
    return record_clip + math.ldexp(math.sqrt(dimension), -fractional_bits) + client_clip / 2**18


def bound_fits(task: Task) -> bool:
    """β is one unit at least, and small enough for part 2 of validation."""
    return 1 <= task.bound <= MAX_BOUND


def range_fits(task: Task) -> bool:
    """2τβd < 2^63: no projection that passes part 1 of validation has wrapped."""
    return 2 * TAU * task.bound * task.dimension < RANGE_LIMIT


def noise_fits(task: Task) -> bool:
    """The noise is fine enough to be taken for continuous."""
    return task.noise_units >= MIN_NOISE_UNITS


def sum_fits(task: Task) -> bool:
    """A round's sum doesn't wrap, with both servers' noise as if it added up fully."""
    noise = 2 * NOISE_DEVIATIONS * task.noise_units
    return task.enrolment.clients * task.bound < SUM_LIMIT - noise


def clips_fit(task: Task) -> bool:
    """R ≤ C ≤ 1024·R."""
    clip = task.privacy.record_clip
    return clip <= task.privacy.client_clip <= MAX_CLIP_RATIO * clip


def names_fit(task: Task) -> bool:
    """Names differ, no more clients are required than may enrol, uploads begin before the end."""
    parameters, enrolment, times = task.model.parameters, task.enrolment, task.deadlines
    distinct = len({parameter.name for parameter in parameters}) == len(parameters)
    return distinct and enrolment.min_clients <= enrolment.clients and times.work < times.collect


def ring_fits(task: Task) -> bool:
    """Whether the ring has room."""
    # In this order: the noise of a dimension that is out of range may be no number.
    return bound_fits(task) and range_fits(task) and noise_fits(task) and sum_fits(task)


def suffices(task: Task) -> bool:
    """Whether all rules hold."""
    return ring_fits(task) and clips_fit(task) and names_fit(task)


def _refusal(task: Task) -> Misconfiguration:
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
    if not names_fit(task):
        names = [parameter.name for parameter in task.model.parameters]
        twice = next(name for name in names if names.count(name) > 1)
        return Misconfiguration(
            "model.parameters", twice, "names two parameters; each needs its own name"
        )
    return _of_client_clip(task) if ring_fits(task) else _of_ring(task)


def _of_client_clip(task: Task) -> Misconfiguration:
    most = MAX_CLIP_RATIO * task.privacy.record_clip
    return Misconfiguration(
        "privacy.client_clip",
        task.privacy.client_clip,
        f"must be at most {MAX_CLIP_RATIO}·privacy.record_clip = {most:g}: the "
        "rounding of a client's clip has to stay far below one record",
    )


def _of_ring(task: Task) -> Misconfiguration:
    if not bound_fits(task):
        return _of_bound(task)
    if not range_fits(task):
        return _of_range(task)
    return _of_sum(task) if noise_fits(task) else _of_noise(task)


def _of_bound(task: Task) -> Misconfiguration:
    fitting = _fitting(task, ring_fits) or _fitting(task, bound_fits)
    if not fitting:
        return Misconfiguration(
            "privacy.client_clip",
            task.privacy.client_clip,
            "β = floor(C·2^f) must be from 1 to 2^25, and no number of fractional_bits gives "
            f"that: use a clip from 2^-{MAX_FRACTIONAL_BITS} to 2^24",
        )
    rule = f"β = floor(C·2^f) = {task.bound} must be from 1 to 2^25 = {MAX_BOUND}"
    return Misconfiguration(
        "fractional_bits", task.fractional_bits, f"{rule}; {_use(task, fitting)}"
    )


def _of_range(task: Task) -> Misconfiguration:
    most = (RANGE_LIMIT - 1) // (2 * TAU * task.bound)
    return Misconfiguration(
        "model.parameters",
        f"d = {task.dimension}",
        f"2τβd must be below 2^63; with β = {task.bound} at most d = {most} fits: "
        "use fewer fractional_bits or a smaller model",
    )


def _of_noise(task: Task) -> Misconfiguration:
    rule = (
        f"the noise's standard deviation is {task.noise_units:.4g} units of the last "
        f"place and must be at least {MIN_NOISE_UNITS:g}"
    )
    if fitting := _fitting(task, ring_fits):
        return Misconfiguration(
            "fractional_bits",
            task.fractional_bits,
            f"{rule}; {_use(task, fitting)}, or a larger privacy.noise_multiplier",
        )
    least = MIN_NOISE_UNITS / _clip_units(task)
    return Misconfiguration(
        "privacy.noise_multiplier",
        task.privacy.noise_multiplier,
        f"{rule}, which no number of fractional_bits gives; with {task.fractional_bits} of them "
        f"use a multiplier of at least {_four_digits(least, up=True)}",
    )


def _of_sum(task: Task) -> Misconfiguration:
    # n·β alone is always far below 2^62: n and β are limited themselves.
    room = SUM_LIMIT - task.enrolment.clients * task.bound
    most = room / (2 * NOISE_DEVIATIONS * _clip_units(task))
    return Misconfiguration(
        "privacy.noise_multiplier",
        task.privacy.noise_multiplier,
        f"n·β + {NOISE_DEVIATIONS:g} standard deviations of both servers' noise must be "
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
