"""TensorBoard gets a round's numbers, and a person without it is told what to install."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import precad
from precad.client import Evaluation, RoundInfo, TensorBoard
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from tests.conftest import TaskMaker


def scalars(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    found = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, pytest.approx(event.value, rel=1e-6)) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_every_number_of_an_owners_round_is_a_curve(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    for number in (1, 2):
        board(
            RoundInfo(
                number=number,
                rounds=9,
                drawn=True,
                counted=number == 2,
                rejected="",
                epsilon=number / 4,
                epsilon_limit=None,
                seconds=2.0,
                validation=Evaluation(5, 0.75, 0.5),
            )
        )
    assert scalars(tmp_path) == {
        "drawn": [(1, 1), (2, 1)],
        "counted": [(1, 0), (2, 1)],
        "epsilon": [(1, 0.25), (2, 0.5)],
        "seconds": [(1, 2), (2, 2)],
        "validation/records": [(1, 5), (2, 5)],
        "validation/loss": [(1, 0.75), (2, 0.75)],
        "validation/accuracy": [(1, 0.5), (2, 0.5)],
    }


def test_a_simulation_is_shown_alike(tmp_path: Path, make_task: "TaskMaker") -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    weight, bias = {"name": "1.weight", "shape": [2, 3]}, {"name": "1.bias", "shape": [2]}
    model = {"model.architecture": "logistic", "model.parameters": [weight, bias]}
    task = make_task(8, {**model, "training.rounds": 2, "enrolment.clients": 2})
    data = (x, (x[:, 0] > 0).astype(np.int64))
    played = precad.simulate(task, data, on_round=TensorBoard(tmp_path))
    curves = scalars(tmp_path)
    assert curves["accepted"] == [(r.number, r.accepted) for r in played.rounds]
    assert "accuracy" not in curves


def test_who_lacks_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(Misconfiguration, match=r"precad\[tensorboard\]"):
        TensorBoard("runs")
