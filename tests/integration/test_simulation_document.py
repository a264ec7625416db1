"""docs/simulate.md: its code runs as it stands, from the first block to the last."""

import re
from pathlib import Path
from typing import Any

import pytest

from precad.experiments.simulation import SimulatedTraining

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"
MOST_LINES = 10


def blocks() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_pages_code_runs_and_shows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert len(blocks()) == 3
    for block in blocks():
        exec(compile(block, str(PAGE), "exec"), names)
    training, attacked, compared = (names[n] for n in ("training", "attacked", "compared"))
    for found in (training, attacked, compared):
        assert isinstance(found, SimulatedTraining)
        assert len(found.rounds) == 10
    # The attack stays within the bound, counts, and costs accuracy.
    assert not any(each.rejected for each in attacked.rounds)
    assert attacked.accuracy < training.accuracy - 0.05
    said = capsys.readouterr().out
    assert "simulated training of digits-logistic: 20 clients, 10 rounds" in said
    assert "with three bad clients" in said
    assert (tmp_path / "training.png").stat().st_size > 10_000
    assert (tmp_path / "training.json").read_text().startswith('{\n "format": "precad-simulation')


def test_the_attack_takes_ten_lines() -> None:
    attack = next(block for block in blocks() if "def backwards" in block)
    assert len([line for line in attack.splitlines() if line.strip()]) <= MOST_LINES
