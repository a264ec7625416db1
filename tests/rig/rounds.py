"""A whole round in one process, with real pens, empty stores and known noise."""

from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
from tests.rig import protocol
from tests.rig.documents import Arguments
from tests.rig.keys import signatures, signer, verifier

from precad.aggregator import store
from precad.aggregator.attempt_states import Finished
from precad.aggregator.noise import NoiseSource
from precad.common import identifiers, ring
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task


def no_noise(_role: identifiers.Role) -> NoiseSource:
    none = lambda dimension: np.zeros(dimension, dtype=np.int64)  # noqa: E731
    return cast("NoiseSource", SimpleNamespace(draw=none))


def roster_of(names: Iterable[identifiers.ClientId], rate: float = 0.1) -> Roster:
    return Roster({name: Enrolment(name, 100, rate) for name in names})


def play_round(
    task: Task,
    updates: Mapping[identifiers.ClientId, ring.RingVector],
    **given: object,
) -> tuple[Finished, Finished]:
    """What A and B end with; ``given`` are ``run_round``'s other arguments.

    From a model of zeros, of those alone who send updates, with the task's noise,
    unless given.
    """
    usual: Arguments = {
        "roster": roster_of(updates),
        "theta": np.zeros(task.dimension),
        "store": partial(store.open_store, "sqlite://", task),
        "signers": {name: signer(name) for name in updates},
        "verifier": verifier(),
        "signatures": partial(signatures, task.digest),
    }
    return protocol.run_round(task, updates=updates, **usual | given)
