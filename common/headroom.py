"""Room in the ring for a task's bounds, sums and noise (docs/soundness.md, "Headroom"), and R'."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precad.common.task import Task

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


def effective_record_clip(
    record_clip: float, client_clip: float, dimension: int, fractional_bits: int
) -> float:
    """R' = R + √d·2^−f + C·2^−18: the most that one record moves a client's encoded sum.

    A clipped and encoded gradient moves it by R, the client clip's truncation by one unit in each
    coordinate, and scaling again what float64 let slip over β by β·2^−f·2^−18.
    """
    return record_clip + math.ldexp(math.sqrt(dimension), -fractional_bits) + client_clip / 2**18


def bound_fits(task: "Task") -> bool:
    """β is one unit at least, and small enough for part 2 of validation."""
    return 1 <= task.bound <= MAX_BOUND


def range_fits(task: "Task") -> bool:
    """2τβd < 2^63: no projection that passes part 1 of validation has wrapped."""
    return 2 * TAU * task.bound * task.dimension < RANGE_LIMIT


def noise_fits(task: "Task") -> bool:
    """The noise is fine enough to be taken for continuous."""
    return task.noise_units >= MIN_NOISE_UNITS


def sum_fits(task: "Task") -> bool:
    """A round's sum doesn't wrap, with both servers' noise as if it added up fully."""
    noise = 2 * NOISE_DEVIATIONS * task.noise_units
    return task.enrolment.clients * task.bound < SUM_LIMIT - noise


def clips_fit(task: "Task") -> bool:
    """R ≤ C ≤ 1024·R."""
    clip = task.privacy.record_clip
    return clip <= task.privacy.client_clip <= MAX_CLIP_RATIO * clip


def names_fit(task: "Task") -> bool:
    """Names differ, no more clients are required than may enrol, uploads begin before the end."""
    parameters, enrolment, times = task.model.parameters, task.enrolment, task.deadlines
    distinct = len({parameter.name for parameter in parameters}) == len(parameters)
    return distinct and enrolment.min_clients <= enrolment.clients and times.work < times.collect


def ring_fits(task: "Task") -> bool:
    """Whether the ring has room."""
    # In this order: the noise of a dimension that is out of range may be no number.
    return bound_fits(task) and range_fits(task) and noise_fits(task) and sum_fits(task)


def suffices(task: "Task") -> bool:
    """Whether all rules hold."""
    return ring_fits(task) and clips_fit(task) and names_fit(task)
