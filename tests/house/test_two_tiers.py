"""Two tiers: which tests `make test` runs, and how `make soak` divides the others into parts."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.soak import run
from tests.soak.parts import DEFAULT_S, PARTS, Part, split

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


def test_every_folder_with_tests_is_in_one_of_the_tiers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    first = settings["ini_options"]["testpaths"]
    folders = {path.relative_to(ROOT).parts[:2] for path in TESTS.rglob("test_*.py")}
    assert sorted([*first, "tests/soak"]) == sorted("/".join(folder) for folder in folders)


def test_parts_have_every_test_once_and_take_about_equally_long() -> None:
    seconds = {f"test-{number}": float(number) for number in range(1, 60)}
    units = [[test] for test in seconds] + [["together-1", "together-2"], ["unknown"]]
    parts = split(units, seconds, PARTS)
    assert len(parts) == PARTS
    assert sorted(test for part in parts for test in part) == sorted(
        test for unit in units for test in unit
    )
    assert any({"together-1", "together-2"} <= part for part in parts)
    long = [sum(seconds.get(test, DEFAULT_S) for test in part) for part in parts]
    assert max(long) - min(long) <= 59
    # Not by the order in which they are found.
    assert split(units[::-1], seconds, PARTS) == parts


@pytest.mark.parametrize("words", ["0/20", "21/20", "7", "seven/20", "7/20 "])
def test_what_is_no_part_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="part"):
        Part.parse(words)
    assert str(Part.parse("7/20")) == "7/20"


def test_twenty_commits_in_a_row_have_every_part() -> None:
    turns = [run.turn("ab", str(count), shallow=False) for count in range(852, 872)]
    assert {each.number for each in turns} == set(range(1, PARTS + 1))
    # Where history is cut the count means nothing; without git there is neither.
    assert run.turn("ab", "1", shallow=True) == Part(0xAB % PARTS + 1)
    assert run.turn("", "", shallow=True) == Part(1)


TESTS_OF_A_PART = """
import pytest
@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    assert number != 2
"""


def test_pytest_runs_the_tests_of_the_part_and_tells_of_each(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS_OF_A_PART, encoding="utf-8")
    ended, failed, seen = [], [], []
    for part in ("1/2", "2/2"):
        outcomes = tmp_path / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-p", "tests.soak.selection", str(tmp_path)]
        command += [f"--part={part}", f"--seconds={outcomes}"]
        ended.append(subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode)
        found = json.loads(outcomes.read_text("utf-8"))
        failed += found["failed"]
        seen += found["seconds_by_test"]
    assert sorted(ended) == [0, 1]
    assert failed == ["test_some.py::test_alone[2]"]
    assert sorted(seen) == [f"test_some.py::test_alone[{number}]" for number in range(4)]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that were run, in place of running them; part 3 fails, part 9 is broken off."""
    parts: list[str] = []
    breaks = [9]

    def run_part(part: Part, _: list[str]) -> dict[str, Any]:
        parts.append(str(part))
        if part.number in breaks:
            breaks.clear()
            raise KeyboardInterrupt
        return {
            "part": str(part),
            "commit": run.commit(),
            "passed": part.number != 3,
            "seconds_by_test": {f"test_some.py::test[{part.number}]": 2.0 * part.number},
        }

    monkeypatch.setattr(run, "run", run_part)
    monkeypatch.setattr(run, "commit", lambda: "first")
    return parts


def test_a_run_that_is_broken_off_goes_on_there_and_a_failure_stays_one(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "results" / "soak.json"
    monkeypatch.setattr(sys, "argv", ["run", "--output", str(output)])
    with pytest.raises(KeyboardInterrupt):
        run.main()
    assert run.main() == 1
    assert ran == [f"{n}/20" for n in (*range(1, 10), *range(9, 21))]
    # All are done; the failed one isn't tried until it passes.
    ran.clear()
    assert run.main() == 1
    assert ran == []
    # Another commit has all parts anew.
    monkeypatch.setattr(run, "commit", lambda: "second")
    assert run.main() == 1
    assert len(ran) == PARTS
    assert {each["commit"] for each in run.read(output).values()} == {"second"}
    monkeypatch.setattr(sys, "argv", ["run", "--output", str(output), "--part", "4/20"])
    assert run.main() == 0
    assert ran[PARTS:] == ["4/20"]


def test_what_was_measured_becomes_the_weights(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "soak.json"
    monkeypatch.setattr(run, "SECONDS", tmp_path / "seconds.json")
    for words in (["--part", "4/20"], ["--part", "2/20"], ["--weigh"]):
        monkeypatch.setattr(sys, "argv", ["run", "--output", str(output), *words])
        assert run.main() == 0
    assert ran == ["4/20", "2/20"]
    kept = json.loads((tmp_path / "seconds.json").read_text("utf-8"))
    assert kept == {"test_some.py::test[2]": 4.0, "test_some.py::test[4]": 8.0}
