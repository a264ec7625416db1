"""How the package reads, in numbers that no change may worsen."""

import ast
from functools import cache
from pathlib import Path

import pytest
from benchmarks.readability import (
    PACKAGE,
    ROOT,
    Measures,
    Place,
    of_package,
    places,
)

MOST_TOKENS = 258_000
"""With everything that is planned; names, docstrings, types and line breaks cost none."""
MOST_TOKENS_A_LINE = 4.5
MOST_TOKENS_A_LINE_IN_A_FOLDER = 5.0
MOST_LINES_A_FILE = 600
MOST_IN_1000_LINES = {
    "tuple_assignments": 0.5,
    "walrus": 0.5,
    "any_types": 2.0,
    "long_lines": 0.5,
}
NONE_OF = (
    "splatted_tuples",
    "positional_dataclasses",
    "positional_functions",
    "undocumented",
    "long_undocumented",
)
CALLED_BY_OTHERS: dict[str, str] = {
    "_copies": "torch.func.vmap",
    "sample": "a simulation, whatever sampler it was given",
}
"""Functions that others call by position, and who does."""


@cache
def measured() -> dict[str, Measures]:
    """By folder, and in all. Not when tests are collected: all workers do that."""
    return of_package(ROOT)


def test_the_package_keeps_its_size_and_has_room_on_the_page() -> None:
    folders = measured()
    whole = folders["in all"]
    assert whole.tokens <= MOST_TOKENS
    assert whole.density <= MOST_TOKENS_A_LINE
    dense = {
        folder: round(folders[folder].density, 2)
        for folder in PACKAGE
        if folders[folder].density > MOST_TOKENS_A_LINE_IN_A_FOLDER
    }
    assert dense == {}


@pytest.mark.parametrize("kind", MOST_IN_1000_LINES)
def test_what_is_dense_stays_rare(kind: str) -> None:
    whole = measured()["in all"]
    assert 1000 * getattr(whole, kind) / whole.lines <= MOST_IN_1000_LINES[kind]


def modules() -> list[Path]:
    return [
        path
        for folder in PACKAGE
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "_pb2" not in path.name
    ]


@cache
def places_by_module() -> dict[Path, list[Place]]:
    return {
        path: list(places(ast.parse(path.read_text("utf-8")))) for path in modules()
    }


@pytest.mark.parametrize("kind", NONE_OF)
def test_what_hides_a_meaning_is_nowhere(kind: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{place.line}: {place.name}"
        for path, seen in places_by_module().items()
        for place in seen
        if place.kind == kind and place.name not in CALLED_BY_OTHERS
    ]
    assert found == []


def test_a_file_is_one_idea_and_no_longer_than_one() -> None:
    lengths = {
        str(path.relative_to(ROOT)): path.read_text("utf-8").count("\n")
        for path in modules()
    }
    assert {p: n for p, n in lengths.items() if n > MOST_LINES_A_FILE} == {}


def test_the_measures_see_what_they_are_for() -> None:
    source = """
from dataclasses import dataclass
from typing import Any


@dataclass
class Packed:
    a: int
    b: int
    c: int
    d: int


def packed(x: int, y: int, z: int, more: Any) -> int:
    given = x, y
    a, b = x, y
    if (c := max(*given)) > 1:
        return c
    return a + b + z
"""
    kinds = {place.kind for place in places(ast.parse(source))}
    assert kinds == {
        "splatted_tuples",
        "tuple_assignments",
        "walrus",
        "any_types",
        "positional_dataclasses",
        "positional_functions",
        "undocumented",
    }
