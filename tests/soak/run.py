"""The second tier, part by part: `make soak`.

    python -m tests.soak.run --output benchmarks/results/soak.json
    python -m tests.soak.run --part 7/20
    python -m tests.soak.run --part commit
    python -m tests.soak.run --weigh

Each part is a pytest run of its own with ``--part 7/20``: parts take about equally
long, by each test's seconds, which are kept. A part's result is written as soon as it
is there: a run that is broken off goes on with the parts that this commit hasn't had
yet. ``--part commit`` is the part whose turn it is: twenty commits in a row have all of
them. ``--weigh`` runs nothing; it keeps the seconds of the last run as weights.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.rounds.hardware import hardware

Document = dict[str, Any]  # Nothing of the package is loaded here
ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "benchmarks" / "results" / "soak.json"
SECONDS = Path(__file__).with_name(
    "seconds.json"
)  # How long each test took when last weighed
PARTS = 20
DEFAULT_S = 30.0  # For a test that was never weighed
NOTHING_COLLECTED = 5  # pytest's exit status; a part may be empty


def split(
    tests: Sequence[str], seconds: Mapping[str, float], of: int
) -> list[frozenset[str]]:
    """The tests of each part: the longest first, each to the part that has the least so
    far."""
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


def name_of(nodeid: str) -> str:
    file, _, test = nodeid.partition("::")
    return f"{Path(file).name}::{test}"


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if (part := config.getoption("--part")) is None:
        return
    number, of = map(int, part.split("/"))
    assert 1 <= number <= of, part
    names = [name_of(item.nodeid) for item in items]
    chosen = split(names, json.loads(SECONDS.read_text(encoding="utf-8")), of)[
        number - 1
    ]
    config.hook.pytest_deselected(
        items=[i for i in items if name_of(i.nodeid) not in chosen]
    )
    items[:] = [item for item in items if name_of(item.nodeid) in chosen]


class Outcomes:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._ended: dict[str, set[str]] = {
            "failed": set(),
            "skipped": set(),
            "passed": set(),
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[name_of(report.nodeid)] += report.duration
        self._ended[report.outcome].add(name_of(report.nodeid))

    def pytest_sessionfinish(self) -> None:
        found: Document = {
            what: sorted(self._ended[what]) for what in ("failed", "skipped")
        }
        found["seconds_by_test"] = {
            test: round(s, 1) for test, s in sorted(self._seconds.items())
        }
        self._path.write_text(json.dumps(found), encoding="utf-8")


def git(*words: str, at: Path = ROOT) -> str:
    done = subprocess.run(
        ["git", *words], cwd=at, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit, with a word when files differ from it."""
    changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return (git("rev-parse", "HEAD") or "unknown") + (
        " with changes" if changed else ""
    )


def turn(hash_: str, count: str, *, shallow: bool) -> int:
    """The part whose turn it is: by the commit's number, or by its name where history
    is cut."""
    return (int(hash_ or "0", 16) if shallow or not count else int(count)) % PARTS + 1


def run(part: str, words: list[str]) -> Document:
    began, spent = time.monotonic(), children_s()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        command = [
            *(sys.executable, "-m", "pytest", "tests/soak", f"--part={part}"),
            *(
                f"--seconds={outcomes}",
                "-n",
                str(os.cpu_count()),
                "--dist",
                "worksteal",
                *words,
            ),
        ]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        found: Document = {"failed": [], "skipped": [], "seconds_by_test": {}}
        if outcomes.exists():
            found = json.loads(outcomes.read_text(encoding="utf-8"))
    passed = status in {0, NOTHING_COLLECTED} and not found["failed"]
    made = {"part": part, "commit": commit(), "passed": passed}
    made |= {
        "tests": len(found["seconds_by_test"]),
        "seconds": round(time.monotonic() - began, 1),
    }
    made |= {"cpu_seconds": round(children_s() - spent, 1), "hardware": hardware()}
    return made | found


def children_s() -> float:
    """CPU seconds of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(path: Path) -> dict[str, Document]:
    if not path.exists():
        return {}
    return {
        each["part"]: each
        for each in json.loads(path.read_text(encoding="utf-8"))["parts"]
    }


def write(path: Path, document: Document, indent: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document, indent=indent) + "\n", encoding="utf-8")
    new.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--part", help=f"7/{PARTS}, or commit: the one whose turn it is"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument(
        "--weigh", action="store_true", help="run nothing, keep the seconds"
    )
    given, words = parser.parse_known_args()
    results = read(given.output)
    if given.weigh:
        tests = [
            test
            for each in results.values()
            for test in each["seconds_by_test"].items()
        ]
        # Shorter ones aren't told apart by their weights.
        write(
            SECONDS,
            {test: max(0.5, seconds) for test, seconds in sorted(dict(tests).items())},
        )
        return 0
    if given.part is None:
        now = commit()
        parts = [f"{number}/{PARTS}" for number in range(1, PARTS + 1)]
        # A result of a tree with changes says nothing of the tree as it is now.
        done = {
            name for name, each in results.items() if each["commit"] == now != "unknown"
        }
        wanted = [part for part in parts if part not in done or now.endswith("changes")]
    elif given.part == "commit":
        shallow = git("rev-parse", "--is-shallow-repository") != "false"
        count = git("rev-list", "--count", "HEAD")
        wanted = parts = [
            f"{turn(git('rev-parse', 'HEAD'), count, shallow=shallow)}/{PARTS}"
        ]
    else:
        wanted = parts = [given.part]
    for part in wanted:
        sys.stdout.write(f"::: soak, part {part}\n")
        sys.stdout.flush()
        results[part] = run(part, words)
        kept = sorted(
            results.values(), key=lambda each: int(each["part"].partition("/")[0])
        )
        what = "the soak tests' parts, each as it last ended"
        write(given.output, {"what": what, "parts": kept})
    failed = [part for part in parts if not results[part]["passed"]]
    sys.stdout.write(f"soak: failed parts: {', '.join(failed) or 'none'}\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
