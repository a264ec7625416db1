"""What was looked at, and what was found: one sentence each."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from precad.common.errors import PrecadError

Value = TypeVar("Value")


class Kind(Enum):
    """What follows from a finding."""

    GOOD = "good"
    NOTE = "note"
    """Nothing stops taking part, but it may not go as the owner thinks."""
    BAD = "bad"
    """Taking part would fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    """`data`, `server A`, …"""
    kind: Kind
    said: str
    """What is there; or what is wrong, and the remedy."""


class Findings(list[Finding]):
    """All of them, in the order in which they were made."""

    def attempt(self, about: str, make: Callable[[], Value]) -> Value | None:
        """What ``make`` gives; None, and a bad finding, where it raises one of our errors."""
        try:
            return make()
        except PrecadError as error:
            self.append(Finding(about, Kind.BAD, str(error)))
            return None

    def passes(self, about: str, check: Callable[[], object]) -> bool:
        """Whether ``check`` raises none of our errors; a bad finding where it does."""

        def passed() -> bool:
            check()
            return True

        return self.attempt(about, passed) is not None

    def good(self, about: str, said: str) -> None:
        """Nothing is wrong."""
        self.append(Finding(about, Kind.GOOD, said))

    def note(self, about: str, said: str) -> None:
        """Something to know."""
        self.append(Finding(about, Kind.NOTE, said))

    def bad(self, about: str, said: str) -> None:
        """Something to mend."""
        self.append(Finding(about, Kind.BAD, said))

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """What has to be mended."""
        return tuple(finding for finding in self if finding.kind is Kind.BAD)
