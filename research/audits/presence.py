"""Canary clients: owners that are there or contribute zero, by fair coins (the third guarantee).

Each submits, every round, the longest update that is accepted, in a direction of its
own; or zero, by a coin a round. Who sees the models, both servers honest, guesses who
was there.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve

from precad.accounting.adversaries import Adversary, Run
from precad.client.gradients.torch_models import logistic, model_section
from precad.common import checks
from precad.common.fixed_point import clip_update, decode
from precad.common.model import initial_vector
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.rounds import View
from precad.simulation.virtual_owners import Matrix
from research.audits.builds import LOOSE, PRESENCE, Build, less_noise
from research.audits.canary_training import denominator
from research.audits.verdict import AuditedStatement, AuditVerdict, Power, guess, judge

_CLASSES, _FEATURES = 10, 4
_PARAMETERS_A_CANARY = 8.0
_NOISE = 0.7
_CLUSTERS = (0.25, 0.75)
"""Quantiles of the fit that lie in the one and in the other half of the coins."""
Models = list[NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Present:
    """What an audit of presence needs.

    Attributes:
        task: C = R, q = 1 and √2·σ near 1: Gaussian with μ near 1 for an owner's
            presence in a round.
        rows: a direction each, as long as is accepted, ``[m, d] int64``.
        coins: ``[T, m] bool``, who is there.
        shares: the owners' records, of no meaning.
    """

    task: Task
    rows: Matrix = field(repr=False)
    coins: NDArray[np.bool_] = field(repr=False)
    shares: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = field(repr=False)

    @property
    def statement(self) -> AuditedStatement:
        """The client-level guarantee of one round, as one Gaussian."""
        event = Run.of(self.task).event(Adversary.CLIENT_LEVEL)
        return AuditedStatement(
            name=PRESENCE,
            rate=event.rate,
            noise=event.noise_multiplier,
            rounds=1,
            delta=self.task.privacy.delta,
        )

    def plan(self, significance: float, build: Build = Build.SOUND) -> Power:
        """How many coins to guess, before any is, and how likely this build is caught."""
        crowding = len(self.rows) / self.task.dimension
        return self.statement.plan(
            canaries=self.coins.size,
            significance=significance,
            less=less_noise(build).get(PRESENCE, 1.0),
            crowding=crowding,
        )

    def submitted(self, build: Build) -> Matrix:
        """What owners get away with, ``[m, d] int64``."""
        loose = LOOSE if build is Build.UNCHECKED else 1.0
        found: Matrix = np.rint(loose * self.rows).astype(np.int64)
        return found


def present(clients: int, rounds: int, seed: int) -> Present:
    """A task whose owners are all canaries.

    Args:
        clients: m.
        rounds: T, each with m coins of its own.
        seed: of coins and directions.

    Raises:
        Misconfiguration: no clients, or no rounds.
    """
    checks.count("clients", clients, 1)
    checks.count("rounds", rounds, 1)
    features = max(_FEATURES, math.ceil(_PARAMETERS_A_CANARY * clients / _CLASSES))
    task = Task.parse(
        {
            "name": "audit",
            "model": model_section(
                logistic(features, _CLASSES), architecture="logistic"
            ),
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 1.0,
                "noise_multiplier": _NOISE,
                "record_rate": 1.0,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 0.01 * clients, "rounds": rounds},
            "enrolment": {"clients": clients, "max_expected_records": 1.0},
            "fractional_bits": 16,
        }
    )
    generator = np.random.default_rng(seed)
    coins = generator.random((rounds, clients)) < 1 / 2
    nothing = (np.zeros((1, features), np.float32), np.zeros(1, np.int64))
    shares = {f"owner-{number:05d}": nothing for number in range(clients)}
    return Present(task, _rows(task, clients, generator), coins, shares)


def train(
    made: Present, *, build_of: Build = Build.SOUND, seed: int | None = None
) -> Models:
    """Simulates the training.

    Args:
        made: task, rows and coins.
        build_of: what runs, one of ``builds.OF_PRESENCE``.
        seed: of the noise.

    Returns:
        θ_0 to θ_T, ``[d] float64`` each.
    """
    values: dict[str, Any] = made.task.model_dump(mode="json")
    if build_of is Build.UNCHECKED:
        values["privacy"]["client_clip"] *= LOOSE
    if build_of is Build.HALF_NOISE:
        values["privacy"]["noise_multiplier"] /= 2
    models: Models = [initial_vector(made.task.model).astype(np.float64)]
    rows = made.submitted(build_of)

    def submit(_updates: Matrix, view: View) -> Matrix:
        found: Matrix = rows * made.coins[view.version][:, None]
        return found

    simulate(
        Task.parse(values),
        made.shares,
        seed=seed,
        attack=submit,
        attackers=len(rows),
        on_round=lambda _, theta: models.append(theta.astype(np.float64)),
    )
    return models


def audit(
    made: Present, power: Power, models: Models, significance: float
) -> AuditVerdict:
    """Score one training and judge it.

    Args:
        made: task, rows and coins.
        power: fixed before the training.
        models: θ_0 to θ_T.
        significance: how likely a sound system fails, at most.
    """
    coins = made.coins.ravel()
    as_stated, as_broken = (scores.ravel() for scores in _scores(made, models))
    ways = [guess(as_stated, coins, power.guesses), guess(as_broken, coins, len(coins))]
    return judge(made.statement, power, ways, significance)


def _rows(task: Task, clients: int, generator: np.random.Generator) -> Matrix:
    drawn = generator.standard_normal((clients, task.dimension))
    long = (
        2 * task.mechanism.bound * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    )
    return np.array(
        [
            clip_update(
                np.rint(row).astype(np.int64),
                task.mechanism.bound,
                task.fractional_bits,
            )
            for row in long
        ]
    )


def _scores(
    made: Present, models: Models
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two estimates of every coin, ``[T, m]``: for updates of length C, and for any length.

    The first is the best linear one (``canary_training.scores``); the second a least
    squares fit, between whose clusters half the way is taken. Both are less a constant.
    """
    task = made.task
    real = decode(made.rows, task.fractional_bits)
    moved = np.diff(np.array(models), axis=0).T
    moved *= denominator(task, made.shares) / task.training.learning_rate
    products, seen = real @ real.T, real @ moved
    variance = (made.statement.noise * task.privacy.most_client_clip) ** 2
    surprise = seen - products.sum(axis=1, keepdims=True) / 2
    best = solve(products / 4 + variance * np.eye(len(real)), surprise, assume_a="pos")
    fit = solve(products, seen, assume_a="pos")
    low, high = np.quantile(fit, _CLUSTERS)
    return best.T, (fit - (low + high) / 2).T
