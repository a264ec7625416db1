"""A forecast of accuracy, to compare settings of one training with each other.

Four things keep a private training below what its model could reach, and each has a term. In the
units of one record's gradient (its typical norm G at the initial model is 1):

- **too short a way**: all steps together are S = η·R·T·kept·(R/G)^k long, and error falls as
  a·S^−b. ``kept`` is what the client clip leaves of the sum.
- **noise**: a round adds √2·σ·R'·η/denominator to each parameter. While gradients can take back
  what they see of it, it doesn't add up over the rounds, and the error is proportional to it.
- **drowning**: where all rounds' noise is longer than all their signal, it does add up. With
  ρ = √(2·d·T)·σ·R'/(q·T·S^−h·R·Σ |sample|·kept), the error is u·ln(1 + (ρ/ρ0)²). S^−h is how fast
  records agree less. Robustness has the price of a large ρ.
- **overshooting**: long steps don't settle in few rounds. Where only some owners take part in a
  round, its rounds count for fewer: T/(1 + (1−q)/q·Σm²/(Σm)²).

What is left at the end of any training is a constant.

The norm of an owner's sum is what C is compared with: |sample|·R·√(w² + v²/|sample|), where w is
what records have in common and v what each has of its own. It stays the same over a training,
while less and less of w is signal: one step brings it and the next takes it back.

The constants are fitted to real trainings (research/fit_forecast.py on
benchmarks/results/trainings.json) of a linear model and of one hidden layer on MNIST at R/G from
.01 to 1, ε from .05 to 3, T from 20 to 1,000, 10 to 300 owners, with loose and tight C. The
forecast orders settings that were trained after it was fixed (tests/unit/test_forecast.py); on
other data the order is the message and the accuracy is not.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from precad.common import checks

REFERENCE_GRADIENT_NORM = 9.0
"""G of MNIST's pixels in 0..1 with either model."""
_GUESS = 0.1
"""Accuracy of a guess among the reference's ten classes."""
_MOST_SIZES = 64
_MOST = 500.0
"""Exponents beyond it leave floating point; errors above 1 are all a guess."""


class Architecture(StrEnum):
    """What the constants were fitted to."""

    LINEAR = "linear"
    """Logistic regression."""
    DEEP = "deep"
    """At least one hidden layer: reaches further, and overshoots at shorter steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the fit gave; names as in the formulas above."""

    common: float = 0.06166
    scatter: float = 0.7016
    signal_fall: float = 0.1323
    clip_gain: float = 0.1263
    short: float = 1.409
    short_fall: float = 0.6168
    noise: float = 0.6388
    drowning: float = 0.7475
    drowning_start: float = 0.8796
    overshoot: float = 0.005498
    overshoot_rise: float = 2.309
    overshoot_fall: float = 1.59
    overshoot_clip: float = 0.07406
    rest: float = 0.07413
    deep_rest: float = 0.8053
    deep_overshoot: float = 8.162


FITTED = Constants()


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """All that the forecast looks at; symbols as in PRECAD Table 2.

    Attributes:
        records: m of each owner.
        record_rate: p, everybody's.
        client_rate: q.
        rounds: T.
        noise_multiplier: σ of one server.
        record_clip: R.
        effective_record_clip: R', with the rounding.
        client_clip: C.
        learning_rate: η.
        dimension: d.
        gradient_norm: G, typical of a record at the initial model; in R's unit.
        architecture: which constants.

    Raises:
        Misconfiguration: a number isn't positive and finite.
    """

    records: tuple[int, ...]
    record_rate: float
    client_rate: float
    rounds: int
    noise_multiplier: float
    record_clip: float
    effective_record_clip: float
    client_clip: float
    learning_rate: float
    dimension: int
    gradient_norm: float = REFERENCE_GRADIENT_NORM
    architecture: Architecture = Architecture.LINEAR

    def __post_init__(self) -> None:
        for name in (
            "record_rate",
            "client_rate",
            "rounds",
            "noise_multiplier",
            "record_clip",
            "effective_record_clip",
            "client_clip",
            "learning_rate",
            "dimension",
            "gradient_norm",
        ):
            checks.positive(name, getattr(self, name))
        _sizes(self.records)


