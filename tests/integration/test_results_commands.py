"""`precad predict` and `evaluate` speak in the words of the task's own recipe."""

import csv
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics
from tests.rig import tasks
from tests.rig.commands import document, precad, refused, said
from tests.rig.held_out import CENTRE, INPUT, SCALE, STAYS, task_for
from tests.rig.refusals import refused as refuses
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import task_with
from torch import nn
from torch.nn import functional

from precad.client.gradients.objectives import compared, loss_in
from precad.common.model import save_model
from precad.common.task import Task
from precad.simulation import simulate

SLOPE, OFFSET = 0.5, -0.25
AGES = np.arange(-30, 30) / 10
REST = np.resize([0.5, -0.5, 1.5, 0.25], len(AGES))
DAYS = SCALE * (SLOPE * AGES + OFFSET) + CENTRE + REST
LEVELS = ["home, at once", "ward"]
KINDS = task_for(2, name="next", kind="categorical", levels=LEVELS)


def files(folder: Path, task: Task, theta: list[float]) -> tuple[object, ...]:
    (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    model = folder / "model.safetensors"
    save_model(model, task, task.training.rounds, np.array(theta, np.float32))
    return "--task", folder / "task.toml", "--model-file", model


def table(path: Path, *columns: tuple[str, object]) -> Path:
    names, cells = zip(*columns, strict=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *zip(*cells, strict=True)])
    return path


def names_of(count: int) -> list[str]:
    """Identifiers that a number would lose."""
    return [f"{number:04d}" for number in range(count)]


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_regressions_results_are_in_the_targets_own_unit(tmp_path: Path) -> None:
    model = files(tmp_path, STAYS, [SLOPE, OFFSET])
    names = names_of(len(AGES))
    new = table(tmp_path / "new.csv", ("patient", names), ("age", AGES))
    out = tmp_path / "p.csv"
    assert precad("predict", new, *model, "--id", "patient", "--out", out).output == ""
    rows = list(csv.DictReader(out.read_text("utf-8").splitlines()))
    assert list(rows[0]) == ["record", "patient", "predicted_stay"]
    assert [row["patient"] for row in rows] == names
    predicted = [float(row["predicted_stay"]) for row in rows]
    assert predicted == pytest.approx((DAYS - REST).tolist(), rel=1e-5)
    assert said("predict", new, *model, "--raw").split()[0] == "record,output_0"
    wrong = partial(refused, "predict", new, *model, "--id")
    assert "column ward" in wrong("ward")
    # The closest name comes first.
    assert "it has patient, age: give one of these" in wrong("pateint")
    assert "it has age, patient: give one of these" in wrong("Age ")
    assert "leave it out" in wrong("patient", "--out", tmp_path / "p.npy")
    np.savez(tmp_path / "new.npz", x=AGES[:, None].astype(np.float32))
    asked = ("predict", tmp_path / "new.npz", *model, "--id", "patient")
    assert "give a table" in refused(*asked)

    # Predictions may be the only copy of what somebody was told.
    before = out.read_bytes()
    assert "exists already" in refused("predict", new, *model, "--out", out)
    assert out.read_bytes() == before
    for unknown in (new, tmp_path / "new.npz"):
        assert "precad predict needs no target" in refused("evaluate", unknown, *model)
    said_of_path = refused("evaluate", tmp_path / "none.csv", *model)
    assert "predict needs" not in said_of_path

    known = table(tmp_path / "known.csv", ("age", AGES), ("stay", DAYS))
    with no_warning():
        told = document("evaluate", known, *model)
    assert (told["version"], told["records"], told["target"]) == (10, len(AGES), "stay")
    found = {row["name"]: row for row in told["measures"]}
    assert found["R²"]["value"] == pytest.approx(
        metrics.r2_score(DAYS, DAYS - REST), rel=1e-5
    )
    absolute = found["mean absolute error"]
    assert absolute["value"] == pytest.approx(np.abs(REST).mean(), rel=1e-5)
    assert absolute["low"] < absolute["value"] < absolute["high"]
    shown = said("evaluate", known, *model)
    assert f"mean absolute error stay {absolute['value']:.4g}" in shown
    assert "calibration: mean stay 20 records predicted" in shown
    lines = precad("evaluate", known, *model, "--csv").stdout.splitlines()
    (root,) = (
        row for row in csv.DictReader(lines) if row["name"].startswith("root mean")
    )
    assert float(root["value"]) == pytest.approx(np.sqrt((REST**2).mean()), rel=1e-5)


def test_classes_are_called_by_their_levels(tmp_path: Path) -> None:
    model = files(tmp_path, KINDS, [0.0, 2.0, 0.0, 0.0])
    new = table(tmp_path / "new.csv", ("age", AGES))
    rows = list(csv.DictReader(precad("predict", new, *model).stdout.splitlines()))
    columns = ["record", "class", *(f"probability_{level}" for level in LEVELS)]
    assert list(rows[0]) == columns
    likeliest = [LEVELS[int(age > 0)] for age in AGES]
    assert [row["class"] for row in rows] == likeliest
    true = [LEVELS[int(age > 0.5)] for age in AGES]
    known = table(tmp_path / "known.csv", ("age", AGES), ("next", true))
    told = document("evaluate", known, *model)
    assert told["levels"] == LEVELS
    assert told["confusion"] == metrics.confusion_matrix(true, likeliest).tolist()
    lines = precad("evaluate", known, *model, "--csv").stdout.splitlines()
    by_row = {(row["name"], row["of"]): row for row in csv.DictReader(lines)}
    counted = by_row["records predicted ward", "home, at once"]
    assert (counted["value"], counted["low"]) == (str(told["confusion"][0][1]), "")
    shown = said("evaluate", known, *model)
    for words in ("AUC ward", "specificity home, at once", "predicted ward"):
        assert words in shown


