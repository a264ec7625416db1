"""Questions on the real path: both checks of norms, the simulation's bits, processes."""

import csv
import html
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from examples.demo.local_processes import LocalDeployment
from tests.rig import commands, heads, tasks
from tests.rig.questions import QUERIES, SEX, Table, answered, asking, ward, write_csv
from tests.rig.rounds import no_noise, play_round
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import model_at, task_with
from tests.rig.waiting import DEADLINE_S
from tests.rig.warm import forked
from tests.rig.whole_owners import WITHOUT_NOISE, nothing

from precad.accounting.guarantees import planned_guarantees
from precad.cli.local_deployment import to_toml
from precad.client.account_file import ACCOUNT_FILE
from precad.client.check_before_enrolling import look_at_columns
from precad.client.own_account import OwnAccount
from precad.common.errors import Misconfiguration, Rejection
from precad.common.identifiers import ClientId
from precad.common.model import load_model, save_model
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task
from precad.common.terminal import upper
from precad.simulation import simulate

CHECKS = ("crypten", "proof")
SIZES = {"ward-1": 300, "ward-2": 170, "ward-3": 60}
WARDS = {name: ward(count, count) for name, count in SIZES.items()}
CLAIMS = {
    ClientId(name): Enrolment(ClientId(name), count, 1.0)
    for name, count in SIZES.items()
}

