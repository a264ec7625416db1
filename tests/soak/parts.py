"""Which soak tests belong to which part: parts that take about equally long, alike everywhere."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SECONDS = Path(__file__).with_name("seconds.json")
"""How long each test took when it was last weighed (``python -m tests.soak.run --weigh``)."""
PARTS = 20
DEFAULT_S = 30.0
"""For a test that was never weighed."""


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    of: int = PARTS

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(f"part {self.number}/{self.of}: there are parts 1 to {self.of}")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``7/20``. Raises ValueError where it's no part."""
        if not (found := re.fullmatch(r"(\d+)/(\d+)", text)):
            raise ValueError(f"part {text!r}: write it as 7/{PARTS}")
        return cls(int(found[1]), int(found[2]))


def split(tests: Sequence[str], seconds: Mapping[str, float], of: int) -> list[frozenset[str]]:
    """The tests of each part: the longest first, each to the part that has the least so far."""
    found: list[set[str]] = [set() for _ in range(of)]
    taken = [0.0] * of
    weighed = [(seconds.get(test, DEFAULT_S), test) for test in tests]
    for weight, test in sorted(weighed, key=lambda each: (-each[0], each[1])):
        least = taken.index(min(taken))
        found[least].add(test)
        taken[least] += weight
    return [frozenset(tests) for tests in found]