def test_probabilities_that_class_weights_moved_are_said_to_be(tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", ("age", AGES))
    weighed = KINDS.model_dump(mode="json")
    weighed["training"]["class_weights"] = [0.1, 1.0]
    for task, note in ((KINDS, False), (Task.parse(weighed), True)):
        model = files(tmp_path, task, [0.0, 2.0, 0.0, 0.0])
        told = precad("predict", new, *model)
        assert ("docs/rare-classes.md" in told.stderr) is note
        assert ("weighs classes" in told.stderr) is note
        # It isn't among the predictions.
        assert told.stdout.startswith("record,class,")
        assert "weigh" not in told.stdout


def test_predict_and_evaluate_ask_what_the_doctor_asks_of_columns(
    tmp_path: Path,
) -> None:
    """A table of another hospital's codes, or of days where hours were learned."""
    far = {"name": "age", "kind": "numeric", "centre": 50.0, "scale": 10.0}
    ward = {"name": "ward", "kind": "categorical", "levels": ["A", "B"]}
    task = task_with(
        tasks.logistic(4, 1)
        | {"data": {"columns": [far, ward], "target": STAYS.target.model_dump()}}
    )
    model = files(tmp_path, task, [0.0] * 5)
    new = tmp_path / "new.csv"
    for rows, words in (
        (["50,A,12", "60,B,15"], ()),
        (
            ["50,K1,12", "600,K2,15"],
            ("2 of 2 have none of the task's levels", "600 lies 30 scales"),
        ),
        (["50,A,12", "60,B,9999"], ("column stay: 9999 lies 30 scales",)),
    ):
        new.write_text("\n".join(["age,ward,stay", *rows, ""]))
        told = {name: precad(name, new, *model) for name in ("predict", "evaluate")}
        assert [done.exit_code for done in told.values()] == [0, 0]
        assert all(word in told["evaluate"].stderr for word in words)
        inputs = [word for word in words if "stay" not in word]
        assert all(word in told["predict"].stderr for word in inputs)
        assert (told["evaluate"].stderr == "") is not bool(words)
        assert "is that meant" not in told["predict"].stdout


def test_a_model_that_isnt_there_yet_is_said_to_be(tmp_path: Path) -> None:
    files(tmp_path, STAYS, [SLOPE, OFFSET])
    new = table(tmp_path / "new.csv", ("age", AGES))
    settings = tmp_path / "ward.toml"
    settings.write_text(
        'task = "task.toml"\nidentity = "keys"\nclient = "ward"\n'
        'server_a = "127.0.0.1:1"\nserver_b = "127.0.0.1:2"\n'
        'data = "new.csv"\nstate = "state"\n'
    )
    told = refused("predict", new, "--config", settings)
    assert "this training isn't over" in told


def test_a_model_of_an_earlier_round_is_said_to_be_one(tmp_path: Path) -> None:
    files(tmp_path, STAYS, [SLOPE, OFFSET])
    half = tmp_path / "half.safetensors"
    save_model(half, STAYS, 1, np.array([SLOPE, OFFSET], np.float32))
    new = table(tmp_path / "new.csv", ("age", AGES))
    asked = ("predict", new, "--task", tmp_path / "task.toml", "--model-file")
    assert "the model is of round 1 of 10" in precad(*asked, half).stderr


def test_no_command_asks_a_regression_for_its_loss(tmp_path: Path) -> None:
    """Nor warns of broadcasting: not where its loss is given either."""
    files(tmp_path, STAYS, [SLOPE, OFFSET])
    known = table(tmp_path / "known.csv", ("age", AGES), ("stay", DAYS))
    task = Task.load(tmp_path / "task.toml")
    for loss in (None, functional.mse_loss, nn.HuberLoss(reduction="sum")):
        with no_warning():
            training = simulate(
                task, known, clients=2, rounds=2, seed=1, test=known, loss=loss
            )
        assert training.rounds[-1].r_squared is not None
        assert f"R² {training.rounds[-1].r_squared:.3f}" in str(training)
        training.plot(tmp_path / "run.png")
    with no_warning():
        assert "take every record" in said(
            "task", "check", tmp_path / "task.toml", "--data", known
        )


def test_a_loss_of_numbers_is_compared_number_by_number() -> None:
    """[n] beside [n, 1] would be broadcast to [n, n]: a wrong loss, and a warning."""
    outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])
    for name, expected in (
        ("squared-error", 2.0),
        ("absolute-error", 1.0),
        ("huber", 0.75),
    ):
        task = task_with({"training.loss": name})
        with no_warning():
            assert float(compared(loss_in(task), outputs, targets)) == expected


def test_a_task_says_its_loss_and_an_old_one_keeps_its_digest() -> None:
    plain = task_with(tasks.logistic(1, 1))
    assert b"loss" not in plain.canonical
    assert (plain.loss, STAYS.loss, KINDS.loss) == (
        *("cross-entropy", "squared-error", "cross-entropy"),
    )
    named = task_with(tasks.logistic(1, 1) | {"training.loss": "huber"})
    assert (named.loss, named.digest == plain.digest) == ("huber", False)
    for outputs, loss, target in (
        (1, "cross-entropy", {"name": "stay"}),
        (2, "huber", {"name": "n", "kind": "categorical", "levels": ["a", "b"]}),
    ):
        changes = tasks.logistic(1, outputs) | {
            "data": {"columns": [INPUT], "target": target},
            "training.loss": loss,
        }
        refuses("training.loss", task_with, changes)
