"""A simulation that was broken off goes on after the last round that was kept."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.simulation.checkpoint import Checkpoint
from precad.simulation.result import SimulatedRound

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class State:
    """What a simulation's next round depends on, and the rounds before it.

    Attributes:
        theta: θ_t, ``[d] float64``.
        taken: T_i by client.
        history: rounds 1 to t.
    """

    theta: Reals
    taken: Counter[str]
    history: list[SimulatedRound]


@dataclass(frozen=True, slots=True)
class GoingOn:
    """Where a simulation's state lies.

    Args:
        checkpoint: the file.
        what: is simulated, as plain values: the state of anything else isn't taken up.
    """

    checkpoint: Checkpoint
    what: Mapping[str, Any]

    def keep(self, state: State, rounds: int) -> None:
        """Where it is due after so many of all rounds."""
        done = len(state.history)
        if self.checkpoint.due(done, rounds):
            self.checkpoint.keep(
                done,
                torch.from_numpy(state.theta),
                (),
                what=json.dumps(self.what),
                taken=json.dumps(state.taken),
                history=json.dumps([asdict(played) for played in state.history]),
            )

    def found(self, start: State) -> State:
        """What was kept; else the start."""
        done, theta, kept = self.checkpoint.found(torch.from_numpy(start.theta), ())
        if not done or str(kept.get("what")) != json.dumps(self.what):
            self.checkpoint.notes.clear()
            return start
        history = [SimulatedRound(**played) for played in json.loads(str(kept["history"]))]
        return State(theta.numpy(), Counter(json.loads(str(kept["taken"]))), history)
