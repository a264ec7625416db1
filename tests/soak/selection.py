"""``--part 7/20`` selects one of twenty parts, and each test's seconds are kept."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from tests.soak.parts import SECONDS, Part, split


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
