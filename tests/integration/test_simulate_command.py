"""`precad simulate` as a person runs it; the page's code; that the demo's settings
train; and that what is simulated is `run_round`'s, bit for bit: samples and noise alone
are given to both.
"""

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest
from examples.demo.demo_task import demo_task
from numpy.typing import NDArray
from tests.rig import commands, rounds, tasks
from tests.rig.documents import Document

import precad
from precad.accounting.guarantees import cap_of
from precad.aggregator.noise import NoiseSource
from precad.cli.local_deployment import to_toml
from precad.cli.setting_search import rows_of, settings_of
from precad.client.participation import RoundView
from precad.client.records.read_records import read_records
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.model import initial_vector, model_digest, to_bytes
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task
from precad.simulation import SimulatedRound, SimulatedTraining, View
from precad.simulation import rounds as drawing
from precad.simulation.datasets import load, shards
from precad.simulation.search import Trial

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"
run = partial(commands.precad, "simulate")
document = partial(commands.document, "simulate")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    path.write_text(to_toml(demo_task(load("digits"), "logistic", 10, rounds=60)))
    return path


def test_a_thousand_clients_are_simulated_saved_and_plotted(
    task: Path, tmp_path: Path
) -> None:
    plot, save = tmp_path / "run.png", tmp_path / "run.json"
    out = ("--plot", plot, "--save", save)
    result = run(task, "--clients", 1000, "--rounds", 3, "--seed", 7, *out)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for words in (
        *(
            "simulated round 3/3: accepted 1000 of 1000, loss",
            "simulated, not protected",
            "accepted 1000 of 1000",
        ),
        *("a real run would have spent ε =", "seed 7, stacked path"),
    ):
        assert words in said
    # A clip that no owner reaches is warned of.
    assert (
        "client_clip = 20 arms attackers alone: an owner of 2 records" in result.stderr
    )
    assert "arms attackers" not in run(task, "--clients", 10, "--rounds", 1).stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    saved = json.loads(save.read_text())
    assert saved["simulated"] is True
    assert [row["accepted"] for row in saved["history"]] == [1000] * 3