AGE = {"name": "age", "centre": 60, "scale": 20, "fill": 60}
MODEL = model_at(
    task_with(tasks.logistic(1) | {"data": {"columns": [AGE], "target": SEX}}),
    np.array([-0.5, 0.5, 0.1, -0.1], np.float32),
    version=1,
)
"""What says from somebody's age whether it is a man."""
EVALUATION = {
    "name": "how well",
    "kind": "evaluation",
    "column": "sex",
    "model": str(MODEL.digest),
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_round_sums_exactly_what_records_answer(check: str) -> None:
    task = asking(validation=check)
    sent = {
        ClientId(name): answered(task, each).total() for name, each in WARDS.items()
    }
    a, b = play_round(task, sent, roster=Roster(CLAIMS), noise=no_noise)
    assert a.valid == b.valid == tuple(sorted(sent))
    assert a.theta.dtype == np.float64
    assert (np.ldexp(a.theta, task.fractional_bits) == sum(sent.values())).all()
    assert a.model == b.model
    simulated = simulate(task, dict(WARDS), seed=1, noise=nothing)
    assert (simulated.theta == a.theta).all()


@pytest.mark.parametrize("check", CHECKS)
def test_an_owner_that_answers_for_more_records_than_it_has_doesnt_count(
    check: str,
) -> None:
    task = asking(validation=check)
    sent = {
        ClientId(name): answered(task, each).total() for name, each in WARDS.items()
    }
    most = task.mechanism.bound_of(CLAIMS[ClientId("ward-3")])
    sent[ClientId("ward-3")] = np.zeros(task.dimension, np.int64)
    sent[ClientId("ward-3")][0] = most + 1
    a, b = play_round(task, sent, roster=Roster(CLAIMS), noise=no_noise)
    assert a.rejections == {ClientId("ward-3"): Rejection.NORM_EXCEEDED}
    assert a.valid == b.valid == (ClientId("ward-1"), ClientId("ward-2"))


def test_a_simulation_repeats_and_deals_one_table(tmp_path: Path) -> None:
    task = asking()
    table = ward(200, 3)
    first, again = (simulate(task, [table], seed=4) for _ in range(2))
    assert (first.theta == again.theta).all()
    file = write_csv(tmp_path / "all.csv", table)
    dealt = simulate(task, file, clients=3, seed=4, noise=nothing)
    whole = simulate(task, [table], seed=4, noise=nothing)
    for name in ("model", "loss", "test"):
        with pytest.raises(Misconfiguration, match="nothing is trained"):
            simulate(task, [table], **{name: object()})  # type: ignore[arg-type]
    counts = [block for block in task.blocks if block.query.kind != "mean"]
    for block in counts:
        cells = slice(block.start, block.start + block.parameter.size)
        assert (dealt.theta[cells] == whole.theta[cells]).all()


def right(tables: Iterable[Table]) -> float:
    """Share of those below 64, whom the model takes for women, that are; and of men."""
    pairs = [
        pair
        for table in tables
        for pair in zip(table["age"], table["sex"], strict=True)
    ]
    known = [
        (sex == "f") == (age == "NA" or float(age) < 64)
        for age, sex in pairs
        if sex in ("f", "m")
    ]
    return sum(known) / len(known)


@pytest.mark.parametrize("check", CHECKS)
def test_processes_answer_with_the_simulations_bits(tmp_path: Path, check: str) -> None:
    asked_of_processes(tmp_path, check, WARDS)


def asking_deployment(
    folder: Path, task: Task, owners: Iterable[str]
) -> LocalDeployment:
    """Servers without noise, and owners whose settings await their tables."""
    none = np.zeros((1, 1), np.float32), np.zeros(1, np.int64)
    return LocalDeployment(
        folder,
        task,
        {ClientId(name): none for name in owners},
        instead=WITHOUT_NOISE,
        popen=forked,
    )


def asked_of_processes(tmp_path: Path, check: str, wards: Mapping[str, Table]) -> None:
    """Running servers and owners answer as a simulation does; some of it by hand."""
    deadlines = {"enrol": 300.0, "collect": 300.0, "peer": 120.0, "outage": 300.0}
    queries = [*QUERIES, EVALUATION]
    task = asking(queries, validation=check, deadlines=deadlines)
    MODEL.save(tmp_path / "trained.safetensors")
    training = tmp_path / "training.toml"
    training.write_text(task_to_toml(MODEL.task), encoding="utf-8")
    deployment = asking_deployment(tmp_path, task, wards)
    files = {
        name: write_csv(tmp_path / f"{name}.csv", table)
        for name, table in wards.items()
    }
    for name, file in files.items():
        settings = tmp_path / f"{name}.toml"
        text = settings.read_text(encoding="utf-8")
        text = text.replace(f"records/{name}.npz", file.name)
        evaluated = 'evaluated_model = "trained.safetensors"\n'
        evaluated += 'evaluated_task = "training.toml"\n'
        settings.write_text(evaluated + text, encoding="utf-8")
    with deployment:
        deployment.start_servers()
        deployment.start_clients()
        assert deployment.wait(tuple(files), DEADLINE_S) == dict.fromkeys(files, 0)
    path = tmp_path / "state" / "ward-2" / "model.safetensors"
    released = load_model(path, deployment.task)
    simulated = simulate(task, files, seed=1, noise=nothing, evaluated=MODEL)
    assert simulated.theta.any()
    assert (released.theta == simulated.theta).all()
    said = commands.document("ask", "answer", "--config", str(tmp_path / "ward-2.toml"))
    # Both servers signed whose records count.
    assert said["counted"] == {name: len(each["age"]) for name, each in wards.items()}
    (missing,) = (
        each["value"]
        for each in said["answers"]
        if (each["query"], each["of"]) == ("age", "missing")
    )
    assert missing == sum(table["age"].count("NA") for table in wards.values())
    (accuracy,) = (
        each["value"] for each in said["answers"] if each["of"] == "accuracy"
    )
    assert accuracy == pytest.approx(right(wards.values()))


def test_a_head_is_asked_for_and_evaluated_as_a_model(tmp_path: Path) -> None:
    """Real servers without noise, the simulation's bits, and the usual commands."""
    deadlines = {"enrol": 300.0, "collect": 300.0, "peer": 120.0, "outage": 300.0}
    names = ("ward-1", "ward-2", "ward-3")
    task = heads.task_of(deadlines=deadlines)
    deployment = asking_deployment(tmp_path, task, names)
    files = {}
    for place, name in enumerate(names):
        table = heads.table_of(*heads.drawn(300, place))
        files[name] = write_csv(tmp_path / f"{name}.csv", table)
        settings = tmp_path / f"{name}.toml"
        text = settings.read_text(encoding="utf-8")
        settings.write_text(
            text.replace(f"records/{name}.npz", f"{name}.csv"), encoding="utf-8"
        )
    with deployment:
        deployment.start_servers()
        deployment.start_clients()
        assert deployment.wait(names, DEADLINE_S) == dict.fromkeys(names, 0)
    path = tmp_path / "state" / "ward-2" / "model.safetensors"
    simulated = simulate(task, files, seed=1, noise=nothing)
    assert (load_model(path, deployment.task).theta == simulated.theta).all()
    held_out = write_csv(
        tmp_path / "held-out.csv", heads.table_of(*heads.drawn(500, 9))
    )
    config = ("--config", str(tmp_path / "ward-2.toml"))
    said = commands.document("evaluate", str(held_out), *config)
    (accuracy,) = (
        each["value"] for each in said["measures"] if each["name"] == "accuracy"
    )
    assert accuracy > 0.85
    predicted = commands.precad("predict", str(held_out), *config)
    assert predicted.output.startswith("record,class,probability_a")
    said = commands.precad("ask", "answer", *config)
    assert "precad predict and evaluate take this run" in said.output


def test_patients_answer_once_through_running_servers(tmp_path: Path) -> None:
    deadlines = {"enrol": 300.0, "collect": 300.0, "peer": 120.0, "outage": 300.0}
    task = asking(QUERIES[:2], {"unit": "patient"}, deadlines=deadlines)
    deployment = asking_deployment(tmp_path, task, WARDS)
    # Each patient has two stays, of which the first answers.
    for name, table in WARDS.items():
        again = {column: [*cells, *reversed(cells)] for column, cells in table.items()}
        count = SIZES[name]
        places = [*range(count), *reversed(range(count))]
        again["patient_id"] = [f"p{place}" for place in places]
        file = write_csv(tmp_path / f"{name}.csv", again)
        settings = tmp_path / f"{name}.toml"
        text = settings.read_text(encoding="utf-8")
        text = text.replace(f"records/{name}.npz", file.name)
        settings.write_text(
            text + '\n[columns]\nunit = "patient_id"\n', encoding="utf-8"
        )
    with deployment:
        deployment.start_servers()
        deployment.start_clients()
        assert deployment.wait(tuple(WARDS), DEADLINE_S) == dict.fromkeys(WARDS, 0)
    path = tmp_path / "state" / "ward-2" / "model.safetensors"
    released = load_model(path, deployment.task)
    alone = simulate(asking(QUERIES[:2]), dict(WARDS), seed=1, noise=nothing)
    assert (released.theta == alone.theta).all()
    answer = ["ask", "answer", "--config", tmp_path / "ward-2.toml"]
    assert commands.document(*answer)["counted"] == SIZES
    said = commands.said(*answer)
    assert "Over the patients of" in said
    assert "Of a patient it is the first record." in said
    answers = tmp_path / "answers.json"
    answers.write_text(commands.precad(*answer, "--json").output, encoding="utf-8")
    states = [tmp_path / "state" / server for server in ("server-a", "server-b")]
    report = tmp_path / "report.html"
    for given, words in (
        (("--results", answers), "over the patients of ward-1 (300), ward-2 (170)"),
        ((), "precad ask answer --json prints them"),
    ):
        done = commands.precad("report", *states, *given, "--out", report)
        assert done.exit_code == 0, done.output
        text = html.unescape(re.sub(r"<[^>]*>", "", report.read_text("utf-8")))
        assert words in text
        assert "answered a question together" in text
        assert not re.search("trained a model|How good the model|divided by", text)
    answers.write_text(json.dumps({**json.loads(answers.read_text()), "task": "0"}))
    wrong = commands.precad("report", *states, "--results", answers, "--out", report)
    assert (wrong.exit_code, "is of another run" in wrong.output) == (2, True)


def test_a_simulated_question_shows_its_answers(tmp_path: Path) -> None:
    task = asking([*QUERIES[:3], EVALUATION], {"noise_multiplier": 1.0})
    (tmp_path / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    MODEL.save(tmp_path / "trained.safetensors")
    training = tmp_path / "training.toml"
    training.write_text(task_to_toml(MODEL.task), encoding="utf-8")
    command: list[object] = [
        "simulate",
        tmp_path / "task.toml",
        "--public",
        "--seed",
        3,
    ]
    for name, table in WARDS.items():
        command += ["--data", write_csv(tmp_path / f"{name}.csv", table)]
    missing = commands.precad(*command)
    assert "evaluated_model" in missing.output
    command += ["--evaluated-model", tmp_path / "trained.safetensors"]
    said = commands.said(*command, "--evaluated-task", training)
    women = re.search(r"patients f +records +count +([\d,]+) ", said)
    assert women
    true = sum(table["sex"].count("f") for table in WARDS.values())
    assert int(women[1]) == pytest.approx(true, abs=30)
    assert "how well AUC" in said


MEAN = """
[[query]]
name = "age"
kind = "mean"
column = "age"
lower = 0
upper = 100
"""
ASKED = f"""
columns = [{{ name = "sex", kind = "categorical", levels = ["f", "m"] }}]

[[query]]
name = "patients"
kind = "count"
by = "sex"
{MEAN}"""


def test_an_owner_is_asked_about_a_level_that_none_of_its_records_has() -> None:
    def told(where: dict[str, str]) -> list[str]:
        task = asking([{"name": "x", "kind": "count", "where": where}])
        notes = answered(task, ward(50, 1)).notes
        return [each.text for each in look_at_columns(notes)]

    assert told({"sex": "f"}) == []
    (asked,) = told({"sex": "woman"})
    assert "42 of 50 have none of the task's levels (woman) but 'm', 'f'" in asked


@pytest.fixture
def asked(tmp_path: Path) -> list[object]:
    """`ask new` of a file of questions, without what is wished."""
    (tmp_path / "questions.toml").write_text(ASKED, encoding="utf-8")
    files = [tmp_path / "questions.toml", tmp_path / "task.toml"]
    return ["ask", "new", *files, "--owners", 3, "--most-records", 1025]


def test_the_error_is_known_beforehand(asked: list[object], tmp_path: Path) -> None:
    said = commands.said(*asked, "--epsilon", 1)
    assert "ε = 1 of a record at δ = 1e-06" in said
    task = Task.load(tmp_path / "task.toml")
    assert planned_guarantees(task)[0].epsilon <= 1
    # Two blocks alike: each has R/√2.
    error = 1.96 * math.sqrt(2) * task.privacy.noise_multiplier * math.sqrt(2)
    assert f"patients count {error:.3g} 1.41" in said
    # Of 3,075 records and no more.
    assert re.search(r"age mean 0\.[0-9]+", said)
    mu = 1 / task.privacy.noise_multiplier
    assert f"purse of an account's plan it takes μ = {upper(mu)}" in said
    checked = commands.said("ask", "check", tmp_path / "task.toml")
    assert str(task.digest) in checked
    shown = commands.said("task", "show", tmp_path / "task.toml")
    assert "1 to 3 owners answer, once, from all their records: patients, age." in shown


def test_a_table_is_checked_before_it_answers(
    asked: list[object], tmp_path: Path
) -> None:
    commands.said(*asked, "--epsilon", 1)
    check = ["ask", "check", tmp_path / "task.toml", "--data"]
    file = write_csv(tmp_path / "ward.csv", ward(50, 1))
    assert "ward.csv: 50 records answer" in commands.said(*check, file)
    marked = {
        name: [each or "n/a" for each in cells] for name, cells in ward(50, 1).items()
    }
    marked["age"][7] = "n/a"
    bad = write_csv(tmp_path / "bad.csv", marked)
    told = commands.precad(*check, bad).stderr
    assert f"record 7 (line 9 of {bad}) = 'n/a'" in told
    assert "list it in the task's missing where" in told
    questions = tmp_path / "questions.toml"
    marks = 'missing = ["", "NA", "n/a"]\n'
    questions.write_text(marks + ASKED, encoding="utf-8")
    (tmp_path / "task.toml").unlink()
    commands.said(*asked, "--epsilon", 1)
    assert "50 records answer" in commands.said(*check, bad)
    # Spelt otherwise than listed, nobody is counted: that is asked about before.
    spelt = {"sex": [each.upper() for each in ward(50, 1)["sex"]]}
    other = write_csv(tmp_path / "other.csv", ward(50, 1) | spelt)
    told = commands.said(*check, other)
    assert "levels (f, m) but 'M', 'F', 'D': is that meant?" in told
    many = write_csv(tmp_path / "many.csv", ward(1026, 1))
    assert "under two names" in commands.precad(*check, many).stderr
    assert (
        "nothing is trained" in commands.precad(*check, file, "--model", "a:b").stderr
    )


def test_survival_that_will_be_too_rough_is_warned_of(tmp_path: Path) -> None:
    asked = """
[[query]]
name = "deaths"
kind = "survival"
column = "months"
event = { died = "1" }
upper = 36
bins = 36
"""
    (tmp_path / "questions.toml").write_text(asked, encoding="utf-8")
    command = ["ask", "new", tmp_path / "questions.toml", tmp_path / "few.toml"]
    command += ["--owners", 3, "--epsilon", 1, "--most-records"]
    few = commands.said(*command, 100)
    assert re.search(r"deaths: even if .* will move survival by up to 0\.\d+", few)
    command[3] = tmp_path / "many.toml"
    many = commands.said(*command, 1000)
    assert re.search(r"deaths survival 0\.0\d+", many)
    assert "too far" not in many


STAY = """
[[query]]
name = "stay"
kind = "survival"
column = "months"
event = { died = "1" }
upper = 12
bins = 6
"""


@pytest.mark.parametrize(
    ("questions", "wished", "beforehand"),
    [
        (ASKED, 10, "patients count 10 1.41"),
        (STAY, 0.02, "stay survival 0.02 "),
        (MEAN, 0.5, "age mean 0.5 1"),
    ],
    ids=["count", "survival", "mean"],
)
def test_a_wished_error_gives_the_epsilon(
    asked: list[object],
    tmp_path: Path,
    questions: str,
    wished: float,
    beforehand: str,
) -> None:
    (tmp_path / "questions.toml").write_text(questions, encoding="utf-8")
    said = commands.said(*asked, "--error", wished)
    assert beforehand in said
    epsilon = planned_guarantees(Task.load(tmp_path / "task.toml"))[0].epsilon
    assert f"ε = {upper(epsilon, 3)} of a record" in said


def test_a_head_alone_has_no_error_to_wish_for(
    asked: list[object], tmp_path: Path
) -> None:
    data = {"target": SEX, "columns": [AGE]}
    head = {"name": "h", "kind": "head", "column": "sex"}
    questions = to_toml({"query": [head], "data": data})
    (tmp_path / "questions.toml").write_text(questions, encoding="utf-8")
    assert "give --epsilon" in commands.precad(*asked, "--error", 1).stderr


def test_what_an_account_has_left_is_said(asked: list[object], tmp_path: Path) -> None:
    log = tmp_path / "own" / ACCOUNT_FILE
    log.parent.mkdir()
    plan = tmp_path / "plan.toml"
    plan.write_text("delta = 1e-6\npurse = 0.3\n", encoding="utf-8")
    task = asking([{"name": "all", "kind": "count"}], {"noise_multiplier": 4.0})
    OwnAccount(task, 1.0, None, log, plan=plan).charge(1)
    asked += ["--account", log.parent, "--noise-multiplier"]
    said = commands.said(*asked, 8.0)
    assert "whose purse has μ = 0.1658 left of 0.3" in said
    assert f"{log.parent} has room for this" in said
    (tmp_path / "task.toml").unlink()
    assert "lacks room (a smaller ε?) for this" in commands.said(*asked, 4.0)
    (tmp_path / "task.toml").unlink()
    asked[-2] = tmp_path / "none"
    assert "holds no account" in commands.precad(*asked, 4.0).stderr


@pytest.mark.parametrize(
    "wishes", [[], ["--epsilon", 1, "--error", 5], ["--epsilon", 1, "--owners", 0]]
)
def test_what_isnt_one_wish_is_refused(
    asked: list[object], wishes: list[object]
) -> None:
    refused = commands.precad(*asked, *wishes)
    assert refused.exit_code == 2, refused.output


def test_an_answer_that_isnt_there_yet_is_said_to_be(
    asked: list[object], tmp_path: Path
) -> None:
    commands.said(*asked, "--epsilon", 1)
    settings = tmp_path / "ward.toml"
    settings.write_text(
        'task = "task.toml"\nidentity = "keys"\nclient = "ward"\n'
        'server_a = "127.0.0.1:1"\nserver_b = "127.0.0.1:2"\n'
        'data = "ward.csv"\nstate = "state"\n'
    )
    told = commands.refused("ask", "answer", "--config", settings)
    assert "isn't over, or hasn't begun" in told


NOISE = "Counts below 0, and standard deviations that may be 0, are noise"


@pytest.mark.parametrize(
    ("of", "cell", "moved", "noisy"),
    [
        ("nothing", 0, 0.0, False),
        ("a count below 0", 0, -900.0, True),
        ("a standard deviation of 0", 3, 500.0, True),
    ],
)
def test_what_only_noise_explains_is_said_under_the_table(
    of: str,
    cell: int,
    moved: float,
    noisy: bool,  # noqa: FBT001 -- a parameter
    tmp_path: Path,
) -> None:
    age = {"name": "age", "kind": "mean", "column": "age", "lower": 0, "upper": 100}
    count = {"name": "n", "kind": "count", "by": "sex"}
    task = asking([count, age], {"noise_multiplier": 1.0})
    (tmp_path / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    table = ward(900, 2)
    simulated = simulate(task, [table], seed=1, noise=nothing)
    theta = simulated.theta.copy()
    block = task.blocks[0 if cell == 0 else 1]
    theta[cell] += moved * block.unit / 2**task.fractional_bits
    file = tmp_path / "model.safetensors"
    save_model(file, task, 1, theta)
    command = ["ask", "answer", "--task", tmp_path / "task.toml", "--model-file", file]
    assert (NOISE in commands.said(*command, "--records", 900)) is noisy, of


def test_answers_are_csv_and_tables_too(tmp_path: Path) -> None:
    task = asking()
    (tmp_path / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    simulated = simulate(task, dict(WARDS), seed=5)
    file = tmp_path / "model.safetensors"
    save_model(file, task, 1, simulated.theta)
    command = ["ask", "answer", "--task", tmp_path / "task.toml", "--model-file", file]
    # Nobody says how many records count, and a mean needs it.
    refused = commands.precad(*command)
    assert refused.exit_code == 2
    assert "how many records" in refused.output
    command += ["--records", sum(SIZES.values())]
    answers = commands.document(*command)["answers"]
    rows = list(csv.DictReader(io.StringIO(commands.precad(*command, "--csv").stdout)))
    assert [row["of"] for row in rows] == [each["of"] for each in answers]
    assert float(rows[0]["low"]) == answers[0]["low"] < answers[0]["value"]
    said = commands.said(*command, "--pictures", tmp_path / "pictures")
    for wrong in (1, -1, 1.5, "nan"):
        refused = commands.precad(*command, "--bad-owners", wrong)
        assert refused.exit_code == 2
    assert (
        "1.5: give 1 to 0, or a share of known records"
        in commands.precad(*command, "--bad-owners", 1.5).stderr
    )
    tenth, *_ = commands.document(*command, "--bad-owners", 0.1)["answers"]
    moved = tenth["moved_by_record"] * math.ceil(sum(SIZES.values()) / 10)
    assert tenth["high_without_bad"] == pytest.approx(tenth["value"] + moved)
    assert "patients f records count" in said
    assert "sex by ward independent in the population p-value" in said
    drawn = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert drawn == {f"{at}.png" for at in range(1, len(task.blocks) + 1)}
