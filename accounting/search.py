"""Searching the settings of a task: σ, C, p, q, T, R, η and f.

1. Every p, q and T to try: σ by the limit theorem, which is a few per cent short; C and η by the
   forecast.
2. Those to which no cheaper one comes close (all, if they are few): σ exactly, then C and η anew,
   rounded to what a person would write, and f: the most bits that fit.
3. Each of them is made into a ``Task``, which checks it, and is judged as any task would be.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq

from precad.accounting import gdp
from precad.accounting.calibrate import least_noise_multiplier
from precad.accounting.events import poisson_gaussian
from precad.accounting.forecast import REFERENCE_GRADIENT_NORM, Training, forecast
from precad.accounting.guarantees import planned_participations
from precad.accounting.planning import (
    INDIFFERENT,
    ROUNDS_LIMIT,
    Setting,
    SettingVerdict,
    Wanted,
    setting_of,
)
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.headroom import MAX_BOUND, MAX_CLIP_RATIO
from precad.common.task import Task

AMPLE = 1.5
"""Times the typical norm of the largest owner's sum: such a C costs nothing in the table."""
ALIKE = 0.001
"""Of settings with the same uploads that differ by less, the one with the least work is taken."""
MOST_EXACT = 24
"""Settings that get an exact σ; each takes about a second."""
_ROOM_IN_SIZES = 2.0
"""A data set may have grown to so many times the largest that was planned for."""
_MOST_FRACTIONAL_BITS = 20
_STEPS = np.geomspace(0.1, 1e4, 18)
"""η·R to try, in the reference's unit."""
_FINER = np.geomspace(0.5, 2.0, 9)
_DIGITS = 3

Progress = Callable[[int, int], object]
"""Told how many of how many settings are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What to try; what is given is kept.

    Attributes:
        record_rates: p, each in (0, 1].
        client_rates: q, each in (0, 1].
        rounds: T.
        record_clips: R; none: a thirtieth, a tenth and a third of the gradient norm.
        learning_rate: η; None: the one with the best forecast.
        noise_multiplier: σ; None: the least that privacy, and robustness, allow.
        client_clip: C; None: ample, or what robustness allows.

    Raises:
        Misconfiguration: a value is out of its range.
    """

    record_rates: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    client_rates: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0)
    rounds: tuple[int, ...] = (20, 50, 100, 200, 500, 1000)
    record_clips: tuple[float, ...] = ()
    learning_rate: float | None = None
    noise_multiplier: float | None = None
    client_clip: float | None = None

    def __post_init__(self) -> None:
        for name, rates in (
            ("record_rate", self.record_rates),
            ("client_rate", self.client_rates),
        ):
            for rate in rates:
                checks.positive(name, checks.rate(name, rate), "none would be drawn")
        for rounds in self.rounds:
            if checks.count("rounds", rounds, 1) > ROUNDS_LIMIT:
                raise Misconfiguration("rounds", rounds, f"give at most {ROUNDS_LIMIT:,}")
        for clip in self.record_clips:
            checks.positive("record_clip", clip, "the bound on a record's gradient")
        for name, value in (
            ("learning_rate", self.learning_rate),
            ("client_clip", self.client_clip),
        ):
            if value is not None:
                checks.positive(name, value)
        if self.noise_multiplier is not None:
            checks.noise_multiplier(self.noise_multiplier)

    @property
    def schedules(self) -> int:
        """How many p, q and T there are."""
        return len(self.record_rates) * len(self.client_rates) * len(self.rounds)


