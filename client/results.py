"""What was measured of predictions, as it is printed, written and reported.

It tells of the records that it was measured on, and is not differentially private.
"""

import csv
from typing import TextIO

from pydantic import BaseModel

from precad.common import AlignedTable

WEIGHED = (
    "The task weighs classes: its probabilities are of classes as frequent as the"
    " weights make them, and so are Brier score and calibration: choose a threshold of"
    " your own rather than one half (docs/rare-classes.md)."
)
"""What is said beside results of such a task."""


class Measure(BaseModel, frozen=True, use_attribute_docstrings=True):
    """One measure with its 95 % interval."""

    name: str
    """Such as `sensitivity`."""
    of: str
    """The level, or the target, that it is of; in calibration the part of the records,
    in words."""
    value: float
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end."""
    predicted: float | None = None
    """Of calibration: the mean of what was predicted where this was found."""
    records: int | None = None
    """Of calibration: how many records that were."""


class Results(BaseModel, frozen=True, use_attribute_docstrings=True):
    """What was measured of a model's predictions; numbers are in the target's unit."""

    model: str = ""
    """The model's digest."""
    records: int
    target: str
    """Name of what is predicted."""
    measures: list[Measure] = []
    """Those that the records allow: an AUC needs both classes, R² two values. Of two
    classes and of numbers the last ones are of calibration."""
    levels: list[str] = []
    """The classes; none where a number is predicted."""
    confusion: list[list[int]] = []
    """Records by true class (rows) and predicted class, in the order of ``levels``."""

    def write_csv(self, file: TextIO) -> None:
        """Write all that was measured as CSV; counts of records have no interval."""
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Measure.model_fields)
        writer.writerows(row.model_dump().values() for row in self.measures)
        for level, counts in zip(self.levels, self.confusion, strict=True):
            for predicted, count in zip(self.levels, counts, strict=True):
                name = f"records predicted {predicted}"
                writer.writerow([name, level, count, "", "", ""])

    def show(self, out: TextIO) -> None:
        """Print all that was measured as tables for people."""
        table = AlignedTable("measure", "of", ">value", ">95 % interval")
        for row in self.measures:
            interval = f"{row.low:.4g} to {row.high:.4g}"
            table.add(row.name, row.of, f"{row.value:.4g}", interval)
        table.show(out)
        matrix = AlignedTable("of", *(f">predicted {each}" for each in self.levels))
        for level, counts in zip(self.levels, self.confusion, strict=True):
            matrix.add(level, *map(str, counts))
        if self.levels:
            matrix.show(out)
