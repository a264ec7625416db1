"""A task's settings from what is wanted: σ for an ε, C for a number of malicious owners.

All of it is a plan: privacy over the 0.999 quantile of participations, C by the central limit
theorem. What a run gave stands in its ledger; what a setting learns, `precad simulate` shows.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from precad.accounting import gdp
from precad.accounting.adversaries import Adversary, Run, planned_participations
from precad.accounting.calibrate import least_noise_multiplier
from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.certify.curves import Booleans, Integers
from precad.certify.exact_groups import ExactGroups
from precad.certify.guarantee import (
    BOTH,
    Direction,
    Guarantee,
    Replacements,
    ValidationAllowance,
)
from precad.certify.inefficacy import attack_bounds
from precad.certify.prediction import largest_group
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import MAX_BOUND, Task

Change: TypeAlias = Literal["replacements", "additions"]
"""What malicious owners do: honest ones turn bad (+C may become −C), or bad ones join."""

MOST_EPSILON = 100.0
"""An ε beyond it protects nothing and leaves floating point."""
MOST_SEARCHED = 2**12
"""No more attackers than that are looked for."""
_DIGITS = 4
_MOST_FRACTIONAL_BITS = 20
# With less noise than this over one unit's bound nothing is certified.
_LEAST_NOISE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """What malicious owners may cause at most; PRECAD Theorem 2.

    Attributes:
        malicious: K ≥ 1 owners that may submit anything.
        loss: expected loss L on one record without attackers, in (0, B).
        tolerated_loss: the loss that the K may cause at most, in (L, B).
        loss_bound: B, the largest value that the loss takes.
        change: which change of theirs the bound must hold for.

    Raises:
        Misconfiguration: a value is out of its range.
    """

    malicious: int = 1
    loss: float = 0.2
    tolerated_loss: float = 0.5
    loss_bound: float = 1.0
    change: Change = "replacements"

    def __post_init__(self) -> None:
        checks.count("malicious", self.malicious, 1)
        self.largest_mu()

    def largest_mu(self) -> float:
        """Return μ of one owner up to which the loss bound stays tolerated."""
        group = gdp.tolerated_group_mu(self.loss, self.tolerated_loss, self.loss_bound)
        return group / (self.malicious * _shifts(self.change))

    def worst_loss(self, mu: float, change: Change) -> float:
        """Return the loss that K owners can cause at most; ``mu`` is that of one of them."""
        group = gdp.group_mu(mu, self.malicious * _shifts(change))
        return self.loss_bound * float(gdp.shifted(self.loss / self.loss_bound, group))

    def clip_and_noise(
        self, record_clip: float, noise_multiplier: float, client_rate: float, rounds: int
    ) -> tuple[float, float]:
        """Return the largest C that tolerates the K, and σ, raised where C would be below R.

        R stands for R', which is larger: C errs on the safe side.
        """
        ratio = gdp.largest_clip_ratio(self.largest_mu(), client_rate, rounds)
        sigma = max(noise_multiplier, rounded(1 / ratio, up=True))
        return max(record_clip, rounded(ratio * sigma * record_clip, up=False)), sigma

    def noise_over_signal(self, dimension: int, owners: int) -> float:
        """Return √d/(n·μ): a run's noise over its signal, if all gradients agreed, at least.

        So much the bound costs at every σ, q, p and T (docs/privacy-accounting.md, "Planning").
        """
        return math.sqrt(dimension) / (owners * self.largest_mu())


def _shifts(change: Change) -> int:
    """By how many μ one malicious owner shifts a score."""
    return 2 if change == "replacements" else 1


def least_noise(epsilon: float, delta: float, record_rate: float, participations: int) -> float:
    """Return the least σ for which a record has (ε, δ) against one curious server, exactly.

    Rounded up to four digits.

    Raises:
        Misconfiguration: a value is out of its range, or no σ reaches it.
    """
    if checks.positive("epsilon", epsilon, "the wanted ε") > MOST_EPSILON:
        raise Misconfiguration(
            "epsilon", epsilon, f"give at most {MOST_EPSILON:g}: 10 is little already"
        )
    sigma = least_noise_multiplier(
        lambda sigma: poisson_gaussian(
            rate=record_rate, noise_multiplier=sigma, count=participations
        ),
        epsilon=epsilon,
        delta=delta,
    )
    return rounded(sigma, up=True)


def participations_of(client_rate: float, rounds: int) -> int:
    """Return how often all but one owner in 1,000 take part at most; at least once."""
    return max(1, planned_participations(client_rate, rounds))


def fractional_bits(client_clip: float) -> int:
    """Return f: the most, up to 20, with β = floor(C·2^f) at most 2^25; at least 1."""
    fitting = math.floor(math.log2(MAX_BOUND / client_clip)) if client_clip < MAX_BOUND else 1
    return max(1, min(_MOST_FRACTIONAL_BITS, fitting))


def client_mu(task: Task) -> float:
    """Return μ of one added owner over the run, by the central limit theorem; PRECAD Lemma 8."""
    event = Run.of(task).event(Adversary.CLIENT_LEVEL)
    return gdp.clt_mu(event.rate, event.noise_multiplier, event.count)


def certified(task: Task, robustness: Robustness) -> dict[str, int]:
    """Return how many attackers keep the loss tolerated, exactly, as `precad certify` has it.

    Returns:
        The largest numbers of ``clients_replaced``, ``clients_added`` and ``records`` (added or
        deleted, of any owners); ``MOST_SEARCHED`` means at least so many.
    """
    run = Run.of(task)
    clients = run.event(Adversary.CLIENT_LEVEL)
    records = Run.of(task, participations=run.rounds).event(Adversary.CLIENTS_ONLY)
    attempts = run.rounds * task.training.attempts
    checked = ValidationAllowance(ExactGroups(clients), attempts, task.projections)
    additions = (Direction.ADDITIONS,)
    return {
        "clients_replaced": _most(robustness, Replacements(checked), clients, additions),
        "clients_added": _most(robustness, checked, clients, additions),
        "records": _most(robustness, ExactGroups(records), records, BOTH),
    }


def _most(
    robustness: Robustness,
    guarantee: Guarantee,
    mechanism: SampledGaussian,
    directions: tuple[Direction, ...],
) -> int:
    if mechanism.effective_noise_multiplier < _LEAST_NOISE:
        return 0
    loss, bound = robustness.loss, robustness.loss_bound

    def holds(k: int, points: Integers) -> Booleans:
        worst = float(attack_bounds(loss, bound, guarantee, k, directions).upper)
        return np.full(len(points), worst <= robustness.tolerated_loss)

    return int(largest_group(holds, 1, MOST_SEARCHED)[0])


def template_of(dimension: int, delta: float) -> dict[str, Any]:
    """Return a task of one tensor of so many parameters, as ``Task.parse`` takes it."""
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


def rounded(value: float, digits: int = _DIGITS, *, up: bool | None = None) -> float:
    """Return ``value`` to so many digits: the nearest, or up, or down."""
    exponent = math.floor(math.log10(value)) - digits + 1
    scaled = value / 10.0**exponent
    # What is a rounding away from such a number already stays.
    if up is None or abs(scaled - round(scaled)) < 1e-9:
        whole = round(scaled)
    else:
        whole = math.ceil(scaled) if up else math.floor(scaled)
    return float(f"{whole}e{exponent}")