@dataclass(frozen=True, slots=True)
class Refused:
    """A setting that ``Task`` refuses.

    Attributes:
        values: its ``privacy``, ``training`` and ``fractional_bits`` as given to the task.
        reason: the task's own words.
    """

    values: dict[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found.

    Attributes:
        wanted: what was asked.
        settings: that were judged exactly: what meets everything first, by their forecast.
        refused: that no task takes.
        tried: how many p, q and T were looked at.
        other: the best setting if robustness is given up, or asked for; None if it wasn't
            looked for.
        given: how the task that is there already fares.
    """

    wanted: Wanted
    settings: tuple[Setting, ...]
    refused: tuple[Refused, ...]
    tried: int
    other: Setting | None = None
    given: Setting | None = None

    @property
    def best(self) -> Setting | None:
        """The least uploads among those whose forecast is as good as the best one's."""
        good = [each for each in self.settings if each.verdict is SettingVerdict.MEETS]
        if not good:
            return None
        enough = max(each.forecast.accuracy for each in good) - INDIFFERENT
        alike = [each for each in good if each.forecast.accuracy >= enough]
        return min(alike, key=lambda each: (each.upload_bytes, each.gradients))


@dataclass(frozen=True, slots=True)
class _Rough:
    """A schedule with what suits it; σ is the limit theorem's."""

    training: Training = field(repr=False)
    participations: int
    accuracy: float


def plan(
    wanted: Wanted,
    choices: Choices,
    template: dict[str, Any],
    *,
    other: bool = False,
    given: Task | None = None,
    progress: Progress = lambda _done, _all: None,
) -> Plan:
    """Search the choices.

    Args:
        wanted: targets, and who holds what.
        choices: what to try.
        template: the task as ``Task.parse`` takes it; privacy, η, T, f, clients and the cap on
            records are replaced (``template_of`` makes one).
        other: also look for the best setting under the other wish about robustness.
        given: a task to judge beside.
        progress: told after each exact step.

    Raises:
        Misconfiguration: a value is out of its range, no noise reaches the wanted ε, or ``Task``
            refuses every setting.
    """
    parsed = Task.parse(template)
    limit, dimension = parsed.privacy.epsilon_limit, parsed.dimension
    if limit is not None and wanted.epsilon > limit:
        raise Misconfiguration(
            "epsilon",
            wanted.epsilon,
            f"the task's privacy.epsilon_limit lets nobody pass {limit:g}: give at most that",
        )
    rough = list(_rough(wanted, choices, dimension))
    chosen = rough if len(rough) <= MOST_EXACT else _front(rough)
    beside = _beside(wanted, choices, dimension) if other else None
    steps = len(chosen) + (beside is not None) + (given is not None)
    settings, refused = [], []
    for done, each in enumerate(chosen):
        progress(done, steps)
        made = _made(wanted, choices, template, each)
        if isinstance(made, Refused):
            refused.append(made)
        else:
            settings.append(made)
    if not settings:
        raise Misconfiguration(
            "setting", refused[0].values["privacy"], f"no task can have it: {refused[0].reason}"
        )
    settings.sort(key=lambda s: (s.verdict is not SettingVerdict.MEETS, -s.forecast.accuracy))
    found = None
    if beside is not None:
        progress(len(chosen), steps)
        made = _made(beside[0], choices, template, beside[1])
        found = made if isinstance(made, Setting) else None
    judged = None
    if given is not None:
        progress(steps - 1, steps)
        judged = setting_of(wanted, given)
    progress(steps, steps)
    return Plan(wanted, tuple(settings), tuple(refused), len(rough), found, judged)


def template_of(dimension: int, delta: float) -> dict[str, Any]:
    """A task of one tensor of so many parameters, to be planned."""
    checks.count("dimension", dimension, 1)
    return {
        "name": "plan",
        "model": {"parameters": [{"name": "parameters", "shape": [dimension]}]},
        "privacy": {
            "record_clip": 1.0,
            "client_clip": 1.0,
            "noise_multiplier": 1.0,
            "record_rate": 1.0,
            "client_rate": 1.0,
            "delta": delta,
        },
        "training": {"learning_rate": 1.0, "rounds": 1},
        "enrolment": {"clients": 1, "max_expected_records": 1.0},
    }


def _beside(wanted: Wanted, choices: Choices, dimension: int) -> tuple[Wanted, _Rough]:
    """The best rough setting under the other wish about robustness."""
    asked = replace(wanted, robust=not wanted.robust)
    return asked, max(_rough(asked, choices, dimension), key=lambda each: each.accuracy)


def _rough(wanted: Wanted, choices: Choices, dimension: int) -> Iterator[_Rough]:
    """Every schedule with a σ by the limit theorem and the R, C and η that suit it."""
    for p in choices.record_rates:
        for q in choices.client_rates:
            for rounds in choices.rounds:
                participations = max(1, planned_participations(q, rounds))
                sigma = choices.noise_multiplier
                if sigma is None:
                    sigma = _limit_sigma(wanted.epsilon, wanted.delta, p, participations)
                tried = [
                    _suited(
                        wanted,
                        choices,
                        _schedule(wanted, dimension, p, q, rounds, sigma, r),
                    )
                    for r in _record_clips(wanted, choices)
                ]
                best = max(tried, key=lambda each: forecast(each).accuracy)
                yield _Rough(best, participations, forecast(best).accuracy)


def _record_clips(wanted: Wanted, choices: Choices) -> tuple[float, ...]:
    if choices.record_clips:
        return choices.record_clips
    return tuple(_rounded(wanted.gradient_norm / part, 1) for part in (30, 10, 3))


def _schedule(
    wanted: Wanted, dimension: int, p: float, q: float, rounds: int, sigma: float, r: float
) -> Training:
    return Training(
        records=wanted.records,
        record_rate=p,
        client_rate=q,
        rounds=rounds,
        noise_multiplier=sigma,
        record_clip=r,
        effective_record_clip=r,
        client_clip=r,
        learning_rate=1.0,
        dimension=dimension,
        gradient_norm=wanted.gradient_norm,
        architecture=wanted.architecture,
    )


def _suited(wanted: Wanted, choices: Choices, schedule: Training) -> Training:
    """The schedule with the η that has the best forecast, C to match, and σ no less than given."""
    if choices.learning_rate is not None:
        return _clipped(wanted, choices, schedule, choices.learning_rate)
    unit = schedule.record_clip * wanted.gradient_norm / REFERENCE_GRADIENT_NORM

    def best(rates: Any) -> Training:
        tried = [_clipped(wanted, choices, schedule, float(rate)) for rate in rates]
        return max(tried, key=lambda each: forecast(each).accuracy)

    return best(best(_STEPS / unit).learning_rate * _FINER)


def _clipped(wanted: Wanted, choices: Choices, schedule: Training, rate: float) -> Training:
    """The schedule at this η with its C, and σ raised where robustness needs C below R.

    R stands for R', which is the task's to compute: for the clip that errs on the safe side.
    """
    rate = _rounded(rate, _DIGITS - 1) if choices.learning_rate is None else rate
    r, sigma = schedule.record_clip, schedule.noise_multiplier
    # No task takes a larger C, nor one below R.
    most = r * min(MAX_CLIP_RATIO, max(1.0, schedule.record_rate * max(schedule.records)))
    unclipped = replace(schedule, learning_rate=rate, client_clip=most)
    clip = choices.client_clip
    if clip is None:
        clip = min(most, max(r, AMPLE * forecast(unclipped).update_norm))
    if wanted.robust:
        mu = wanted.robustness.largest_mu()
        ratio = gdp.largest_clip_ratio(mu, schedule.client_rate, schedule.rounds)
        if choices.noise_multiplier is None:
            sigma = max(sigma, _rounded(r / (ratio * r), _DIGITS + 1, up=True))
        if choices.client_clip is None:
            clip = max(r, min(clip, ratio * sigma * r))
    if choices.client_clip is None:
        clip = max(r, _rounded(clip, _DIGITS, up=False))
    return replace(unclipped, client_clip=clip, noise_multiplier=sigma)


def fractional_bits(client_clip: float) -> int:
    """f: the most, up to 20, with β = floor(C·2^f) at most 2^25; at least 1."""
    fitting = math.floor(math.log2(MAX_BOUND / client_clip)) if client_clip < MAX_BOUND else 1
    return max(1, min(_MOST_FRACTIONAL_BITS, fitting))


def _front(rough: list[_Rough]) -> list[_Rough]:
    """Settings that forecast more than every one with fewer participations.

    Of those with the same participations the one with the least work that is about as good.
    """
    groups: dict[int, list[_Rough]] = {}
    for each in rough:
        groups.setdefault(each.participations, []).append(each)
    chosen: list[_Rough] = []
    for _, group in sorted(groups.items()):
        enough = max(each.accuracy for each in group) - ALIKE
        least = min(
            (each for each in group if each.accuracy >= enough),
            key=lambda each: (each.training.record_rate, -each.accuracy),
        )
        if not chosen or least.accuracy > chosen[-1].accuracy:
            chosen.append(least)
    return chosen[-MOST_EXACT:]


def _made(
    wanted: Wanted, choices: Choices, template: dict[str, Any], rough: _Rough
) -> Setting | Refused:
    """The rough setting with an exact σ, as a task that was checked and judged."""
    start = rough.training
    sigma = choices.noise_multiplier
    if sigma is None:
        sigma = _exact_sigma(wanted.epsilon, wanted.delta, start.record_rate, rough.participations)
        sigma = _rounded(sigma, _DIGITS + 1, up=True)
    schedule = replace(start, noise_multiplier=sigma)
    suited = _suited(wanted, choices, schedule)
    values = {
        "privacy": template["privacy"]
        | {
            "record_clip": suited.record_clip,
            "client_clip": suited.client_clip,
            "noise_multiplier": suited.noise_multiplier,
            "record_rate": suited.record_rate,
            "client_rate": suited.client_rate,
        },
        "training": template["training"]
        | {"learning_rate": suited.learning_rate, "rounds": suited.rounds},
        "fractional_bits": fractional_bits(suited.client_clip),
    }
    enrolment = template["enrolment"] | {
        "clients": max(template["enrolment"]["clients"], len(wanted.records)),
        "max_expected_records": max(1.0, _ROOM_IN_SIZES * suited.record_rate * max(wanted.records)),
    }
    try:
        task = Task.parse(template | values | {"enrolment": enrolment})
    except Misconfiguration as error:
        return Refused(values, str(error))
    return setting_of(wanted, task)


@lru_cache(maxsize=1024)
def _exact_sigma(epsilon: float, delta: float, p: float, participations: int) -> float:
    return least_noise_multiplier(
        lambda sigma: poisson_gaussian(rate=p, noise_multiplier=sigma, count=participations),
        epsilon=epsilon,
        delta=delta,
        near=_limit_sigma(epsilon, delta, p, participations),
    )


@lru_cache(maxsize=1024)
def _limit_sigma(epsilon: float, delta: float, p: float, participations: int) -> float:
    """σ at which the limit theorem's ε is the wanted one."""
    mu = _limit_mu(epsilon, delta)
    return 1 / math.sqrt(math.log1p((mu / p) ** 2 / participations))


@lru_cache(maxsize=64)
def _limit_mu(epsilon: float, delta: float) -> float:
    high = 1.0
    while gdp.delta_of_epsilon(high, epsilon) < delta:
        high *= 2
    return float(brentq(lambda mu: gdp.delta_of_epsilon(mu, epsilon) - delta, 0.0, high))


def _rounded(value: float, digits: int, *, up: bool | None = None) -> float:
    """``value`` to so many digits: the nearest, or up, or down."""
    exponent = math.floor(math.log10(value)) - digits + 1
    scaled = value / 10.0**exponent
    # What is a rounding away from such a number already stays.
    if up is None or abs(scaled - round(scaled)) < 1e-9:  # noqa: PLR2004
        whole = round(scaled)
    else:
        whole = math.ceil(scaled) if up else math.floor(scaled)
    return float(f"{whole}e{exponent}")
