"""Certificates attacked by what owners say of their data: claims, sizes, additions.

A certificate bounds what bad owners, or added records, do to the *sum*. What the sum is
divided by must then be the same with and without them. Here one weight grows by every
honest record, and a public point has its certified label where the weight ends above a
threshold. So the best attack on the sum is known, and meets the bound exactly
(Neyman, Pearson): whatever moves the denominator besides goes beyond it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import nn

from precad.accounting.adversaries import Adversary, Run
from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import Direction, Guarantee, Replacements
from precad.certify.intervals import clopper_pearson_upper
from precad.client.gradients.torch_models import model_section
from precad.common.fixed_point import clip_update
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.rounds import View
from precad.simulation.virtual_owners import Matrix

SIGNIFICANCE = 1e-4
"""How likely it is at most that a certificate that holds is refuted."""
_ROUNDS = 2
_LEARNING_RATE = 1.0


@dataclass(frozen=True, kw_only=True)
class ClaimAttack:
    """Who is there without attackers, and with them."""

    before: tuple[int, ...]
    """Records of each owner, as they are claimed and held."""
    after: tuple[int, ...]
    """Records that each owner claims under attack; those that joined come last."""
    bad: int = 0
    """So many of the last owners send the longest update, the wrong way."""
    added: int = 0
    """So many of the last owner's records were added, and point the wrong way."""
    clip: float = 1.0
    """C; R is 1."""
    noise_multiplier: float = 1.0
    """σ."""
    share: float = 0.99865
    """The label's expected share of votes without attackers."""

    @property
    def joined(self) -> bool:
        """Whether bad owners were added, and replaced nobody."""
        return len(self.after) > len(self.before)


ATTACKS = {
    # Twice its size is what `precad task new` leaves room for.
    "claim-doubled": ClaimAttack(before=(1,) * 20, after=(*(1,) * 19, 2), bad=1),
    "small-claims-200": ClaimAttack(
        before=(*(20,) * 9, 1),
        after=(*(20,) * 9, 200),
        bad=1,
        clip=20.0,
        noise_multiplier=20.0,
        share=0.9999,
    ),
    "three-joined": ClaimAttack(before=(1,) * 20, after=(1,) * 23, bad=3),
    "three-joined-doubled": ClaimAttack(
        before=(1,) * 20, after=(*(1,) * 20, 2, 2, 2), bad=3
    ),
    "three-records-added": ClaimAttack(
        before=(2,) * 20, after=(*(2,) * 19, 5), added=3, clip=5.0
    ),
    "no-claim-moved": ClaimAttack(before=(1,) * 20, after=(1,) * 20, bad=1),
}
"""By name; the last one moves the sum alone, and refutes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What an attack left of a certified label's votes."""

    promised: float
    """The least expected share that the certificate promises."""
    expected: float
    """The expected share under the attack, in closed form."""
    votes: int
    models: int
    at_most: float
    """What the votes prove of the share."""

    @property
    def refuted(self) -> bool:
        """Whether the votes prove a share below what is promised."""
        return self.at_most < self.promised

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self) | {"refuted": self.refuted}


def task_of(attack: ClaimAttack, planned_units: int | None) -> Task:
    """The task that both trainings are of: p = q = 1, one weight, which starts at 0."""
    largest = max(*attack.before, *attack.after)
    values: dict[str, Any] = {
        "name": "claims",
        "model": model_section(_module(), architecture="custom"),
        "privacy": {
            "record_clip": 1.0,
            "client_clip": attack.clip,
            "noise_multiplier": attack.noise_multiplier,
            "record_rate": 1.0,
            "client_rate": 1.0,
        },
        "training": {"learning_rate": _LEARNING_RATE, "rounds": _ROUNDS},
        "enrolment": {
            "clients": max(len(attack.before), len(attack.after)),
            "max_expected_records": float(largest),
        },
        "fractional_bits": 18,
    }
    if planned_units is not None:
        values["enrolment"]["planned_units"] = planned_units
    return Task.parse(values)


