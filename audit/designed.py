"""A task made for auditing: every record counts in every round, which has coins of its own.

What one round shows of a record is a mechanism by itself, and what follows only processes it: so T
rounds of one training audit the statement of one round as T trainings would.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.audit.canaries import LOUD, Canaries, loud_canaries
from precad.client.train import Records, logistic, model_section
from precad.common.task import Task

_CLASSES = 10
_PARAMETERS_A_CANARY = 8.0
_NOISE = 1.4
_RATE = 1e-4
"""Learning rate by the number of canaries: so small that none is learned in a hundred rounds."""
LOUDER = 12.0
"""Gradients pass eight times the clip: what a clip that isn't kept lets through."""
_OWNERS, _RECORDS = 2, 50
_ROOM = 10.0
"""Of the client clip: it shall hide nothing that the record clip should have stopped."""


@dataclass(frozen=True, slots=True)
class Designed:
    """What an audit needs.

    Attributes:
        task: σ = 1.4 at p = q = 1: each round is Gaussian, with μ = .71 against one server and .51
            for who sees the models.
        shares: the other owners' records, of no meaning.
        canaries: the audited owner's.
        crowding: canaries by dimensions, see ``power.plan``; 0 where their gradients lie otherwise.
    """

    task: Task
    shares: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = field(repr=False)
    canaries: Canaries = field(repr=False)
    crowding: float = 0.0


def designed(canaries: int, rounds: int, seed: int, loud: float = LOUD) -> Designed:
    """The task, its owners and canaries.

    Args:
        canaries: m; the client clip has room for all of them.
        rounds: T, each with m coins of its own.
        seed: of records, canaries and coins.
        loud: see ``loud_canaries``; larger finds a clip that isn't kept.

    Raises:
        Misconfiguration: more canaries than a client's clip can hold.
    """
    generator = np.random.default_rng(seed)
    features = math.ceil(_PARAMETERS_A_CANARY * canaries / _CLASSES)
    shares = {
        f"owner-{number}": (
            generator.standard_normal((_RECORDS, features), np.float32),
            generator.integers(0, _CLASSES, _RECORDS),
        )
        for number in range(1, _OWNERS + 1)
    }
    values: dict[str, Any] = {
        "name": "audit",
        "model": model_section(logistic(features, _CLASSES), "logistic"),
        "privacy": {
            "record_clip": 1.0,
            "client_clip": _ROOM * math.sqrt(canaries),
            "noise_multiplier": _NOISE,
            "record_rate": 1.0,
            "client_rate": 1.0,
        },
        "training": {"learning_rate": _RATE * canaries, "rounds": rounds},
        "enrolment": {
            "clients": _OWNERS + 1,
            "max_expected_records": float(max(canaries, _RECORDS)),
        },
        "fractional_bits": 14,
    }
    like = Records(*(torch.from_numpy(part) for part in shares["owner-1"]))
    found = loud_canaries(like, canaries, _CLASSES, seed, loud, periods=rounds)
    return Designed(Task.parse(values), shares, found, 1 / _PARAMETERS_A_CANARY)