@lru_cache(maxsize=256)
def _sizes(records: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sizes and how many owners have each; close ones are one, so that few are left."""
    for size in records:
        checks.count("records", size, 1)
    found, counts = np.unique(np.array(records, np.float64), return_counts=True)
    classes = np.array_split(np.arange(len(found)), min(len(found), _MOST_SIZES))
    owners = np.array([counts[each].sum() for each in classes], np.float64)
    totals = [(found[each] * counts[each]).sum() for each in classes]
    return np.array(totals) / owners, owners


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a training would reach on the reference data, and what keeps it from more.

    Attributes:
        accuracy: from .1, a guess's, to 1: the more errors, the less each takes.
        short: error for want of way: more rounds, a higher η or a looser C lessen it.
        noise: error by noise: more records or a lower η lessen it.
        drowning: error by noise that adds up over the rounds.
        overshoot: error by steps too long for so few rounds.
        kept: share of the owners' sums that the client clip leaves.
        update_norm: typical norm of the largest owner's sum before the client clip.
        agreement: mean norm of an owner's sum over |sample|·R.
    """

    accuracy: float
    short: float
    noise: float
    drowning: float
    overshoot: float
    kept: float
    update_norm: float
    agreement: float

    @property
    def worst(self) -> str:
        """The largest of the three errors that settings change, in words."""
        errors = {
            "too short a way": self.short,
            "noise": self.noise + self.drowning,
            "overshooting": self.overshoot,
        }
        return max(errors, key=lambda name: errors[name])


def forecast(training: Training, constants: Constants = FITTED) -> Forecast:
    """What ``training`` would reach; tens of microseconds."""
    deep = training.architecture is Architecture.DEEP
    unit = training.gradient_norm / REFERENCE_GRADIENT_NORM
    clip = training.record_clip / unit
    sizes, owners = _sizes(training.records)
    samples = training.record_rate * sizes
    sampled = float((owners * samples).sum())
    step = training.learning_rate * training.record_clip * unit
    relative = np.minimum(1.0, np.sqrt(constants.common**2 + constants.scatter**2 / samples))
    norms = training.record_clip * samples * relative
    left = np.minimum(1.0, training.client_clip / norms)
    kept = float((owners * left * samples).sum() / sampled)
    way = step * training.rounds * kept * clip**constants.clip_gain
    denominator = training.client_rate * sampled
    wander = training.learning_rate * training.effective_record_clip * unit
    noise = constants.noise * math.sqrt(2) * training.noise_multiplier * wander / denominator
    agreed = kept * way**-constants.signal_fall
    signal = training.rounds * denominator * training.record_clip * agreed
    drowned = math.sqrt(2 * training.dimension * training.rounds) * training.noise_multiplier
    ratio = drowned * training.effective_record_clip / (signal * constants.drowning_start)
    # ln(1 + ratio²), whatever is squared.
    drowning = 2 * constants.drowning * math.log(math.hypot(1.0, ratio))
    short = constants.short * way**-constants.short_fall
    overshoot = _overshoot(training, step * kept * clip**constants.overshoot_clip, constants)
    rest = constants.rest * (constants.deep_rest if deep else 1.0)
    errors = rest + short + noise + drowning + overshoot
    return Forecast(
        accuracy=_GUESS + (1 - _GUESS) * math.exp(-errors / (1 - _GUESS)),
        short=short,
        noise=float(noise),
        drowning=drowning,
        overshoot=overshoot,
        kept=kept,
        update_norm=float(norms.max()),
        agreement=float((owners * relative).sum() / owners.sum()),
    )


def _overshoot(training: Training, step: float, constants: Constants) -> float:
    q = training.client_rate
    sizes, owners = _sizes(training.records)
    spread = (1 - q) / q * float((owners * sizes**2).sum() / (owners * sizes).sum() ** 2)
    rounds = training.rounds / (1 + spread)
    deep = training.architecture is Architecture.DEEP
    scale = constants.overshoot * (constants.deep_overshoot if deep else 1.0)
    rise = constants.overshoot_rise * math.log(step)
    return scale * math.exp(min(_MOST, rise - constants.overshoot_fall * math.log(rounds)))
