"""State between rounds, so that a long training goes on where it was broken off."""

import io
import json
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.files import write_file
from precad.simulation.result import SimulatedRound
from precad.simulation.rounds import State

PARTS = 20
"""Of a training: at most one is played again."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file of arrays; nothing in it is code.

    Args:
        path: it; the folder is made when something is kept.
        notes: plain values of whoever watches a training, such as accuracies: kept with
            each state, and found with it.
    """

    path: Path
    notes: dict[str, Any] = field(default_factory=dict, compare=False)

    @staticmethod
    def due(done: int, of: int) -> bool:
        """Whether to keep a state after so many of all rounds or steps."""
        return done % max(1, of // PARTS) == 0 or done == of

    def keep(
        self,
        done: int,
        thetas: torch.Tensor,
        generators: Sequence[np.random.Generator],
        **others: NDArray[Any] | str,
    ) -> None:
        """What so many rounds gave; the file appears whole or stays as it was."""
        states = json.dumps([each.bit_generator.state for each in generators])
        file = io.BytesIO()
        arrays: dict[str, Any] = {
            "done": done,
            "thetas": thetas.cpu().numpy(),
            "states": states,
            "notes": json.dumps(self.notes),
            **others,
        }
        np.savez(file, allow_pickle=False, **arrays)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, file.getvalue(), mode=0o644)

    def found(
        self, thetas: torch.Tensor, generators: Sequence[np.random.Generator]
    ) -> "tuple[int, torch.Tensor, dict[str, NDArray[Any]]]":
        """Rounds that are done, models and other arrays; ``thetas`` and no round if there is none.

        The generators are put where they were, and the notes are what they were. A file
        that another version wrote or that is damaged counts as none: the rounds are
        played again.
        """
        try:
            with (
                self.path.open("rb") as opened,
                np.load(opened, allow_pickle=False) as file,
            ):
                arrays = {name: file[name] for name in file.files}
            states, notes = (
                json.loads(str(arrays.pop(name))) for name in ("states", "notes")
            )
            done, kept = int(arrays.pop("done")), arrays.pop("thetas")
            if len(states) != len(generators) or kept.shape != tuple(thetas.shape):
                return 0, thetas, {}
            self.notes.clear()
            self.notes.update(notes)
            for generator, state in zip(generators, states, strict=True):
                generator.bit_generator.state = state
        except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile):
            return 0, thetas, {}
        return done, torch.from_numpy(kept).to(thetas), arrays

    def drop(self) -> None:
        """The cell is measured."""
        self.path.unlink(missing_ok=True)

    def keep_state(self, what: Mapping[str, Any], state: State, rounds: int) -> None:
        """Keep a simulation's state where that is due after so many of all rounds."""
        done = len(state.history)
        if self.due(done, rounds):
            self.keep(
                done,
                torch.from_numpy(state.theta),
                (),
                what=json.dumps(what),
                taken=json.dumps(state.taken),
                history=json.dumps([asdict(played) for played in state.history]),
            )

    def found_state(self, what: Mapping[str, Any], start: State) -> State:
        """The state that was kept of this simulation; else the start."""
        done, theta, kept = self.found(torch.from_numpy(start.theta), ())
        if not done or str(kept.get("what")) != json.dumps(what):
            self.notes.clear()
            return start
        history = [
            SimulatedRound(**played) for played in json.loads(str(kept["history"]))
        ]
        return State(theta.numpy(), Counter(json.loads(str(kept["taken"]))), history)
