"""The order in which tests begin loses none, and knows the files that it names."""

import pytest
from tests.rig.order import AWAITING, COMPUTING, in_pieces
from tests.rig.pages import ROOT


def test_the_files_that_it_names_are_there_and_once() -> None:
    named = AWAITING + COMPUTING
    assert [each for each in named if not (ROOT / "tests" / each).exists()] == []
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("pieces", [1, 2, 3, 5, 17])
def test_every_test_begins_once_and_files_stay_whole(pieces: int) -> None:
    quick = [f"common/test_{number}.py" for number in range(40)]
    files = {
        file: [f"{file}::{number}" for number in range(1 + len(file) % 7)]
        for file in sorted([*quick, *AWAITING, *COMPUTING])
    }
    ordered = in_pieces(files, pieces)
    assert sorted(ordered) == sorted(test for own in files.values() for test in own)
    for file in AWAITING + COMPUTING:
        first = ordered.index(files[file][0])
        assert ordered[first : first + len(files[file])] == files[file]


def test_of_three_pieces_the_first_begins_with_what_waits() -> None:
    quick = {f"common/test_{number}.py": [f"quick {number}"] for number in range(99)}
    files = quick | {each: [each] for each in AWAITING + COMPUTING}
    ordered = in_pieces(files, 3)
    size = len(ordered) // 3
    assert ordered[: len(AWAITING)] == list(AWAITING)
    assert ordered[size] == COMPUTING[0]
    assert COMPUTING[1] in ordered[2 * size : 2 * size + 2]


def test_some_files_alone_are_ordered_too() -> None:
    one, another = COMPUTING[0], "common/test_quick.py"
    assert in_pieces({another: ["a", "b"], one: ["c"]}, 1) == ["c", "a", "b"]
    assert in_pieces({}, 3) == []
