"""Two tiers: which tests `make test` runs, and how `make soak` divides the others into parts."""

import tomllib
from pathlib import Path

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
