"""docs/papers: each table is the committed results', each figure is there; what takes how long.

After new results: ``python tests/unit/test_papers_documents.py`` writes the tables anew.
"""

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from precad.experiments.study import EXPERIMENTS, Scale, Table
from precad.experiments.study.kept import Kept

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "papers"
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
EXPERIMENTS_PAGE = ROOT / "docs" / "experiments.md"
TIMES = re.compile(r"^<!-- minutes at the small scale -->\n((?:\|.*\n)*)", re.MULTILINE)
TABLE = re.compile(r"^<!-- table of ([\w-]+)-(small|paper) -->\n((?:\|.*\n)*)", re.MULTILINE)


def markdown(name: str, scale: str) -> str:
    one, size = EXPERIMENTS[name], Scale(scale)
    results = Kept(RESULTS, name, size).of(one.all_cells(size))
    return one.table(results).markdown() + "\n"


def minutes() -> str:
    """Of all small results: what they are trained on, how many cells, how long one process took."""
    rows = []
    for path in sorted(RESULTS.glob("*-small.json")):
        name = path.stem.removesuffix("-small")
        every = EXPERIMENTS[name].all_cells(Scale.SMALL)
        results = Kept(RESULTS, name, Scale.SMALL).of(every)
        took = sum(result.seconds for result in results) / 60
        data = ", ".join(dict.fromkeys(each.get("data", "none") for each in every))
        shown = f"{took:.0f}" if took >= 1 else "under 1"
        cells = f"{len(results)} of {len(every)}" if len(results) < len(every) else str(len(every))
        rows.append([f"`{name}`", data, cells, shown])
    headings = ["experiment", "data", "cells", "minutes"]
    return Table(headings, rows).markdown() + "\n"


def test_what_the_small_scale_takes_is_stated_as_it_was_measured() -> None:
    found = TIMES.search(EXPERIMENTS_PAGE.read_text("utf-8"))
    assert found
    assert found[1] == minutes(), f"run python {Path(__file__).relative_to(ROOT)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_the_results(page: Path) -> None:
    found = TABLE.findall(page.read_text("utf-8"))
    assert found
    for name, scale, text in found:
        assert text == markdown(name, scale), f"run python {Path(__file__).relative_to(ROOT)}"


def test_every_result_is_on_a_page_with_its_figure() -> None:
    shown = {f"{n}-{s}" for page in PAGES for n, s, _ in TABLE.findall(page.read_text("utf-8"))}
    assert shown == {path.stem for path in RESULTS.glob("*.json")}
    assert {path.stem for path in RESULTS.glob("*.png")} == shown


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("path", sorted(RESULTS.glob("*-small.json")), ids=lambda path: path.stem)
def test_a_figure_of_a_single_cell_is_drawn_without_a_warning(path: Path) -> None:
    """As after `--only`, or in the middle of a run: the first and the last, which differ most."""
    name = path.stem.removesuffix("-small")
    results = Kept(RESULTS, name, Scale.SMALL).of(EXPERIMENTS[name].all_cells(Scale.SMALL))
    for one in (results[0], results[-1]):
        EXPERIMENTS[name].plot([one], Figure())


def test_attacks_are_drawn_though_nothing_is_measured_without_them() -> None:
    by = EXPERIMENTS["xie-fig4"]
    results = Kept(RESULTS, "xie-fig4", Scale.SMALL).of(by.all_cells(Scale.SMALL))
    figure = Figure()
    by.plot([each for each in results if each.settings["bad"] == 8], figure)
    assert [len(axes.lines) for axes in figure.axes] == [5, 4]


if __name__ == "__main__":
    for each in PAGES:
        text = each.read_text("utf-8")
        each.write_text(
            TABLE.sub(lambda m: f"<!-- table of {m[1]}-{m[2]} -->\n{markdown(m[1], m[2])}", text),
            "utf-8",
        )
    times = TIMES.sub(
        lambda _: f"<!-- minutes at the small scale -->\n{minutes()}",
        EXPERIMENTS_PAGE.read_text("utf-8"),
    )
    EXPERIMENTS_PAGE.write_text(times, "utf-8")
