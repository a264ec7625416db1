"""A measured figure on a page comes from a committed result, or says where it is from.

A figure here is a number with a unit of time, memory, share or speed; a table with two decimals
has some. It stands in a block that
docs/generate.py writes, in a phrase that tests/house/test_document_numbers.py has from the code, or
below a mark in the page's source:

    <!-- figures: certify_votes certified.*.seconds_in_all; mean load rounds.2.round_s -->

names results (benchmarks/results) and places in them: each figure of what follows is one of those
values, converted and rounded as it is shown. ``<!-- stated: KIND -->`` says which of ``KINDS`` the
figures of what follows are. A mark before a heading is for its whole section.
"""

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from tests.house.test_document_numbers import PHRASES
from tests.house.test_documents import ROOT

RESULTS = ROOT / "benchmarks/results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
KINDS = {
    "setting": "a deadline, limit or share that the code or a task sets",
    "formula": "what follows from numbers on the page",
    "output": "what a command prints, of which another test plays the command",
    "papers": "of the papers' experiments: benchmarks/results/papers, by python -m research run",
    "printed": "what somebody else's paper or program says",
}
"""Kinds of figures without a result of their own; ``stated: script PATH`` names what makes one."""
UNITS = {
    **dict.fromkeys(("%", "points"), 100.0),
    "times as": 1.0,
    "s": 1.0,
    "ms": 1e3,
    "minutes": 1 / 60,
    "hours": 1 / 3600,
    **dict.fromkeys(("kB", "KB"), 1e-3),
    "KiB": 2**-10,
    "MiB": 2**-20,
    "MB": 1e-6,
    "GB": 1e-9,
}
"""Units, and what seconds, bytes, shares and ratios are multiplied by for them."""
BASES = {"mib": 2.0**20, "mb": 1e6, "ms": 1e-3, "percent": 0.01}
"""Of a result's numbers, by a word in their names; all others are seconds, bytes or shares."""
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?|\.\d+)"
FIGURE = re.compile(
    rf"(?<![\w.,^√−-])((?:{NUMBER}(?:,? (?:to|and|or) |, ))*)({NUMBER})\s?({'|'.join(UNITS)})(?!\w)"
)
DECIMAL = re.compile(r"(?<![\w.,^=·`])(?:\d+\.\d+|\.\d+)(?![\w.`])")
MARK = re.compile(r"<!-- (figures|stated): (.*?) -->\n?", re.DOTALL)
WRITTEN = re.compile(
    r"```.*?```|<!-- generated: .*?<!-- end -->|<!-- \S+ writes this -->.*?<!-- to here -->",
    re.DOTALL,
)
"""Blocks of code, and what a script writes."""
MOST_PLACES = 60
"""Of one mark: among more values any figure finds itself by chance."""


def figures(text: str) -> list[tuple[str, str]]:
    """(number, unit) of each measured figure; of "2 to 7 s" both."""
    found = []
    for before, number, unit in FIGURE.findall(re.sub(r"`[^`\n]*`", "", text)):
        if unit == "points" and "," in number:
            continue  # of a test set
        found += [(each, unit) for each in re.findall(NUMBER, before)] + [(number, unit)]
    head, *rows = text.splitlines()
    if (column := head.split("|")[1:2]) and column[0].strip() in UNITS:
        cells = [cell for row in rows for cell in row.split("|")[2:]]
        found += [(each, column[0].strip()) for cell in cells for each in re.findall(NUMBER, cell)]
    return found


def blocks(page: Path) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Each paragraph or table of a page, with the mark that it stands under."""
    of_section: tuple[int, tuple[str, str]] | None = None
    pending: tuple[str, str] | None = None
    text = WRITTEN.sub("", page.read_text("utf-8"))
    for block in re.split(r"\n\s*\n", text):
        own = MARK.match(block.lstrip())
        mark = (own[1], own[2]) if own else pending
        rest = MARK.sub("", block).strip()
        pending = mark if not rest else None
        if not rest:
            continue
        if heading := re.match(r"(#+) ", rest):
            level = len(heading[1])
            if of_section is not None and level <= of_section[0]:
                of_section = None
            of_section = (level, mark) if mark else of_section
        yield rest, mark or (of_section[1] if of_section else None)


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    match value:
        case dict():
            for name, each in value.items():
                yield from leaves(each, f"{place}.{name}" if place else name)
        case list():
            for i, each in enumerate(value):
                yield from leaves(each, f"{place}.{i}")
        case int() | float():
            yield place, float(value)


def of_results(named: str) -> list[float]:
    """The values at the places of a mark, in seconds, bytes and shares; or their mean."""
    found = []
    for part in named.split(";"):
        *mean, name, places = part.strip().split(" ", part.strip().startswith("mean ") + 1)
        document = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        some = [
            value * BASES.get(next((w for w in re.split(r"[._]", at) if w in BASES), ""), 1.0)
            for at, value in leaves(document)
            if any(fnmatchcase(at, pattern.strip()) for pattern in places.split("|"))
        ]
        assert some, f"{name}.json has nothing at {places}"
        found += [sum(some) / len(some)] if mean else some
    assert len(found) <= MOST_PLACES, f"{named}: {len(found)} values; name the places"
    return found


def shows(number: str, unit: str, value: float) -> bool:
    """Whether a value, in a unit, is shown as this number: rounded to its last digit."""
    plain = number.replace(",", "")
    last = len(plain) - len(plain.rstrip("0")) if "." not in plain else -len(plain.split(".")[1])
    return abs(value * UNITS[unit] - float(plain)) <= 0.5001 * 10.0**last


def wrong_in(page: Path) -> list[str]:
    phrases = " ".join(PHRASES.get(str(page).removeprefix(f"{ROOT}/"), []))
    found = []
    for block, mark in blocks(page):
        shown = [each for each in figures(block) if " ".join(each) not in phrases]
        many = block.startswith("|") and len(DECIMAL.findall(block)) > 1
        if not shown and not many:
            continue
        kind, named = mark or ("", "")
        if kind == "figures":
            values = of_results(named)
            found += [
                f"{number} {unit} isn't in {named}"
                for number, unit in shown
                if not any(shows(number, unit, value) for value in values)
            ]
        elif kind == "stated":
            one, _, path = named.partition(" ")
            if not (one in KINDS or (one == "script" and path and (ROOT / path).exists())):
                found.append(f"stated: {named} is no kind")
        else:
            few = [" ".join(each) for each in shown] or DECIMAL.findall(block)[:2]
            found.append(f"from nowhere: {', '.join(few)}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_measured_figure_is_a_results_or_says_where_it_is_from(page: Path) -> None:
    assert wrong_in(page) == []
