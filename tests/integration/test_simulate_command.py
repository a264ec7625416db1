"""`precad simulate` as a person runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from precad.cli.main import app
from precad.experiments.data import load
from precad.experiments.defaults import demo_task
from precad.experiments.local.files import to_toml

ATTACK = """
def minus(updates, view):
    return view.encode(-3 * view.decode(updates))
"""


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    path.write_text(to_toml(demo_task(load("digits"), "logistic", 10, rounds=60)))
    return path


def test_a_thousand_clients_are_simulated_shown_saved_and_plotted(
    task: Path, tmp_path: Path
) -> None:
    plot, save = tmp_path / "run.png", tmp_path / "run.json"
    result = run(
        *(task, "--clients", 1000, "--rounds", 3, "--seed", 7),
        *("--plot", plot, "--save", save),
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "simulated round 3/3: accuracy" in said
    assert "simulated, not protected" in said
    assert "accepted 1000 of 1000" in said
    assert "a real run would have spent ε =" in said
    assert "seed 7, stacked path" in said
    assert plot.read_bytes().startswith(b"\x89PNG")
    saved = json.loads(save.read_text())
    assert saved["simulated"] is True
    assert [row["accepted"] for row in saved["history"]] == [1000] * 3


def test_json_is_the_summary_alone_and_repeats_with_its_seed(task: Path) -> None:
    first = run(task, "--rounds", 2, "--json")
    assert first.exit_code == 0, first.output
    document = json.loads(first.stdout)
    assert document["simulated"] is True
    again = json.loads(run(task, "--rounds", 2, "--json", "--seed", document["seed"]).stdout)
    for one in (document, again):
        for row in one["history"]:
            del row["seconds"]
    assert again == document


def test_an_attack_by_name_or_of_ones_own(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = json.loads(run(task, "--rounds", 2, "--attack", "wraparound", "--json").stdout)
    assert [row["norm-exceeded"] for row in named["history"]] == [1, 1]
    (tmp_path / "mine_to_try.py").write_text(ATTACK)
    monkeypatch.chdir(tmp_path)
    result = run(task, "--rounds", 2, "--attack", "mine_to_try:minus", "--attackers", 3, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["attackers"] == 3


def test_a_real_owners_code_can_be_asked_for(task: Path) -> None:
    document = json.loads(run(task, "--rounds", 1, "--per-client", "--json").stdout)
    assert document["path"] == "per-client"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--attack", "rain"), "attack = 'rain': use one of flip, wraparound"),
        (("--attack", "nowhere:rain"), "give MODULE:NAME"),
        (("--dataset", "chess"), "dataset = 'chess': use one of digits"),
        (("--dataset", "mnist"), "name the folder that holds mnist"),
        (("--clients", "5000"), "to as many as records"),
        (("--plot", "x.gif"), "give a file that ends with .png"),
        (("--save", "no/such/run.json"), "there is no such folder"),
        (("--attackers", "2"), "say what they do"),
        (("--model", "nowhere:Net"), "give MODULE:NAME"),
        (("--device", "abacus"), "device = 'abacus'"),
    ],
)
def test_refusals_say_what_would_do(task: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run(task, *arguments)
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("precad: ")]
    assert len(lines) == 1
    assert said in lines[0]
