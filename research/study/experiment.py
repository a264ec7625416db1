"""An experiment: what a paper claims, the settings that test it, a table and a picture of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from research.checkpoint import Checkpoint
from research.registry import Registry

Settings = Mapping[str, Any]
"""Plain values. A cell, one measurement, is all its settings: they name it and repeat
it."""


class Scale(StrEnum):
    """How large an experiment is."""

    SMALL = "small"
    """Minutes on two cores; on data that scikit-learn brings, unless a figure is about
    others."""
    PAPER = "paper"
    """The paper's own settings, on its own data."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a cell is measured with, apart from its settings.

    Attributes:
        data: folder with the files of data sets that don't come with scikit-learn.
        device: where torch computes.
        keep: folder where a cell keeps what it would otherwise make again, such as a
            trained model: it goes on from there, and cells of other experiments use it
            too.
        progress: to be told how many of a cell's steps are done, and of how many.
        checkpoint: where a long cell keeps what it has, and takes it up again.
    """

    data: Path | None = None
    device: str = "cpu"
    keep: Path | None = None
    progress: Callable[[int, int], object] = field(
        default=lambda _done, _all: None, repr=False
    )
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a cell gave: the same values for the same settings, versions and processor.

    Attributes:
        settings: the cell's.
        values: plain values, for JSON.
        seconds: it took, since it was last taken up.
    """

    settings: Settings
    values: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Table:
    """What was published beside what was measured."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As a document has it."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A figure or a table of a paper, run again.

    Attributes:
        paper: its short name.
        figure: of the paper.
        claim: what the paper says that it shows, in a sentence.
        does: what is done here.
        settings: at each scale, what all cells share; printed, and handed to every
            cell.
        cells: at each scale, what they differ in.
        measure: one cell's values from all its settings.
        table: of the results that there are, which may be a part of all.
        plot: draws them on an empty matplotlib figure.
    """

    paper: str
    figure: str
    claim: str
    does: str
    settings: Mapping[Scale, Settings]
    cells: Callable[[Scale], Sequence[Settings]]
    measure: Callable[[Settings, Surroundings], Mapping[str, Any]]
    table: Callable[[Sequence[Result]], Table]
    plot: Callable[[Sequence[Result], Any], None]

    def all_cells(self, scale: Scale) -> list[Settings]:
        """Every cell with all its settings, in the order in which they are run."""
        return [{**self.settings[scale], **own} for own in self.cells(scale)]


EXPERIMENTS: Registry[Experiment] = Registry("experiment", "research.papers")
