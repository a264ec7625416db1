"""What one round of a system took."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.rounds.meter import Reading
from benchmarks.rounds.part import Message
from precad.common.errors import PeerViolation

FIRST_MODEL = "the first owner has the model"
LAST_MODEL = "the last owner has the model"
RECEIVED = "the last upload's receipt"
OVER = "all have heard that the round is over"
MEAN = "the server has the mean"
"""Moments of a round, as pictures name them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one system, in seconds."""

    wall_s: Mapping[str, float]
    """By phase and part."""
    cpu_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By phase, then by process."""
    lines: Mapping[str, list[int]] = field(default_factory=dict)
    """What the round sent by link, in bytes by stretch of ``lines.SHOWN_S`` from its
    beginning; empty where nobody counts."""
    moments: Mapping[str, float] = field(default_factory=dict)
    """Seconds from the round's beginning to what happened in it, in order."""


class System(Protocol):
    """A system that is set up and plays a round when it is told."""

    name: str
    processes: dict[str, int]
    """Process identifiers by name."""

    def play(self) -> Sample:
        """One round, checked.

        Raises:
            PeerViolation: a wrong result.
            PeerUnavailable: a process ended.
        """

    def facts(self) -> dict[str, Any]:
        """What a round moves; asked once, after the last round."""


def between(start: Reading, end: Reading) -> Reading:
    """Wall and processor time from ``start`` to ``end``."""
    return Reading(
        end.at_s - start.at_s,
        {name: end.cpu_s[name] - start.cpu_s[name] for name in end.cpu_s},
    )


def require_right(system: str, answer: Message) -> None:
    """Refuse to measure what doesn't work. Raises PeerViolation."""
    if answer.get("right") is not True:
        raise PeerViolation(f"{system} gave a wrong result: nothing of this run counts")
