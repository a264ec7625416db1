"""Canary clients: owners that are there or contribute zero, by fair coins (the third guarantee).

Each submits, every round, the longest update that is accepted, in a direction of its own. Who sees
the models, both servers honest, guesses who was there.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve

from precad.client.train import logistic, model_section
from precad.common import checks
from precad.common.account.guarantees import Adversary, Run
from precad.common.encode import clip_update, decode
from precad.common.model import initial_vector
from precad.common.task import Task
from precad.experiments.audit.power import guess
from precad.experiments.audit.simulated import denominator
from precad.experiments.audit.verdict import Statement, Verdict, judge
from precad.experiments.simulation import simulate
from precad.experiments.simulation.view import Matrix, View

_CLASSES, _FEATURES = 10, 4
_PARAMETERS_A_CANARY = 8.0
_NOISE, _ROUNDS = 1.4, 4
_CLUSTERS = (0.25, 0.75)
"""Quantiles of the fit that lie in the one and in the other half of the coins."""
BUILDS = {"sound": 1.0, "unchecked": 8.0}
"""How many times C canaries get away with, by what runs."""


def task_of(clients: int) -> Task:
    """C = R, T = 4, q = 1 and √2·σ near 2: Gaussian with μ near 1 for an owner's presence."""
    features = max(_FEATURES, math.ceil(_PARAMETERS_A_CANARY * clients / _CLASSES))
    return Task.parse(
        {
            "name": "audit",
            "model": model_section(logistic(features, _CLASSES), "logistic"),
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 1.0,
                "noise_multiplier": _NOISE,
                "record_rate": 1.0,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 0.01 * clients, "rounds": _ROUNDS},
            "enrolment": {"clients": clients, "max_expected_records": 1.0},
            "fractional_bits": 16,
        }
    )


def statement_of(task: Task) -> Statement:
    """The client-level guarantee, as one Gaussian a round."""
    event, privacy = Run.of(task).event(Adversary.CLIENT_LEVEL), task.privacy
    return Statement("presence", event.rate, event.noise_multiplier, event.count, privacy.delta)


def audit_presence(clients: int, seed: int, significance: float, *, loose: float = 1.0) -> Verdict:
    """One simulated training whose owners are all canaries, and what follows.

    Args:
        clients: m.
        seed: of coins, directions and noise.
        significance: how likely a sound system fails, at most.
        loose: how many times C canaries get away with; 1 where norms are checked.

    Raises:
        Misconfiguration: no clients.
    """
    checks.count("clients", clients, 1)
    task = task_of(clients)
    statement = statement_of(task)
    power = statement.plan(clients, significance)
    generator = np.random.default_rng(seed)
    coins = generator.random(clients) < 1 / 2
    rows = _rows(task, clients, generator)
    features = task.dimension // _CLASSES - 1
    nothing = (np.zeros((1, features), np.float32), np.zeros(1, np.int64))
    shares: dict[str, Any] = {f"owner-{number:05d}": nothing for number in range(clients)}
    values = task.model_dump(mode="json")
    values["privacy"]["client_clip"] *= loose
    ran = Task.parse(values)
    models = [initial_vector(task.model)]

    def submit(_updates: Matrix, _view: View) -> Matrix:
        found: Matrix = np.rint(loose * rows * coins[:, None]).astype(np.int64)
        return found

    simulate(
        ran,
        shares,
        seed=seed,
        attack=submit,
        attackers=clients,
        on_round=lambda _, theta: models.append(theta),
    )
    scores = _scores(task, rows, models, denominator(task, shares), statement.noise)
    as_stated, as_broken = scores
    made = [guess(as_stated, coins, power.guesses), guess(as_broken, coins, clients)]
    return judge(statement, power, made, significance)


def _rows(task: Task, clients: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """A direction each, as long as is accepted, ``[m, d] int64``."""
    drawn = generator.standard_normal((clients, task.dimension))
    long = 2 * task.bound * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return np.array(
        [
            clip_update(np.rint(row).astype(np.int64), task.bound, task.fractional_bits)
            for row in long
        ]
    )


def _scores(
    task: Task,
    rows: NDArray[np.int64],
    models: list[NDArray[np.float64]],
    divided_by: float,
    noise: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two estimates of every coin, less a constant: for updates of length C, and for any length.

    The first is the best linear one, as in ``scores.scores``; the second a least squares fit,
    between whose clusters half the way is taken.
    """
    real = decode(rows, task.fractional_bits)
    moved = (models[-1] - models[0]) * (divided_by / task.training.learning_rate)
    rounds = task.training.rounds
    products = rounds * (real @ real.T)
    surprise = real @ moved - products.sum(axis=1) / 2
    variance = (noise * task.privacy.client_clip) ** 2
    best = solve(products / 4 + variance * np.eye(len(real)), surprise, assume_a="pos")
    fit = solve(products, real @ moved, assume_a="pos")
    low, high = np.quantile(fit, _CLUSTERS)
    return best, fit - (low + high) / 2
