"""The task: a description whose numbers fit together.

All headroom rules of the ring (soundness of validation, exactness of sums, discreteness of the
noise) are checked when a task is made, so that no round can meet them.
"""

import math
from functools import cached_property
from typing import Self

from pydantic import model_validator

from precad.common import headroom
from precad.common.description import Description, ObjectiveSection


class Task(Description):
    """A training that data owners, two servers and a dealer agree on."""

    @cached_property
    def bound(self) -> int:
        """β = floor(C·2^f): the client bound in units of the last place."""
        # Exact, and no float that could overflow.
        numerator, denominator = self.privacy.client_clip.as_integer_ratio()
        return (numerator << self.fractional_bits) // denominator

    @cached_property
    def effective_record_clip(self) -> float:
        """R' = R + √d·2^−f + C·2^−18: the record's sensitivity with the rounding in it."""
        clips = self.privacy.record_clip, self.privacy.client_clip
        return headroom.effective_record_clip(*clips, self.dimension, self.fractional_bits)

    @cached_property
    def noise_units(self) -> float:
        """Standard deviation of one server's noise in units of the last place: σ·R'·2^f."""
        units = math.ldexp(self.effective_record_clip, self.fractional_bits)
        return self.privacy.noise_multiplier * units

    @cached_property
    def sensitivity_ratio(self) -> float:
        """R'/C: a record's sensitivity over a client's."""
        return self.effective_record_clip / self.privacy.client_clip

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """What no field decides alone; each error says what would fit."""
        if not headroom.suffices(self):
            from precad.common import fitting  # noqa: PLC0415

            raise fitting.refusal(self)
        return self


def with_objective(task: Task, objective: ObjectiveSection | str) -> Task:
    """The same task with another record objective, by its name or in full.

    Raises:
        Misconfiguration: there is none of this name.
    """
    section = {"name": objective} if isinstance(objective, str) else objective.model_dump()
    values = task.model_dump(mode="json", exclude={"objective"})
    return Task.parse(values | {"objective": section})