def test_named_and_own_attacks(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = ("--rounds", 2, "--attack", "wraparound", "--per-client")
    named = document(task, *attack)
    found = (
        named["path"],
        named["simulated"],
        *(row["norm-exceeded"] for row in named["history"]),
    )
    assert found == ("per-client", True, 1, 1)
    # It repeats with its seed.
    again = document(task, *attack, "--seed", named["seed"])
    assert [row["loss"] for row in again["history"]] == [
        row["loss"] for row in named["history"]
    ]
    (tmp_path / "mine_to_try.py").write_text(
        "def minus(updates, view):\n    return view.encode(-3 * view.decode(updates))\n"
    )
    monkeypatch.chdir(tmp_path)
    own = document(
        task, "--rounds", 2, "--attack", "mine_to_try:minus", "--attackers", 3
    )
    assert own["attackers"] == 3


def test_refusals_say_what_would_do(task: Path) -> None:
    for arguments, said in (
        ("--attack rain", "attack = 'rain': use one of flip, wraparound"),
        ("--dataset mnist", "use one of digits, breast-cancer, or give files"),
        ("--plot x.gif", "give a file that ends with .png"),
        ("--save no/such/run.json", "there is no such folder"),
        ("--data north.csv", "north.csv': there is no such file"),
        (
            "--data north.csv --dataset digits",
            "give either owners' files, by --data, or it",
        ),
        ("--loss nowhere:loss", "give MODULE:NAME"),
        ("--try speed=1,2", "a name of learning_rate, rounds"),
        ("--try rounds=10,99.5", "--try rounds = '99.5': isn't a whole number: give"),
        ("--try learning_rate=.1,abc", "--try learning_rate = 'abc': isn't a number"),
        ("--try rounds=1,2 --rounds 3", "--try says it: leave one of them out"),
        ("--seeds 3", "goes with --try alone"),
        ("--measure auc", "goes with --try alone"),
        (
            "--try rounds=1,2 --seeds 1 --measure r2",
            "have accuracy, balanced accuracy, loss: give one of them",
        ),
        ("--write x.toml", "goes with --try alone"),
        ("--try rounds=1,2 --write no/x.toml", "there is no such folder"),
        ("--try client_clip=2 --rounds 2 --write x.toml", "give --try rounds=NUMBER"),
    ):
        told = commands.refused("simulate", task, *arguments.split()).splitlines()
        assert [said in line for line in told if line.startswith("precad: ")] == [True]


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "columns.toml").write_text(tasks.RECIPE)
    rng = np.random.default_rng(1)
    for name in ("north", "south", "west", "test"):
        age = rng.normal(60, 20, 80)
        died = np.where(age + rng.normal(0, 2, 80) > 60, "yes", "no")
        rows = [f"{a:.1f},A,{d}" for a, d in zip(age, died, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,ward,died", *rows, ""]))
    made = ["task", "new", "task.toml", "--recipe", "columns.toml", "--records", "3x80"]
    commands.said(
        *made, "--architecture", "logistic", "--epsilon", "8", "--rounds", "20"
    )
    return tmp_path


@pytest.mark.usefixtures("hospital")
def test_owners_files_are_simulated_on_and_one_is_dealt_out() -> None:
    files = [
        part
        for name in ("north", "south", "west")
        for part in ("--data", f"{name}.csv")
    ]
    result = run("task.toml", *files, "--held-out", "test.csv", "--seed", 1, "--json")
    assert result.exit_code == 0, result.output
    assert "no account counts that" in result.stderr
    found = json.loads(result.stdout)
    assert (found["clients"], found["history"][0]["cohort"]) == (3, 3)
    assert found["accuracy"] > 0.8
    dealt = run(
        "task.toml", "--data", "north.csv", "--public", "--clients", 8, "--json"
    )
    assert "no account" not in dealt.stderr
    found = json.loads(dealt.stdout)
    assert (found["clients"], found["accuracy"]) == (8, None)


def test_python_takes_what_an_owner_has(hospital: Path) -> None:
    """Paths, frames, columns and arrays of the same table give the same weights."""
    task, held_out = Task.load(hospital / "task.toml"), hospital / "test.csv"
    files = [str(hospital / f"{name}.csv") for name in ("north", "south", "west")]
    frames = [pd.read_csv(file, dtype=str) for file in files]
    # The names of owners that come in a list: samples differ by name.
    columns = {
        f"client-{n}": frame.to_dict("list") for n, frame in enumerate(frames, start=1)
    }
    arrays = [read_records(Path(file), task.data) for file in files]
    simulated = partial(precad.simulate, task, seed=3, test=held_out)
    found = [simulated(data, rounds=4) for data in (files, frames, columns, arrays)]
    assert len({(each.theta.tobytes(), each.accuracy) for each in found}) == 1
    assert (
        simulated(columns["client-1"], rounds=1, clients=2).task.enrolment.clients == 2
    )


def test_settings_are_compared_on_public_records_alone(hospital: Path) -> None:
    wanted = ["task.toml", "--data", "north.csv", "--held-out", "test.csv"]
    tried = ["--try", "learning_rate=.01,1", "--try", "noise_multiplier=1,9"]
    assert "--public" in commands.refused("simulate", *wanted, *tried)
    wanted += ["--public", *tried, "--seed", "4", "--seeds", "3"]
    result = document(*wanted, "--save", "tried.json", "--plot", "tried.png")
    own, *rows = result["tried"]
    pairs = [(row["learning_rate"], row["noise_multiplier"]) for row in rows]
    assert pairs == [(0.01, 1), (0.01, 9), (1, 1), (1, 9)]
    task = Task.load(hospital / "task.toml")
    assert own["learning_rate"] == task.training.learning_rate
    assert own["epsilon"] == pytest.approx(8, rel=0.01)
    assert rows[0]["epsilon"] > rows[1]["epsilon"] == rows[3]["epsilon"]
    assert rows[2]["loss"] < rows[0]["loss"]
    assert (result["seeds"], rows[3]["error"] > 0) == ([4, 5, 6], True)
    assert json.loads((hospital / "tried.json").read_text()) == result
    assert (hospital / "tried.png").stat().st_size > 5_000
    shown = run(*wanted, "--write", "best.toml").stdout
    few = "3 seeds say little of what ties"
    for words in ("learning_rate", "ε server", "simulated, not", "task's own", few):
        assert words in shown
    best = Task.load(hospital / "best.toml")
    assert str(best.digest) in shown
    for field, section in (
        ("learning_rate", "training"),
        ("noise_multiplier", "privacy"),
    ):
        assert best.model_dump()[section][field] == result["taken"][field]
    again = commands.refused("simulate", *wanted, "--write", "best.toml")
    assert "exists already" in again


@pytest.mark.usefixtures("hospital")
def test_an_attack_is_tried_by_whole_simulations() -> None:
    wanted = ["task.toml", "--data", "north.csv", "--held-out", "test.csv", "--public"]
    attacked = ["--attack", "flip", "--clients", 4, "--rounds", 3]
    result = document(*wanted, *attacked, "--try", "client_clip=2,9", "--seeds", 2)
    _, narrow, wide = result["tried"]
    assert narrow["loss"] != wide["loss"]


@pytest.mark.usefixtures("hospital")
def test_settings_are_compared_by_the_measure_that_fits_and_the_answer_says_it() -> (
    None
):
    wanted = [
        "--data",
        "north.csv",
        "--held-out",
        "test.csv",
        "--public",
        "--clients",
        3,
    ]
    tried = [*wanted, "--try", "learning_rate=.1,1", "--seeds", 2, "--seed", 1]
    usual = document("task.toml", *tried)
    named = {"accuracy", "AUC", "sensitivity", "specificity", "Brier score", "loss"}
    assert usual["measure"] == "accuracy"
    assert named < usual["tried"][0].keys()
    by_brier = ("--measure", "brier-score", "--plot", "tried.svg")
    shown = run("task.toml", *tried, *by_brier).stdout
    assert "compared by Brier score, lower is better" in shown
    headings = "Brier score ± error accuracy AUC sens. spec. ε server"
    assert headings in " ".join(shown.split())
    assert "Brier score" in Path("tried.svg").read_text()
    best = document("task.toml", *tried, "--measure", "brier-score")
    values = {row["learning_rate"]: row["Brier score"] for row in best["tried"]}
    assert best["tried"][0]["behind"] >= 0
    ahead = min(best["tried"], key=lambda row: row["behind"])
    assert ahead["Brier score"] == min(values.values())
    recipe = ("--recipe", "columns.toml", "--records", "3x80", "--epsilon", "8")
    made = (*recipe, "--architecture", "logistic", "--rounds", "20")
    commands.said("task", "new", "weighed.toml", *made, "--balance", "no=.9,yes=.1")
    assert document("weighed.toml", *tried)["measure"] == "AUC"


@pytest.mark.usefixtures("hospital")
def test_settings_of_a_regression_are_compared_by_r2_in_its_own_unit() -> None:
    Path("ages.toml").write_text(
        'target = { name = "age", centre = 60, scale = 20 }\n'
        'columns = [{ name = "died", kind = "categorical", levels = ["no", "yes"] }]\n'
    )
    recipe = ("--recipe", "ages.toml", "--records", "3x80", "--epsilon", "8")
    made = (*recipe, "--architecture", "logistic", "--rounds", "20")
    commands.said("task", "new", "age.toml", *made)
    files = [
        "--data",
        "north.csv",
        "--held-out",
        "test.csv",
        "--public",
        "--clients",
        3,
    ]
    tried = [*files, "--try", "learning_rate=.1,.5", "--seeds", 2]
    told = run("age.toml", *tried, "--save", "tried.json").stdout
    assert "compared by R²" in told
    found = json.loads(Path("tried.json").read_text())
    assert found["measure"] == "R²"
    short = document("age.toml", *tried, "--measure", "rmse")
    assert short["measure"] == "root mean squared error"
    for row in found["tried"]:
        assert row["mean absolute error"] > 5
        assert row["root mean squared error"] >= row["mean absolute error"]


@pytest.mark.usefixtures("hospital")
def test_an_impossible_setting_is_a_row_with_its_reason_and_the_others_go_on() -> None:
    files = [
        "--data",
        "north.csv",
        "--held-out",
        "test.csv",
        "--public",
        "--clients",
        3,
    ]
    wanted = ["task.toml", *files, "--seeds", 2]
    tried = [*wanted, "--try", "client_clip=0,9", "--save", "tried.json"]
    result = run(*tried, "--plot", "tried.png")
    assert result.exit_code == 0, result.output
    shown = result.stdout
    assert "impossible: privacy.client_clip" in shown
    _, other, refused = json.loads(Path("tried.json").read_text())["tried"]
    assert (refused["client_clip"], "greater than 0" in refused["refused"]) == (0, True)
    assert (other["client_clip"], other["accuracy"] > 0.5) == (9, True)
    # Owners of the same sizes take part at each rate; some steps lead to no number.
    rates = document(*wanted, "--try", "record_rate=1e-9,.5,2")["tried"]
    assert ["refused" in row for row in rates] == [False, False, False, True]
    by_steps = (*wanted, "--try", "learning_rate=.5,1e300")
    _, usual, endless = document(*by_steps)["tried"]
    assert (usual["accuracy"] > 0.5, endless["accuracy"]) == (True, None)
    assert "no finite number" in run(*by_steps).stdout
    digits = ("--dataset", "digits", "--try", "learning_rate=.5")
    assert "give" in commands.refused("simulate", "task.toml", *digits)
    attacked = ["--attack", "flip", "--rounds", 2, "--try", "client_clip=0,9"]
    assert ["refused" in row for row in document(*wanted, *attacked)["tried"]] == [
        *(False, False, True)
    ]
    # Of none that can be, each has its row and its reason.
    own, *rest = document(*wanted, "--try", "client_clip=0,-1")["tried"]
    assert own["accuracy"] > 0.5
    assert [(row["client_clip"], "greater" in row["refused"]) for row in rest] == [
        (0, True),
        (-1, True),
    ]
    # A field that is named twice has all its values.
    twice = ("--try", "learning_rate=.05,.1", "--try", "learning_rate=.2")
    tried = document(*wanted, *twice)["tried"][1:]
    assert [row["learning_rate"] for row in tried] == [0.05, 0.1, 0.2]


def learnt(*by_seed: tuple[float, ...]) -> list[list[Trial]]:
    return [[Trial({"accuracy": a, "loss": 1 - a}, 3) for a in of] for of in by_seed]


def test_settings_compared_by_the_accuracy_of_a_rare_class_are_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of them found nobody, and nothing said so."""
    monkeypatch.chdir(tmp_path)
    for name, rare in (("rare", 4), ("even", 40)):
        x = np.arange(80, dtype=np.float32)[:, None] / 80
        y = (np.arange(80) >= 80 - rare).astype(np.int64)
        np.savez(f"{name}.npz", x=x, y=y)
        np.savez(f"{name}-test.npz", x=x + 0.001, y=y)
    made = ("--records", "2x40", "--epsilon", "8", "--rounds", "3")
    net = ("--architecture", "logistic", "--features", "1", "--classes", "2")
    commands.said("task", "new", "plain.toml", *made, *net)
    commands.said("task", "new", "weighed.toml", *made, *net, "--balance", ".95,.05")
    for task, table, more, asked in (
        ("plain", "rare", (), True),
        ("plain", "rare", ("--measure", "auc"), False),
        ("plain", "even", (), False),
        ("weighed", "rare", (), False),
    ):
        records = ("--data", f"{table}.npz", "--held-out", f"{table}-test.npz")
        tried = ("--public", "--clients", 2, "--seeds", 1, "--try", "learning_rate=1")
        told = commands.said("simulate", f"{task}.toml", *records, *tried, *more)
        assert ("accuracy says little here: class 1 is 0.05 of" in told) is asked, told
        for words in ("--measure", "sensitivity", "--balance"):
            assert (words in told) is asked


def test_a_tie_is_what_chance_explains_seed_by_seed(hospital: Path) -> None:
    """Settings that vary alike from seed to seed differ although their errors cover
    each other; one that is ahead by a single seed's luck doesn't."""
    task = Task.load(hospital / "task.toml")
    settings, _ = settings_of(task, ["learning_rate=.1,.2,.3"])
    trials = learnt(
        (0.80, 0.78, 0.700, 0.801),
        (0.90, 0.88, 0.901, 0.899),
        (0.70, 0.68, 0.702, 0.700),
    )
    for measure in ("accuracy", "loss"):
        _, rows = rows_of(settings, trials, measure)
        assert [row.ties for row in rows] == [True, False, True, True]
        assert rows[0].error == pytest.approx(0.1 / 3**0.5)
        assert rows[0].scores["accuracy"] == pytest.approx(0.8)


def test_a_setting_of_another_cost_is_trained_to_its_end(hospital: Path) -> None:
    """Under the task's own limit less noise would train for a few rounds, and seem to
    cost as much."""
    task = Task.load(hospital / "task.toml")
    limited = task.model_dump(mode="json")
    limited["privacy"]["epsilon_limit"] = 8.5
    own, dearer, other_step = (
        settings_of(Task.parse(limited), ["noise_multiplier=.25"])[0]
        + settings_of(Task.parse(limited), ["learning_rate=.1"])[0][1:]
    )
    assert own.task.privacy.epsilon_limit == 8.5
    assert (dearer.task.privacy.epsilon_limit or 0) > 8.5
    for setting in (own, dearer):
        assert cap_of(setting.task) >= setting.task.training.rounds
    assert other_step.task.privacy.epsilon_limit == 8.5


def test_the_pages_code_runs_and_shows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: Document = {}
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    [makes] = re.findall(
        r"^    precad (task new digits\.toml (?:\\\n|.)*)", text, re.MULTILINE
    )
    assert commands.precad(*makes.replace("\\\n", "").split()).exit_code == 0
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    training, attacked, compared, local = (
        names[n] for n in ("training", "attacked", "compared", "local")
    )
    for found in (training, attacked, compared, local):
        assert (type(found), len(found.rounds)) == (SimulatedTraining, 20)
    # The attack stays within the bound, counts, and costs accuracy.
    assert not any(each.rejected for each in attacked.rounds)
    assert attacked.accuracy < training.accuracy - 0.05
    said = capsys.readouterr().out
    assert "simulated training of digits: 20 clients, 20 rounds" in said
    assert "with three bad clients" in said
    assert "of an owner against one curious server" in said
    assert (tmp_path / "training.png").stat().st_size > 10_000
    saved = json.loads((tmp_path / "training.json").read_text())
    assert saved["format"].startswith("precad-simulation")


@pytest.mark.parametrize(
    ("name", "model", "least"),
    [("digits", "logistic", 0.90), ("breast-cancer", "mlp", 0.92)],
)
def test_the_demos_settings_train(name: str, model: str, least: float) -> None:
    data = load(name)
    parts = shards(data.train_y, clients=10, shards_per_client=4, seed=1)
    owners = [(data.train_x[part], data.train_y[part]) for part in parts]
    task, test = Task.parse(demo_task(data, model, 10)), (data.test_x, data.test_y)
    assert (precad.simulate(task, owners, seed=0, test=test).accuracy or 0) >= least


OWNERS, ROUNDS, SEED = 6, 12, 4
BAD, AWAY = ("owner-4", "owner-5"), ("owner-1", "owner-2")


def absent(version: int, drawn: tuple[str, ...]) -> list[str]:
    """One of them in three rounds of four, both in every fourth."""
    away = AWAY if version % 4 == 3 else AWAY[: version % 4 - 2] if version % 4 else ()
    return [name for name in away if name in drawn]


def attack(updates: NDArray[np.int64], view: View) -> NDArray[np.int64]:
    """What wraps to nothing, what is just too long, and now and then what counts."""
    submitted = -updates
    submitted[0] = 0
    submitted[0, 0] = 2**32 if view.version % 2 else view.task.mechanism.bound + 1
    if view.version % 3 == 0:
        shape = updates[1:].shape
        submitted[1:] = view.generator.integers(-(2**63), 2**63, shape, dtype=np.int64)
    return submitted


def test_the_models_are_the_protocols_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = load("digits")
    parts = np.array_split(np.random.default_rng(SEED).permutation(300), OWNERS)
    owners = {
        f"owner-{n}": (data.train_x[part], data.train_y[part])
        for n, part in enumerate(parts)
    }
    task = Task.parse(demo_task(data, "mlp", OWNERS, rounds=ROUNDS))
    simulated: list[tuple[SimulatedRound, NDArray[np.float32]]] = []
    training = precad.simulate(
        task, owners, seed=SEED, path="per-client", attack=attack, attackers=BAD,
        absent=absent,
        on_round=lambda played, theta: simulated.append((played, theta)),
    )  # fmt: skip

    real = {name: tasks.data_owner(name, task, own) for name, own in owners.items()}
    names = {name: ClientId(name) for name in owners}
    rate = task.privacy.record_rate
    roster = Roster(
        {c: Enrolment(c, len(owners[name][1]), rate) for name, c in names.items()}
    )
    shared = drawing.Draws(task, SEED)
    theta = initial_vector(task.model)
    counted: Counter[Rejection] = Counter()

    def noise(version: int, role: Role) -> NoiseSource:
        """What both have: the server's own sampler on a stream that a seed repeats."""
        draw = partial(drawing.Draws(task, SEED).noise, role, version)
        return cast("NoiseSource", SimpleNamespace(draw=draw))

    for version, (played, after) in enumerate(simulated):
        updates = {}
        for name, owner in real.items():
            if name not in absent(version, tuple(owners)):
                with monkeypatch.context() as patch:
                    # The one thing of a real owner that no seed reaches.
                    sample = partial(shared.sample, version, name)
                    drawn = "precad.client.gradients.local_update.poisson_sample"
                    patch.setattr(
                        drawn, lambda count, rate, _, of=sample: of(count, rate)
                    )
                    updates[name] = owner.update(
                        RoundView(attempt=version, theta=theta, model=Digest(bytes(32)))
                    )
        bad = np.array([updates[name] for name in BAD])
        honest = np.array(
            [update for name, update in updates.items() if name not in BAD]
        )
        view = View(
            task=task,
            version=version,
            theta=theta.astype(np.float64),
            clients=BAD,
            bounds=(task.mechanism.bound,) * len(BAD),
            others=honest,
            generator=shared.generator(version),
        )
        updates |= dict(zip(BAD, attack(bad, view), strict=True))
        sent = {names[name]: update for name, update in updates.items()}
        given = {"roster": roster, "attempt": version, "noise": partial(noise, version)}
        a, b = rounds.play_round(task, sent, theta=theta, **given)
        assert to_bytes(after) == to_bytes(a.theta) == to_bytes(b.theta), version
        assert a.model == model_digest(
            task.digest, version + 1, task.model.parameters, after
        )
        reasons = Counter(a.rejections.values())
        rejected = {reason.value: count for reason, count in reasons.items()}
        assert (played.accepted, played.rejected) == (len(a.valid), rejected)
        counted += reasons
        theta = a.theta
    assert training.task.digest == task.digest
    assert len(simulated) == ROUNDS >= 10
    assert to_bytes(training.theta) == to_bytes(theta)
    # It was no training without incidents, nor one without valid updates of bad
    # clients.
    absences = counted.pop(Rejection.ABSENT)
    assert absences > ROUNDS // 2
    assert ROUNDS < counted.total() < 2 * ROUNDS
