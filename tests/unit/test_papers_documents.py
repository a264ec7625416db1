"""docs/papers: each table is the committed results', each figure is there.

After new results: ``python tests/unit/test_papers_documents.py`` writes the tables anew.
"""

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from precad.experiments.study import EXPERIMENTS, Scale
from precad.experiments.study.kept import Kept

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "papers"
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
TABLE = re.compile(r"^<!-- table of ([\w-]+)-(small|paper) -->\n((?:\|.*\n)*)", re.MULTILINE)


def markdown(name: str, scale: str) -> str:
    one, size = EXPERIMENTS[name], Scale(scale)
    results = Kept(RESULTS, name, size).of(one.all_cells(size))
    return one.table(results).markdown() + "\n"


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


if __name__ == "__main__":
    for each in PAGES:
        text = each.read_text("utf-8")
        each.write_text(
            TABLE.sub(lambda m: f"<!-- table of {m[1]}-{m[2]} -->\n{markdown(m[1], m[2])}", text),
            "utf-8",
        )
