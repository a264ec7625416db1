"""docs/when-it-pays-off.md and the README say what the committed results say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", ROOT / "docs" / "when-it-pays-off.md"]


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def shown(share: float) -> str:
    return f"{100 * share:.1f} %"


def expected(data: str, owners: int) -> list[str]:
    """Of one trusted server, precad and local DP; empty where it wasn't trained."""
    ways = result("pays_off")[data]["ways"]
    found = {(way["noise_by"], way["owners"]): way for way in ways}
    named = (found.get((way, owners)) for way in ("one", "two", "local"))
    return ["" if way is None else shown(way["accuracy"]) for way in named]


def rows(page: Path) -> list[list[str]]:
    lines = re.findall(r"^\|(.*)\|$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_the_results(page: Path) -> None:
    found = 0
    for row in rows(page):
        head = " ".join(row[:-3])
        sizes = re.search(r"(digits|MNIST)\b.*?([\d,]+) × ([\d,]+)$", head)
        if sizes:
            owners = int(sizes[2].replace(",", ""))
            assert row[-3:] == expected(sizes[1].lower(), owners)
            found += 1
    assert found == (2 if page.name == "README.md" else 5)


def test_the_settings_are_the_results() -> None:
    text = PAGES[1].read_text(encoding="utf-8")
    for name, rounds, seeds in (("digits", "60 rounds, three", 3), ("mnist", "40 rounds, one", 1)):
        made = result("pays_off")[name]
        assert (made["epsilon"], made["delta"]) == (3.0, 1e-5)
        assert f"{made['rounds']} rounds" in rounds
        assert rounds in " ".join(text.split())
        assert {len(seen) for way in made["ways"] for seen in way["tried"].values()} == {seeds}
        assert made["hardware"]["cpu"]


def test_the_fixed_features_are_the_results() -> None:
    text, made = PAGES[1].read_text(encoding="utf-8"), result("fixed_features")
    assert (made["data"], made["epsilon"], made["record_rate"]) == ("mnist", 3.0, 0.05)
    assert made["models"]
    for model in made["models"].values():
        row = (f"{model['weights']:,}", str(model["rounds"]), shown(model["accuracy"]))
        assert f"| {' | '.join(row)} |" in text
    assert made["hardware"]["cpu"]


def test_the_table_of_scattering_is_the_results() -> None:
    """Means over seeds, to a hundredth: each arm's row is there, and no other."""
    made = result("utility")
    assert (made["epsilon"], made["delta"]) == (3.0, 1e-5)
    section = PAGES[1].read_text(encoding="utf-8").split("### Wavelet scattering")[1]
    told = re.findall(r"\| (\d) \| ([\d.]+) % \|$", section, flags=re.MULTILINE)
    arms: dict[str, list[float]] = {}
    for run in made["runs"]:
        assert run["epsilon"] is None or run["epsilon"] <= made["epsilon"]
        kind = {key: run.get(key) for key in ("arm", "owners", "momentum")}
        arms.setdefault(str(kind), []).append(run["accuracy"])
    means = [(str(len(found)), f"{100 * sum(found) / len(found):.2f}") for found in arms.values()]
    assert sorted(told) == sorted(means)
