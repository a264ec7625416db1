"""A plan that an account opens with: a purse for questions, and a list of trainings.

A limit's filter holds whatever its owner chooses as it goes, and pays for that with
rounds. A plan says beforehand what may be chosen. Then the exact composition of the plan
is the guarantee, in whatever order its parts are used (docs/privacy-accounting.md).
"""

import math
from collections import Counter
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from precad.accounting import SampledGaussian, Steps, exact_epsilon, poisson_gaussian
from precad.common import checks, frozen_dataclass

_ROUNDING = 1e-12
"""A purse has this much more, relatively: sums of squares are rounded."""


class PlannedTraining(BaseModel, frozen=True, extra="forbid"):
    """A pool of a training's rounds, as the plan's file has it."""

    noise_multiplier: PositiveFloat
    """σ of one server, at least."""
    record_rate: Annotated[float, Field(gt=0, lt=1)]
    """p, at most. A training of all records in each round takes from the purse."""
    rounds: PositiveInt
    """Most rounds for which the owner is drawn, of all tasks that take from here."""
    repeats: NonNegativeInt = 0
    """Releases that may be lost and made again. They are put into the purse."""
    owners_per_unit: PositiveInt = 1
    """m: at how many owners a unit may be, as the tasks say it."""

    @property
    def step(self) -> SampledGaussian:
        """The privacy event of one round. Raises Misconfiguration: a value is wrong."""
        return poisson_gaussian(
            rate=self.record_rate,
            noise_multiplier=self.noise_multiplier,
            owners=self.owners_per_unit,
        )


class Plan(BaseModel, frozen=True, extra="forbid"):
    """A plan as its file (TOML) has it, and as the account's file keeps it."""

    delta: float
    purse: NonNegativeFloat = 0.0
    """μ of all questions: Σ μ_i² is at most its square. One with noise multiplier σ has
    μ_i = 1/σ."""
    training: tuple[PlannedTraining, ...] = ()

    def __str__(self) -> str:
        """Return the plan as JSON without spaces, a word of the account's file."""
        return self.model_dump_json()

    @cached_property
    def squares(self) -> float:
        """What the plan has for steps that sample nothing, as Σ μ_i²."""
        repeats = [each.repeats * _square(each.step) for each in self.training]
        return math.fsum([self.purse**2, *repeats]) * (1 + _ROUNDING)

    @cached_property
    def rounds(self) -> Steps:
        """How many rounds there are of each step; the one with most noise is first."""
        rounds = Steps()
        for each in sorted(
            self.training, key=lambda each: (-each.noise_multiplier, each.record_rate)
        ):
            rounds[each.step] += each.rounds
        return rounds

    def covering(self, step: SampledGaussian) -> SampledGaussian | None:
        """Return the step whose rounds a step takes; None where none covers it.

        It is the first in the order of ``rounds``, whatever is left of it.
        """
        return next(filter(lambda planned: _covers(planned, step), self.rounds), None)

    def used(self, charged: Steps) -> tuple[float, Counter[SampledGaussian | None]]:
        """Return Σ μ_i² of steps, and how many rounds they take of each planned step.

        Rounds that nothing covers stand at None.
        """
        squares = []
        rounds: Counter[SampledGaussian | None] = Counter()
        for step, count in charged.items():
            if step.rate == 1:
                squares.append(count * _square(step))
            else:
                rounds[self.covering(step)] += count
        return math.fsum(squares), rounds


def _square(step: SampledGaussian) -> float:
    """Return μ² of a step that samples nothing."""
    return (step.owners / step.noise_multiplier) ** 2


def _covers(planned: SampledGaussian, step: SampledGaussian) -> bool:
    """Return whether a step shows no more than a planned one: it is a random map of it.

    More noise is noise that is added. Where p is below p', take the planned step's
    sample with probability p/p', else one of the noise alone: what comes is
    (1 − p)·N(0, σ²) + p·N(1, σ²) with the record, and N(0, σ²) without it. Where a unit
    is at several owners, their draws can't be thinned one by one in a sum: there the
    rates must be equal.
    """
    thinned = step.owners == 1 and step.rate < planned.rate
    return (
        (thinned or step.rate == planned.rate)
        and step.owners == planned.owners
        and step.noise_multiplier >= planned.noise_multiplier
    )


@frozen_dataclass
class PlanLimit:
    """The plan that an account opened with: all that its records may be used for.

    It is in the view of one curious server, which takes its own noise off. Who sees the
    sums alone sees more noise, and so less.
    """

    # Why the exact ε of the plan is a guarantee, whoever chooses the next step, with all
    # that came before in view. Draw beforehand, with the record or without it, a
    # Brownian path with drift 1 or 0 up to the time Σ μ², and for each planned step as
    # many samples of its pair as it has rounds. A step that samples nothing reads the
    # path over the next μ_i² of time: an increment whose law is that of a fresh
    # Gaussian of μ_i, whatever came before (Smith and Thakurta 2022). A sampled step
    # reads one sample of the step that covers it. So the whole transcript is a random
    # map of what was drawn beforehand, whatever is never read included.
    # It needs that a step keeps to the pool that it has read. Were steps moved later to
    # make room in one, a choice between two continuations could lean on a sample that
    # no single draw holds. So which pool a step reads depends on the step alone, never
    # on what is left.

    epsilon: float = field(compare=False)
    """Exact ε of the whole plan, rounded up to four digits after the point."""
    plan: Plan

    @classmethod
    def load(cls, path: Path) -> "PlanLimit":
        """Return the plan of a TOML file, with its exact ε.

        Raises Misconfiguration: it can't be read, a value is wrong, or no ε is finite.
        """
        plan = checks.parsed_toml(Plan, "plan", path)
        steps = plan.rounds.copy()
        if plan.squares:
            noise_multiplier = 1 / math.sqrt(plan.squares)
            purse = poisson_gaussian(rate=1.0, noise_multiplier=noise_multiplier)
            steps[purse] += 1
        epsilon = checks.epsilon(exact_epsilon(steps, plan.delta), "plan")
        return cls(math.ceil(1e4 * epsilon) / 1e4, plan)

    @property
    def delta(self) -> float:
        """δ of the whole plan."""
        return self.plan.delta

    def holds(self, charged: Steps) -> bool:
        """Return whether the plan has all these steps."""
        squares, rounds = self.plan.used(charged)
        return squares <= self.plan.squares and rounds <= self.plan.rounds

    def left_of(self, charged: Steps) -> dict[str, Any]:
        """Return the plan and what these steps leave of it, for JSON.

        A purse is μ; the one that is left is √(μ² − Σ μ_i²).
        """
        plan = self.plan
        squares, used = plan.used(charged)
        return {
            "purse": math.sqrt(plan.squares),
            "purse_left": math.sqrt(max(0.0, plan.squares - squares)),
            "trainings": [
                {
                    "noise_multiplier": step.noise_multiplier,
                    "record_rate": step.rate,
                    "owners_per_unit": step.owners,
                    "rounds": rounds,
                    "rounds_left": rounds - used[step],
                }
                for step, rounds in plan.rounds.items()
            ],
        }

    def epsilon_of(self, charged: Steps) -> float:
        """Return the exact ε of steps, at the plan's δ."""
        return exact_epsilon(charged, self.delta)
