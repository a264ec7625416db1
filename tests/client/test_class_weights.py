"""Class weights of a task: what a record's gradient is multiplied by before its clip."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.rig.commands import precad
from tests.rig.commands import refused as said_to
from tests.rig.documents import Document
from tests.rig.refusals import refused
from tests.rig.tasks import RECIPE, task_with
from torch.nn import functional

from precad.client.gradients.local_update import local_update
from precad.client.gradients.rehearsal import rehearse
from precad.client.gradients.torch_models import logistic, model_section
from precad.client.records.torch_records import as_records
from precad.common.fixed_point import squared_norm
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.simulation import simulate

FEATURES, CLASSES = 3, 2
WEIGHTS = [0.125, 1.0]
RNG = np.random.default_rng(4)
X = RNG.normal(size=(60, FEATURES)).astype(np.float32)
Y = np.array([0] * 50 + [1] * 10)
MODEL = logistic(FEATURES, CLASSES)


def weighted(weights: Sequence[float] = (), changes: Document | None = None) -> Task:
    return task_with(
        {
            "model": model_section(MODEL, architecture="logistic"),
            "privacy.record_clip": 1.0,
            "training.class_weights": list(weights),
            **(changes or {}),
        }
    )


def update_of(task: Task, record: int, scale: float = 1.0) -> RingVector:
    theta = np.zeros(task.dimension)
    data = (scale * X, Y)
    return local_update(
        MODEL, functional.cross_entropy, data, np.array([record]), theta, task
    )


@pytest.mark.parametrize("objective", [None, {"name": "dp-gaussian", "noise": 1e-6}])
def test_a_record_counts_by_its_class_s_weight_and_never_beyond_the_clip(
    objective: object,
) -> None:
    changes: Document = {} if objective is None else {"objective": objective}
    plain, balanced = weighted((), changes), weighted(WEIGHTS, changes)
    for record in (0, 55):
        # So small a record that no clip touches it.
        alone = update_of(plain, record, scale=0.1)
        found = update_of(balanced, record, scale=0.1)
        expected = WEIGHTS[Y[record]] * alone
        assert np.abs(found - expected).max() <= 4
    clip_units = balanced.privacy.record_clip * 2.0**balanced.fractional_bits
    for record in (0, 55):
        huge = update_of(balanced, record, scale=1e4)
        assert 0.99 * clip_units**2 < squared_norm(huge) <= clip_units**2


def test_simulations_weigh_as_owners_do() -> None:
    changes: Document = {"training.rounds": 3, "privacy.client_rate": 1.0}
    task = weighted(WEIGHTS, changes)
    one, two = (
        simulate(task, (X, Y), MODEL, clients=2, seed=1, path=path).theta
        for path in ("stacked", "per-client")
    )
    np.testing.assert_allclose(one, two, atol=1e-4)
    plain = weighted((), changes)
    other = simulate(plain, (X, Y), MODEL, clients=2, seed=1).theta
    assert np.abs(one - other).max() > 1e-3


def test_weights_are_at_most_1_and_go_with_a_label_a_record() -> None:
    said = r"training.class_weights.*less than or equal to 1"
    refused(said, weighted, [1.0, 9.0])
    refused(r"training.class_weights.*\[local\]", task_with, {
        "training.class_weights": WEIGHTS,
        "local": {"learning_rate": 0.1},
        "privacy.record_rate": 1.0,
        "privacy.record_clip": 2.0,
        "privacy.client_clip": 2.0,
    })  # fmt: skip
    for weights, targets in (([0.5, 0.5, 1.0], Y), (WEIGHTS, Y.astype(np.float32))):
        refused(
            "class_weights.*a whole label a record and a model with a column.*it has 2",
            rehearse,
            MODEL,
            lambda outputs, y: functional.mse_loss(outputs[:, 0], y),
            as_records((X, targets)),
            weighted(weights),
        )
    # A label that is no class is the record's fault, as without weights.
    said = "data, target of record 3 = 2.*the model has 2 classes"
    wrong = as_records((X, np.where(np.arange(60) == 3, 2, Y)))
    refused(said, rehearse, MODEL, functional.cross_entropy, wrong, weighted(WEIGHTS))


def test_a_task_without_weights_is_the_same_task_as_before() -> None:
    assert b"class_weights" not in weighted().canonical
    assert weighted().digest != weighted(WEIGHTS).digest


NEW = ("task", "new", "t.toml", "--architecture", "logistic", "--records", "3x400")
BY_NUMBER = (*NEW, "--features", "3", "--epsilon", "3", "--classes")
BY_RECIPE = (*NEW, "--recipe", "recipe.toml", "--epsilon", "3", "--balance")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        ((*BY_RECIPE, ".9,.1"), [0.1111, 1.0]),
        ((*BY_RECIPE, "yes=.1, no=.9"), [0.1111, 1.0]),
        ((*BY_RECIPE, "900,100"), [0.1111, 1.0]),
        ((*BY_NUMBER, "3", "--balance", ".5,.3,.2"), [0.4, 0.6667, 1.0]),
        ((*BY_NUMBER, "3", "--balance", "2=.2,0=.5,1=.3"), [0.4, 0.6667, 1.0]),
    ],
)
def test_shares_become_weights_of_1_for_the_rarest_and_less_for_others(
    folder: Path, words: tuple[str, ...], weights: list[float]
) -> None:
    assert precad(*words).exit_code == 0
    task = Task.load(folder / "t.toml")
    assert task.training.class_weights == tuple(weights)
    named = ("no 0.1111", "yes 1") if len(weights) == 2 else ("0 0.4", "2 1")
    shown = " ".join(precad("task", "show", "t.toml").stdout.split())
    assert all(each in shown for each in named)


def test_a_number_has_no_classes_to_balance(folder: Path) -> None:
    words = (*BY_NUMBER, "1", "--balance", ".9,.1")
    assert "is of classes, and a number has none" in precad(*words).stderr
    assert not (folder / "t.toml").exists()


def test_shares_sum_to_1_but_for_rounding_and_counts_need_not(folder: Path) -> None:
    for balance, total in (
        (".9,.3", "1.2"),
        ("no=.9,yes=.05", "0.95"),
        ("9.5,.5", "10"),
    ):
        assert f"sums to {total}: give shares that" in said_to(*BY_RECIPE, balance)
    for balance in (".93,.069", "900,100", "9,1"):
        assert precad(*BY_RECIPE, balance).exit_code == 0
        (folder / "t.toml").unlink()


@pytest.mark.parametrize(
    "balance",
    [
        "",
        ".9",
        ".5,.3,.2",
        "no=.9,no=.1",
        "no=.9,maybe=.1",
        "0,1",
        "-1,2",
        "1,nan",
        "1,inf",
        "a,b",
        ",",
    ],
)
def test_shares_that_are_none_are_refused_with_the_classes_names(
    folder: Path, balance: str
) -> None:
    said = said_to(*BY_RECIPE, balance)
    assert re.search(r"balance = .*give the share of each class, .*are no, yes", said)
    assert not (folder / "t.toml").exists()
