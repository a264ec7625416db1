"""Which of an owner's records are one unit of the task's, such as a patient.

A unit is all records of this owner with one identifier. A sampled unit's part is the
mean over at most L of its records, drawn afresh each round, so that nobody weighs more
by having more records.
"""

from collections.abc import Sequence

import numpy as np

from precad.common import Integers, Keystream, Misconfiguration, Task


class Units:
    """The units of an owner's records, in the order in which they first appear.

    Args:
        identifiers: one for each record, as ``identifiers_of`` gives them.
    """

    def __init__(self, identifiers: Sequence[str]) -> None:
        places: dict[str, int] = {}
        codes = [places.setdefault(each, len(places)) for each in identifiers]
        self.of_record: Integers = np.array(codes, np.int64)
        """Each record's unit, ``[n]``."""
        self.sizes: Integers = np.bincount(self.of_record, minlength=len(places))
        """How many records each unit has, ``[units]``."""
        self.identifiers = tuple(places)
        """Each unit's identifier."""

    def __len__(self) -> int:
        """Return |D_i|, how many units there are."""
        return len(self.sizes)

    def draw(
        self,
        sampled: Integers,
        most: int,
        randomness: Keystream,
    ) -> tuple[Integers, Integers]:
        """Draw at most L = ``most`` records of each sampled unit, all sets alike likely.

        ``sampled`` are units, ``[k]``. What comes back are the drawn records, unit by
        unit, and how many of them each unit has, ``[k]``. 8 bytes of ``randomness`` go
        for each of the owner's records, whatever is drawn.
        """
        sizes = self.sizes
        words = randomness.words(len(self.of_record))
        # By unit, and within a unit at random.
        order = np.lexsort((words, self.of_record))
        starts = np.cumsum(sizes) - sizes
        ranks = np.arange(len(order)) - np.repeat(starts, sizes)
        is_sampled = np.zeros(len(self), np.bool_)
        is_sampled[sampled] = True
        drawn = order[(ranks < most) & np.repeat(is_sampled, sizes)]
        return drawn, np.minimum(sizes[is_sampled], most)


def require_known_units(task: Task, column: str | None, *, known: bool) -> None:
    """Refuse records where nothing says whose each is, though the task has a unit.

    And those of which something does, where it has none. ``column`` is what the owner's
    settings name. Raises Misconfiguration.
    """
    unit = task.mechanism.unit
    if known is (task.privacy.unit is not None):
        return
    raise Misconfiguration(
        "columns.unit",
        column,
        f"this task protects {unit.one} and has no privacy.unit: leave it out, and"
        " units beside the records too, or ask for a task that has one"
        if known
        else f"this task protects {unit.one} (privacy.unit): name the table's column"
        " that says whose each record is, or give such an array, units, beside x and y",
    )
