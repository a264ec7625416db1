"""How long cells will take, by what cells of their kind took."""

import time
from pathlib import Path
from typing import Any

from research.study.experiment import Result, Scale, Settings, Surroundings
from research.study.kept import Kept, key_of
from research.study.run import EVERY, cells_with, measure

KINDS = ("algorithm", "defence", "arm", "models")
"""Settings by which a cell may take ten times as long as another; it is taken for
granted that all with the same ones cost alike."""
PROBE_S = 5.0
"""How long a kind's cell is tried of which none was measured."""
_PROBE_STEPS = 3


class _Enough(Exception):
    """A cell has run for long enough to be judged by."""


class Estimate:
    """Of the cells that are missing, one after another; told of each that is there, it learns.

    What a kind's cells cost, those say that are there; else one in the middle of its
    first seed's, of which some steps are taken.

    Args:
        name: of the experiment.
        scale: see ``Scale``.
        output: folder of results.
        data: folder with data sets' files.
        device: where torch computes.
        only: cells with these settings alone.
    """

    def __init__(
        self,
        name: str,
        scale: Scale,
        output: Path,
        data: Path | None = None,
        device: str = "cpu",
        only: Settings = EVERY,
    ) -> None:
        cells = cells_with(name, scale, only)
        kept = Kept(output, name, scale)
        self._took: dict[str, list[float]] = {}
        for result in kept.of(cells):
            self._took.setdefault(_kind(result.settings), []).append(result.seconds)
        missing: dict[str, list[Settings]] = {}
        for cell in kept.missing(cells):
            missing.setdefault(_kind(cell), []).append(cell)
        self._missing = {kind: len(todo) for kind, todo in missing.items()}
        self._probed: dict[str, float] = {}
        for kind, todo in missing.items():
            if kind not in self._took:
                first = [
                    cell for cell in todo if cell.get("seed") == todo[0].get("seed")
                ]
                self._probed[kind] = _probed(name, first[len(first) // 2], data, device)

    @property
    def missing(self) -> int:
        """How many cells aren't measured."""
        return sum(self._missing.values())

    @property
    def hours(self) -> float:
        """What they will take."""
        return (
            sum(self._each(kind) * count for kind, count in self._missing.items())
            / 3600
        )

    def add(self, result: Result) -> None:
        """A missing one is there."""
        kind = _kind(result.settings)
        self._took.setdefault(kind, []).append(result.seconds)
        self._missing[kind] -= 1

    def _each(self, kind: str) -> float:
        took = self._took.get(kind)
        return sum(took) / len(took) if took else self._probed[kind]


def _kind(settings: Settings) -> str:
    return key_of({name: settings.get(name) for name in KINDS})


def _probed(name: str, cell: Settings, data: Path | None, device: str) -> float:
    # The first step pays for what is done once, and doesn't count.
    at: list[tuple[int, float]] = []
    found = 0.0

    def progress(done: int, of: int) -> None:
        nonlocal found
        at.append((done, time.perf_counter()))
        (first, began), (last, now) = at[0], at[-1]
        if len(at) > _PROBE_STEPS and now - began >= PROBE_S:
            found = (now - began) / (last - first) * of
            raise _Enough

    try:
        result: Any = measure(name, cell, Surroundings(data, device, progress=progress))
    except _Enough:
        return found
    return float(result.seconds)
