"""``--part 7/20``: one of parts that take about equally long; each test's seconds are kept."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

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


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak")
    # Words and no objects: pytest-xdist hands them to its workers.
    group.addoption("--part", help="of the soak's tests only those of part 7/20")
    group.addoption("--seconds", help="file for what became of each soak test")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--seconds")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)))


def name_of(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--part") is None:
        return
    part = Part.parse(config.getoption("--part"))
    weights = json.loads(SECONDS.read_text(encoding="utf-8"))
    chosen = split(list(map(name_of, items)), weights, part.of)[part.number - 1]
    others = [item for item in items if name_of(item) not in chosen]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if name_of(item) in chosen]


class Outcomes:
    """Each test's outcome and seconds, written when all have ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._ended: dict[str, set[str]] = {"failed": set(), "skipped": set(), "passed": set()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = report.nodeid.partition("::")
        name = f"{Path(file).name}::{test}"
        self._seconds[name] += report.duration
        self._ended[report.outcome].add(name)

    def pytest_sessionfinish(self) -> None:
        failed, skipped = (sorted(self._ended[what]) for what in ("failed", "skipped"))
        seconds = {test: round(s, 1) for test, s in sorted(self._seconds.items())}
        found = {"failed": failed, "skipped": skipped, "seconds_by_test": seconds}
        self._path.write_text(json.dumps(found), encoding="utf-8")
