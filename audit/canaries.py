"""Canaries: records of a consenting owner that count, or count as zero, by fair coins.

In a task made for auditing every record counts in every round, which has coins of its own: what one
round shows of a record is a mechanism by itself, and what follows only processes it, so that T
rounds of one training audit the statement of one round as T trainings would.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.client.gradients.torch_models import logistic, model_section
from precad.client.records.torch_records import Records
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import Task

LOUD = 1.5
"""How many times as large as a record's inputs: gradients pass usual clips, and aren't learned."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """Records and their coins. The coins are the audit's secret until the guesses are made.

    Attributes:
        records: m records, of the shape of the owner's own.
        coins: ``[periods, m] bool``, whether each counts; where not, its gradient is zero in every
            sample that it is drawn into, which is what neighbouring data sets differ in. A row
            holds for one of equally many rounds: one row is for the whole training, T are for one
            round each.
    """

    records: Records
    coins: NDArray[np.bool_] = field(repr=False)

    def __len__(self) -> int:
        return len(self.records)


def coins_at(coins: NDArray[np.bool_], version: int, rounds: int) -> NDArray[np.bool_]:
    """A round's coins, ``[m] bool``, of all periods'."""
    found: NDArray[np.bool_] = coins[version * len(coins) // rounds]
    return found


def loud_canaries(
    like: Records, count: int, classes: int, seed: int, loud: float = LOUD, periods: int = 1
) -> Canaries:
    """Canaries whose gradients are long and nearly at right angles to each other.

    Inputs are Gaussian; labels are drawn at random. The coins come from the same generator: the
    seed is the audit's secret until it is over, and repeats it afterwards. Shape and spread are
    those of ``like``, the spread ``loud`` times as large; labels are below ``classes``. Each of the
    training's ``periods`` has coins of its own.

    Raises Misconfiguration: inputs that aren't real numbers, or labels that aren't whole ones.
    """
    checks.count("canaries", count, 1)
    if not like.inputs.is_floating_point() or like.targets.is_floating_point():
        raise Misconfiguration(
            "data",
            f"{like.inputs.dtype}, {like.targets.dtype}",
            "canaries are made for inputs of real numbers with a label each",
        )
    generator = torch.Generator().manual_seed(seed)
    spread = float(like.inputs.std()) or 1.0
    shape = (count, *like.inputs.shape[1:])
    noise = torch.randn(shape, generator=generator, dtype=like.inputs.dtype)
    inputs = loud * spread * noise
    targets = torch.randint(0, classes, (count,), generator=generator).to(like.targets.dtype)
    coins = torch.rand(periods, count, generator=generator).numpy() < 1 / 2
    return Canaries(Records(inputs, targets), coins)


_CLASSES = 10
_PARAMETERS_A_CANARY = 8.0
_NOISE = 1.4
_RATE = 1e-4
"""Learning rate by the number of canaries: so small that none is learned in a hundred rounds."""
_LOUDER = 12.0
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
        crowding: canaries by dimensions, see ``Statement.plan``; 0 where their gradients lie
            otherwise.
    """

    task: Task
    shares: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = field(repr=False)
    canaries: Canaries = field(repr=False)
    crowding: float = 0.0


def designed(canaries: int, rounds: int, seed: int) -> Designed:
    """The task, its owners and canaries.

    The client clip has room for all canaries, and each round has coins of its own.

    Raises Misconfiguration: more canaries than a client's clip can hold.
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
    found = loud_canaries(like, canaries, _CLASSES, seed, _LOUDER, periods=rounds)
    return Designed(Task.parse(values), shares, found, 1 / _PARAMETERS_A_CANARY)
