"""Federated SGD without any protection; PRECAD's first baseline."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from precad.common.model import unrounded_start
from research.algorithms.learner import Learner, Reals
from research.algorithms.problem import ALGORITHMS, Problem, Trained
from research.algorithms.start import model_and_section
from research.poisoning import Scene


@ALGORITHMS.register("non-private")
def non_private(problem: Problem, settings: Mapping[str, Any]) -> Trained:
    """θ ← θ − η/(q·p·|D|) · Σ gradients, neither clipped nor noised; a bad client's update is free.

    Args:
        problem: the problem.
        settings: ``rounds``, ``learning_rate``, ``record_rate`` and ``client_rate``.
    """
    module, section = model_and_section(problem)
    learner = Learner(module)
    theta = unrounded_start(section)
    records = [problem.records(client) for client in range(len(problem.shares))]
    sampled = (
        settings["record_rate"]
        * sum(len(y) for _, y in records)
        * settings["client_rate"]
    )
    step = settings["learning_rate"] / sampled
    first = 0
    if problem.checkpoint is not None:
        first, found, _ = problem.checkpoint.found(torch.from_numpy(theta), ())
        theta = found.numpy()
    for version in range(first, settings["rounds"]):
        drawn_by = np.random.default_rng([problem.seed, version])
        drawn = np.flatnonzero(drawn_by.random(len(records)) < settings["client_rate"])
        samples = [
            np.flatnonzero(
                drawn_by.random(len(records[client][1])) < settings["record_rate"]
            )
            for client in drawn
        ]
        bad = [
            number for c in drawn if (number := problem.bad_number(int(c))) is not None
        ]
        attacks = bool(bad)
        whole = problem.defence is None and not attacks
        groups = (
            [list(range(len(drawn)))]
            if whole
            else [[place] for place in range(len(drawn))]
        )
        rows = [
            _update(
                learner,
                theta,
                [(records[drawn[place]], samples[place]) for place in group],
            )
            for group in groups
        ]
        updates = np.array(rows).reshape(-1, learner.dimension)
        if attacks:
            good = len(drawn) - len(bad)
            scene = Scene(
                theta=theta,
                others=updates[:good],
                step=step,
                bound=np.inf,
                learn=partial(_learn, learner, theta, records[-problem.attackers :]),
                numbers=tuple(bad),
                generator=drawn_by,
            )
            updates[good:] = problem.attack.submit(updates[good:], scene)
        if problem.defence is None or not len(updates):
            total = updates.sum(axis=0)
        else:
            total = problem.defence(updates, len(bad)) * len(updates)
        theta = theta + step * total
        problem.watch(version + 1, theta)
        if problem.checkpoint is not None and problem.checkpoint.due(
            version + 1, settings["rounds"]
        ):
            problem.checkpoint.keep(version + 1, torch.from_numpy(theta), ())
    return Trained(theta, {})


def _learn(
    learner: Learner,
    theta: Reals,
    records: list[Any],
    number: int,
    rate: float,
    steps: int,
) -> Reals:
    """What a bad client makes of the model by itself."""
    x, y = records[number]
    return learner.descend(theta, x, y, rate, steps)


def _update(learner: Learner, theta: Reals, parts: list[Any]) -> Reals:
    """Minus the sum of the gradients of these samples."""
    if not any(len(rows) for _, rows in parts):
        return np.zeros(learner.dimension)
    x = torch.from_numpy(np.concatenate([records[0][rows] for records, rows in parts]))
    y = torch.from_numpy(np.concatenate([records[1][rows] for records, rows in parts]))
    at = torch.tensor(theta, dtype=torch.float32)
    return np.asarray(-learner.gradient(at, x, y, torch.ones(len(y))).double().numpy())
