"""A whole round in one process, with real pens and empty stores; noise that a test knows."""

from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.rig.keys import signatures, signer, verifier

from precad.aggregator.protocol import run_round
from precad.aggregator.rounds.states import Finished
from precad.aggregator.store import open_store
from precad.common.identifiers import ClientId, Role
from precad.common.ring import RingVector
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task


def no_noise(_role: Role) -> Any:
    return SimpleNamespace(draw=lambda dimension: np.zeros(dimension, dtype=np.int64))


def roster_of(names: Iterable[ClientId], rate: float = 0.1) -> Roster:
    return Roster({name: Enrolment(name, 100, rate) for name in names})


def play_round(
    task: Task, updates: Mapping[ClientId, RingVector], **given: Any
) -> tuple[Finished, Finished]:
    """What A and B end with; ``given`` are ``run_round``'s other arguments.

    From a model of zeros, of those alone who send updates, with the task's noise, unless given.
    """
    usual: dict[str, Any] = {
        "roster": roster_of(updates),
        "theta": np.zeros(task.dimension),
        "store": partial(open_store, "sqlite://", task),
        "signers": {name: signer(name) for name in updates},
        "verifier": verifier(),
        "signatures": partial(signatures, task.digest),
    }
    return run_round(task, updates=updates, **usual | given)
