"""Faults of a simulated training: what there are, and those that are ordered at a named step."""

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What can go wrong at a step."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CUT = "cut"
    """The servers' link breaks, and both notice."""
    SILENCE = "silence"
    """The servers' link swallows everything from now on."""
    DEALER = "dealer restarts"
    DISK = "disk fails"
    """A write to a server's database fails: it stops, and is started again."""
    DELAY = "delay"
    JUMP = "clock jump"
    """This party's monotonic clock leaps, as after a suspended machine."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault that is ordered: at the next time that a party comes to a step."""

    party: str
    fault: Fault
    step: str

    @classmethod
    def parse(cls, text: str) -> "Strike":
        """From ``"server-a crash after: store.attempts.prepare"``."""
        who, _, step = text.partition(": ")
        party, _, fault = who.partition(" ")
        return cls(party, Fault(fault), step)

    def __str__(self) -> str:
        return f"{self.party} {self.fault.value}: {self.step}"


class Orders:
    """Lines of faults that belong together; a line is in force when the last one is over.

    A party's strikes fall in their order, those of different parties independently. Once all have
    fallen, and a version was opened after that, the next line is in force. Where a version is
    opened before all have fallen, what they wait for didn't come of it this time (the other server
    was quicker, say): then the whole line is in force again, ``MOST_TRIES`` times.
    """

    MOST_TRIES = 12

    def __init__(self, lines: Sequence[str]) -> None:
        self._waiting = deque([Strike.parse(text) for text in line.split(", ")] for line in lines)
        self._whole: list[Strike] = []
        self._line: list[Strike] = []
        self._begin_next()

    @property
    def open(self) -> list[str]:
        """What hasn't fallen yet."""
        return [str(strike) for line in (self._line, *self._waiting) for strike in line]

    def version_opened(self) -> None:
        """A server has opened a version, or the same one again."""
        if not self._line:
            self._begin_next()
        elif self._tries < self.MOST_TRIES:
            self._tries += len(self._line) < len(self._whole)
            self._line = list(self._whole)

    def _begin_next(self) -> None:
        self._tries = 0
        self._whole = self._waiting.popleft() if self._waiting else []
        self._line = list(self._whole)

    def due(self, party: str, step: str) -> Fault | None:
        """The fault that is ordered here, if any; it is struck off."""
        strike = next((each for each in self._line if each.party == party), None)
        if strike is None or strike.step != step:
            return None
        self._line.remove(strike)
        return strike.fault


WEIGHTS = {
    Fault.CRASH_BEFORE: 4,
    Fault.CRASH_AFTER: 4,
    Fault.CUT: 1,
    Fault.SILENCE: 1,
    Fault.DEALER: 1,
    Fault.DISK: 12,
    Fault.DELAY: 1,
    Fault.JUMP: 1,
}


def by_chance(of: str) -> float:
    """From 0 to 1, the same each time for the same text; a hundred times as quick as ``Random``."""
    return int.from_bytes(hashlib.blake2b(of.encode(), digest_size=6).digest()) / 2**48
