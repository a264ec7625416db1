"""`precad simulate` as a person runs it; the page's code; and that the demo's settings train."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.rig import commands
from tests.rig.tasks import RECIPE

import precad
from precad.cli.local_deployment import to_toml
from precad.client.records.read_records import read_records
from precad.common.task import Task
from precad.simulation import SimulatedTraining
from precad.simulation.datasets import demo_task, load, shards

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"
ATTACK = """
def minus(updates, view):
    return view.encode(-3 * view.decode(updates))
"""


run = partial(commands.precad, "simulate")
document = partial(commands.document, "simulate")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    path.write_text(to_toml(demo_task(load("digits"), "logistic", 10, rounds=60)))
    return path


def test_a_thousand_clients_are_simulated_saved_and_plotted(task: Path, tmp_path: Path) -> None:
    plot, save = tmp_path / "run.png", tmp_path / "run.json"
    out = ("--plot", plot, "--save", save)
    result = run(task, "--clients", 1000, "--rounds", 3, "--seed", 7, *out)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for words in (
        *("simulated round 3/3: accuracy", "simulated, not protected", "accepted 1000 of 1000"),
        *("a real run would have spent ε =", "seed 7, stacked path"),
    ):
        assert words in said
    # A clip that no owner reaches is warned of.
    warning = "client_clip = 20 arms attackers alone: an owner of 2 records can sample 2"
    assert warning in result.stderr
    assert "arms attackers" not in run(task, "--clients", 10, "--rounds", 1).stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    saved = json.loads(save.read_text())
    assert saved["simulated"] is True
    assert [row["accepted"] for row in saved["history"]] == [1000] * 3


def test_json_is_the_summary_alone_and_repeats_with_its_seed(task: Path) -> None:
    first = document(task, "--rounds", 2)
    assert first["simulated"] is True
    again = document(task, "--rounds", 2, "--seed", first["seed"])
    for row in (*first["history"], *again["history"]):
        del row["seconds"]
    assert again == first


def test_an_attack_by_name_or_of_ones_own_and_a_real_owners_code(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = document(task, "--rounds", 2, "--attack", "wraparound", "--per-client")
    assert [row["norm-exceeded"] for row in named["history"]] == [1, 1]
    assert named["path"] == "per-client"
    (tmp_path / "mine_to_try.py").write_text(ATTACK)
    monkeypatch.chdir(tmp_path)
    own = document(task, "--rounds", 2, "--attack", "mine_to_try:minus", "--attackers", 3)
    assert own["attackers"] == 3


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
        (("--data", "north.csv"), "north.csv': there is no such file"),
        (("--data", "north.csv", "--dataset", "digits"), "give either owners' files, or --dataset"),
        (("--loss", "nowhere:loss"), "give MODULE:NAME"),
        (("--try", "speed=1,2"), "a name of learning_rate, rounds"),
        (("--try", "rounds=many"), "give NAME=NUMBER"),
        (("--try", "rounds=1,2", "--rounds", "3"), "--try says it: leave one of them out"),
        (("--try", "rounds=0,1"), "training.rounds = 0"),
    ],
)
def test_refusals_say_what_would_do(task: Path, arguments: tuple[str, ...], said: str) -> None:
    told = commands.refused("simulate", task, *arguments).splitlines()
    (line,) = (line for line in told if line.startswith("precad: "))
    assert said in line


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three clinics' tables, one that is held out, and a task for them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "columns.toml").write_text(RECIPE)
    rng = np.random.default_rng(1)
    for name in ("north", "south", "west", "test"):
        age = rng.normal(60, 20, 80)
        died = np.where(age + rng.normal(0, 2, 80) > 60, "yes", "no")
        rows = [f"{a:.1f},A,{d}" for a, d in zip(age, died, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,ward,died", *rows, ""]))
    made = ["task", "new", "task.toml", "--recipe", "columns.toml", "--records", "3x80"]
    commands.said(*made, "--architecture", "logistic", "--epsilon", "8", "--rounds", "20")
    return tmp_path


@pytest.mark.usefixtures("hospital")
def test_owners_files_are_simulated_on_and_one_is_dealt_out() -> None:
    files = [part for name in ("north", "south", "west") for part in ("--data", f"{name}.csv")]
    result = run("task.toml", *files, "--held-out", "test.csv", "--seed", 1, "--json")
    assert result.exit_code == 0, result.output
    assert "no account counts that" in result.stderr
    found = json.loads(result.stdout)
    assert (found["clients"], found["history"][0]["cohort"]) == (3, 3)
    assert found["accuracy"] > 0.8
    dealt = run("task.toml", "--data", "north.csv", "--public", "--clients", 8, "--json")
    assert "no account" not in dealt.stderr
    found = json.loads(dealt.stdout)
    assert (found["clients"], found["accuracy"]) == (8, None)


def test_python_takes_what_an_owner_has(hospital: Path) -> None:
    """Paths, frames, columns and arrays of the same table give the same weights."""
    task, held_out = Task.load(hospital / "task.toml"), hospital / "test.csv"
    files = [str(hospital / f"{name}.csv") for name in ("north", "south", "west")]
    frames = [pd.read_csv(file, dtype=str) for file in files]
    # The names of owners that come in a list: samples differ by name.
    columns = {f"client-{n}": frame.to_dict("list") for n, frame in enumerate(frames, start=1)}
    arrays = [read_records(Path(file), task.data) for file in files]
    found = [
        precad.simulate(task, data, seed=3, rounds=4, test=held_out)
        for data in (files, frames, columns, arrays)
    ]
    assert len({(each.theta.tobytes(), each.accuracy) for each in found}) == 1
    alone = precad.simulate(task, columns["client-1"], seed=3, rounds=1, clients=2)
    assert alone.task.enrolment.clients == 2


def test_settings_are_compared_on_public_records_alone(hospital: Path) -> None:
    wanted = ["task.toml", "--data", "north.csv", "--held-out", "test.csv"]
    tried = ["--try", "learning_rate=.01,1", "--try", "noise_multiplier=1,9", "--seed", 4]
    assert "--public" in commands.refused("simulate", *wanted, *tried)
    result = document(*wanted, *tried, "--public", "--save", "tried.json")
    rows = result["tried"]
    pairs = [(row["learning_rate"], row["noise_multiplier"]) for row in rows]
    assert pairs == [(0.01, 1), (0.01, 9), (1, 1), (1, 9)]
    assert rows[0]["epsilon"] > rows[1]["epsilon"] == rows[3]["epsilon"]
    assert rows[2]["loss"] < rows[0]["loss"]
    assert json.loads((hospital / "tried.json").read_text()) == result
    shown = run(*wanted, *tried, "--public").stdout
    for words in ("learning_rate", "ε server", "simulated, not protected"):
        assert words in shown


def test_the_pages_code_runs_and_shows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    training, attacked, compared = (names[n] for n in ("training", "attacked", "compared"))
    for found in (training, attacked, compared):
        assert (type(found), len(found.rounds)) == (SimulatedTraining, 10)
    # The attack stays within the bound, counts, and costs accuracy.
    assert not any(each.rejected for each in attacked.rounds)
    assert attacked.accuracy < training.accuracy - 0.05
    said = capsys.readouterr().out
    assert "simulated training of digits-logistic: 20 clients, 10 rounds" in said
    assert "with three bad clients" in said
    assert (tmp_path / "training.png").stat().st_size > 10_000
    saved = json.loads((tmp_path / "training.json").read_text())
    assert saved["format"].startswith("precad-simulation")


CLIENTS = 10


@pytest.mark.parametrize(
    ("name", "model", "least"), [("digits", "logistic", 0.90), ("breast-cancer", "mlp", 0.92)]
)
def test_the_demos_settings_train(name: str, model: str, least: float) -> None:
    data = load(name)
    task = Task.parse(demo_task(data, model, CLIENTS))
    parts = shards(data.train_y, CLIENTS, 4, seed=1)
    owners = [(data.train_x[part], data.train_y[part]) for part in parts]
    found = precad.simulate(task, owners, seed=0, test=(data.test_x, data.test_y))
    assert (found.accuracy or 0) >= least
