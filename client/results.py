"""What was measured of predictions, or answered, as it is printed and reported.

The former tells of the records that it was measured on, and is not differentially
private; answers are.
"""

import csv
from typing import TextIO

from pydantic import BaseModel

from precad.common import AlignedTable, Query

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


class Answer(BaseModel, frozen=True, use_attribute_docstrings=True):
    """One answer, in the column's own unit, with its intervals."""

    query: str
    group: str
    """The level of `by`; empty without it."""
    of: str
    """A level, a bin, `records`, `mean`, `standard deviation`, `missing` or
    `quantile` and which."""
    measure: str
    """`count`, `share` or `value`; or `p-value` of a test, whose ends are it: how often
    chance, sampling and noise, gives as much where the population is as said."""
    value: float
    """As released: a count may be below 0."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Its upper end."""
    low_together: float
    """Lower end of the interval that holds with all others at once."""
    high_together: float
    """Its upper end."""
    moved_by_record: float | None
    """Of a count: one bad owner of b records moves it by at most b times this."""
    low_without_bad: float | None = None
    """Least that the value may be, with the same noise, without what bad owners added,
    whatever it was; null where none are supposed, or where no bound is known."""
    high_without_bad: float | None = None
    """Most that it may be."""


class Answered(BaseModel, frozen=True, use_attribute_docstrings=True):
    """What `precad ask answer --json` prints (docs/answers.schema.json)."""

    task: str
    """The task's digest."""
    counted: dict[str, int]
    """How many records, or units, of each owner both servers counted."""
    queries: tuple[Query, ...]
    """What was asked; of each what it says itself."""
    answers: list[Answer]
    """In the queries' order."""
