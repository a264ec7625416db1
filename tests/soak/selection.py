"""``--part 7/20`` selects one of twenty parts, and each test's seconds are kept."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from tests.soak.parts import Part, split, weights


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak")
    # Words and no objects: pytest-xdist hands them to its workers.
    group.addoption("--part", help="of the soak's tests only those of part 7/20")
    group.addoption("--seconds", help="file for what became of each soak test")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "together: this module's tests share a costly set-up and go to one part"
    )
    if (path := config.getoption("--seconds")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)))


def name_of(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--part") is None:
        return
    part = Part.parse(config.getoption("--part"))
    units: dict[str, list[str]] = defaultdict(list)
    for item in items:
        name = name_of(item)
        shared = item.get_closest_marker("together") is not None
        units[item.path.name if shared else name].append(name)
    chosen = split(list(units.values()), weights(), part.of)[part.number - 1]
    others = [item for item in items if name_of(item) not in chosen]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if name_of(item) in chosen]


class Outcomes:
    """Each test's outcome and seconds, written when all have ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: set[str] = set()
        self._skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = report.nodeid.partition("::")
        name = f"{Path(file).name}::{test}"
        self._seconds[name] += report.duration
        if report.failed:
            self._failed.add(name)
        elif report.skipped:
            self._skipped.add(name)

    def pytest_sessionfinish(self) -> None:
        found = {
            "failed": sorted(self._failed),
            "skipped": sorted(self._skipped),
            "seconds_by_test": {test: round(s, 1) for test, s in sorted(self._seconds.items())},
        }
        self._path.write_text(json.dumps(found), encoding="utf-8")
