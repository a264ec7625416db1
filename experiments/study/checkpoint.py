"""A cell's state between its rounds, so that a long ensemble goes on where it was broken off."""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.durable import write_file


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file of arrays; nothing in it is code.

    Args:
        path: it; the folder is made when something is kept.
    """

    path: Path

    def keep(
        self,
        done: int,
        thetas: torch.Tensor,
        generators: Sequence[np.random.Generator],
        **others: NDArray[np.int64],
    ) -> None:
        """What so many rounds gave; the file appears whole or stays as it was."""
        states = json.dumps([each.bit_generator.state for each in generators])
        file = io.BytesIO()
        arrays: dict[str, Any] = {
            "done": done,
            "thetas": thetas.cpu().numpy(),
            "states": states,
            **others,
        }
        np.savez(file, allow_pickle=False, **arrays)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, file.getvalue(), mode=0o644)

    def found(
        self, thetas: torch.Tensor, generators: Sequence[np.random.Generator]
    ) -> "tuple[int, torch.Tensor, dict[str, NDArray[np.int64]]]":
        """Rounds that are done, models and other arrays; ``thetas`` and no round if there is none.

        The generators are put where they were. A file that another version wrote or that is
        damaged counts as none: the rounds are played again.
        """
        try:
            with self.path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            states = json.loads(str(arrays.pop("states")))
            done, kept = int(arrays.pop("done")), arrays.pop("thetas")
            if len(states) != len(generators) or kept.shape != tuple(thetas.shape):
                return 0, thetas, {}
            for generator, state in zip(generators, states, strict=True):
                generator.bit_generator.state = state
        except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile):
            return 0, thetas, {}
        return done, torch.from_numpy(kept).to(thetas), arrays

    def drop(self) -> None:
        """The cell is measured."""
        self.path.unlink(missing_ok=True)
