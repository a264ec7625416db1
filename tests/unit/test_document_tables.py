"""Tables and figures in documents are those of the committed results.

After new results: ``python tests/unit/test_document_tables.py`` writes docs/papers' tables anew.
"""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from benchmarks.rounds.document import FORMAT
from benchmarks.rounds.show import as_text
from research.study import EXPERIMENTS, Scale, Table
from research.study.kept import Kept
from tests.rig import noise_run

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAPERS = RESULTS / "papers"
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
EXPERIMENTS_PAGE = ROOT / "docs" / "experiments.md"
TIMES = re.compile(r"^<!-- minutes at the small scale -->\n((?:\|.*\n)*)", re.MULTILINE)
TABLE = re.compile(r"^<!-- table of ([\w-]+)-(small|paper) -->\n((?:\|.*\n)*)", re.MULTILINE)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def markdown(name: str, scale: str) -> str:
    one, size = EXPERIMENTS[name], Scale(scale)
    results = Kept(PAPERS, name, size).of(one.all_cells(size))
    return one.table(results).markdown() + "\n"


def papers_tables() -> list[tuple[str, str, str]]:
    """Name, scale and text of each in docs/papers."""
    return [each for page in PAGES for each in TABLE.findall(page.read_text("utf-8"))]


def require_papers_tables(scale: str) -> None:
    some = {name: text for name, of, text in papers_tables() if of == scale}
    assert some
    for name, text in some.items():
        assert text == markdown(name, scale), f"run python {Path(__file__).relative_to(ROOT)}"


def minutes() -> str:
    """Of all small results: what they are trained on, how many cells, how long one process took."""
    rows = []
    for path in sorted(PAPERS.glob("*-small.json")):
        name = path.stem.removesuffix("-small")
        every = EXPERIMENTS[name].all_cells(Scale.SMALL)
        results = Kept(PAPERS, name, Scale.SMALL).of(every)
        took = sum(result.seconds for result in results) / 60
        data = ", ".join(dict.fromkeys(each.get("data", "none") for each in every))
        shown = f"{took:.0f}" if took >= 1 else "under 1"
        cells = f"{len(results)} of {len(every)}" if len(results) < len(every) else str(len(every))
        rows.append([f"`{name}`", data, cells, shown])
    return Table(["experiment", "data", "cells", "minutes"], rows).markdown() + "\n"


def test_what_the_small_scale_takes_is_stated_as_it_was_measured() -> None:
    found = TIMES.search(EXPERIMENTS_PAGE.read_text("utf-8"))
    assert found
    assert found[1] == minutes(), f"run python {Path(__file__).relative_to(ROOT)}"


def test_the_papers_tables_are_the_results_and_each_has_its_figure() -> None:
    """Of the small scale; tests/soak/test_experiments.py has the other."""
    require_papers_tables("small")
    shown = {f"{name}-{scale}" for name, scale, _ in papers_tables()}
    assert shown == {path.stem for path in PAPERS.glob("*.json")}
    assert shown == {path.stem for path in PAPERS.glob("*.png")}


def test_the_benchmarks_tables_are_those_of_their_documents() -> None:
    bench = result("bench")
    assert (bench["format"], bench["complete"]) == (FORMAT, True)
    assert (RESULTS / "bench.txt").read_text(encoding="utf-8") == as_text(bench)
    # ``PYTHONPATH=. python benchmarks/checks.py --page`` writes them anew.
    checks = runpy.run_path(str(ROOT / "benchmarks" / "checks.py"))
    assert checks["tables"](result("checks")) in text_of("docs/cheating-server.md")


def test_a_submission_takes_at_most_64_bytes_between_the_servers_besides_its_body() -> None:
    checks = runpy.run_path(str(ROOT / "benchmarks" / "checks.py"))
    assert 0 < checks["between_servers"](result("checks"), "fss") <= 64


@pytest.mark.parametrize(("page", "rows"), [("README.md", 2), ("docs/when-it-pays-off.md", 5)])
def test_the_accuracies_of_the_three_ways_are_the_results(page: str, rows: int) -> None:
    """Of one trusted server, precad and local DP; empty where it wasn't trained."""
    measured, found = result("pays_off"), 0
    for line in re.findall(r"^\|(.*)\|$", text_of(page), flags=re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        sizes = re.search(r"(digits|MNIST)\b.*?([\d,]+) × ([\d,]+)$", " ".join(cells[:-3]))
        if sizes:
            owners = int(sizes[2].replace(",", ""))
            ways = measured[sizes[1].lower()]["ways"]
            shares = {w["noise_by"]: w["accuracy"] for w in ways if w["owners"] == owners}
            shown = {by: f"{100 * share:.1f} %" for by, share in shares.items()}
            assert cells[-3:] == [shown.get(by, "") for by in ("one", "two", "local")]
            found += 1
    assert found == rows


def test_the_sizes_of_an_install_are_those_that_were_measured() -> None:
    measured, said = result("install")["pythons"]["3.11.7"], text_of("docs/install.md")
    for name in ("client", "server", "plan", "simulation", "demo"):
        assert f"| `{name}` | {measured[name]['mb']:,.0f} |" in said
    assert f"an owner's part adds {measured['client beside torch']['mb']:.0f} MB" in said


def test_the_noises_figures_are_of_a_whole_run_that_fits() -> None:
    judged = result("noise_fit")["judged"]
    assert [each["deviation"] for each in judged] == list(noise_run.DEVIATIONS)
    assert all(each["fits"] and each["samples"] == 10**8 for each in judged)


def test_the_ceremonys_pictures_are_what_the_script_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "pictures" / "draw_ceremony.py"))["pictures"]()
    assert len(drawn) == 3
    for name, text in drawn.items():
        assert text_of(f"docs/pictures/{name}") == text
        assert f"(pictures/{name})" in text_of("docs/ceremony.md")


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