def guarantee_of(attack: ClaimAttack, task: Task) -> Guarantee:
    """Return what `precad certify` makes of the task, for this kind of attack."""
    run = Run.of(task, participations=task.mechanism.releases)
    if attack.added:
        return ExactGroups(run.event(Adversary.CLIENTS_ONLY))
    owners = ExactGroups(run.event(Adversary.CLIENT_LEVEL))
    return owners if attack.joined else Replacements(owners)


def promised(attack: ClaimAttack, task: Task) -> float:
    """Return the least expected share of votes that the certificate leaves the label."""
    count = attack.added or attack.bad
    curves = guarantee_of(attack, task).curves(count, Direction.ADDITIONS)
    return float(curves.lower(np.array([attack.share]))[0])


def expected(attack: ClaimAttack, task: Task) -> float:
    """Return the share that the attack leaves it, in closed form."""
    honest = attack.after[: len(attack.after) - attack.bad]
    total = _honest(honest, attack.clip, attack.added) - attack.bad * attack.clip
    above = _steps(task, attack.after, total) - _threshold(attack, task)
    return float(norm.cdf(above / _deviation(task, attack.after)))


def _threshold(attack: ClaimAttack, task: Task) -> float:
    """Where the weight must end above for the label, so that its share is as stated."""
    moved = _steps(task, attack.before, _honest(attack.before, attack.clip))
    return moved - _deviation(task, attack.before) * float(norm.ppf(attack.share))


def play(
    attack: ClaimAttack,
    planned_units: int | None,
    *,
    models: int,
    seed: int,
    significance: float = SIGNIFICANCE,
) -> Claimed:
    """Train so many models under attack; say what their votes prove.

    ``planned_units`` is the task's N; without it claims make the denominator. Raises
    Misconfiguration: no such training.
    """
    task = task_of(attack, planned_units)
    mechanism = task.mechanism
    threshold = _threshold(attack, task)

    def submit(updates: Matrix, view: View) -> Matrix:
        longest = view.encode(np.full(mechanism.dimension, -2 * attack.clip))
        row = clip_update(longest, mechanism.bound, mechanism.fractional_bits)
        return np.tile(row, (len(updates), 1))

    votes = 0
    for number in range(models):
        trained = simulate(
            task,
            _data(attack),
            _module(),
            loss=_loss,
            seed=seed * models + number,
            attack=submit if attack.bad else None,
            attackers=attack.bad or None,
        )
        votes += int(trained.theta[0] > threshold)
    return Claimed(
        promised=promised(attack, task),
        expected=expected(attack, task),
        votes=votes,
        models=models,
        at_most=float(clopper_pearson_upper(votes, models, significance)),
    )


def _honest(sizes: Sequence[int], clip: float, added: int = 0) -> float:
    """The sum of honest updates; ``added`` of the last owner's records are reversed."""
    *others, last = sizes
    return sum(min(size, clip) for size in others) + min(last - 2 * added, clip)


def _steps(task: Task, sizes: Sequence[int], total: float) -> float:
    """How far the weight moves in the whole training, but for noise."""
    return _LEARNING_RATE * _ROUNDS * total / _denominator(task, tuple(sizes))


def _deviation(task: Task, sizes: Sequence[int]) -> float:
    """The standard deviation of that, of both servers' noise in all rounds."""
    noise = math.ldexp(task.mechanism.noise_units, -task.fractional_bits)
    walk = noise * math.sqrt(2 * _ROUNDS)
    return _LEARNING_RATE * walk / _denominator(task, tuple(sizes))


@dataclass(frozen=True, slots=True)
class _Claim:
    records: int
    record_rate: float = 1.0


@cache
def _denominator(task: Task, sizes: tuple[int, ...]) -> float:
    return task.mechanism.denominator([_Claim(size) for size in sizes])


def _data(attack: ClaimAttack) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Each owner's records: 1 where it is honest, and −1 where it was added."""
    data = {}
    for number, size in enumerate(attack.after):
        inputs = torch.ones(size, 1)
        if number == len(attack.after) - 1 and attack.added:
            inputs[size - attack.added :] = -1.0
        data[f"owner-{number:03d}"] = (inputs, torch.zeros(size))
    return data


def _module() -> nn.Module:
    return nn.Linear(1, 1, bias=False)


def _loss(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    """Its gradient is −1 at every weight, for a record of 1."""
    return -output.sum()
