"""The models that a server offers, and what a client that asks for another one hears."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from precad.common.aggregator.training.shelf import KEPT_MODELS, Shelf
from precad.common.errors import NotOnOffer, PeerUnavailable, StorageFailure
from precad.common.task import Task
from precad.common.wire.serving import status_of
from precad.common.wire.status import error_of


@pytest.fixture
def task(make_task: Any) -> Task:
    made: Task = make_task(3)
    return made


def filled(task: Task, path: Path, models: int) -> Shelf:
    shelf = Shelf(task, path)
    for number in range(1, models + 1):
        shelf.put(number, np.full(3, float(number)))
    return shelf


def test_the_newest_models_are_on_offer(task: Task, tmp_path: Path) -> None:
    shelf = filled(task, tmp_path / "model", 6)
    assert shelf.current.version == 6
    for number in range(7 - KEPT_MODELS, 7):
        assert shelf.get(number).theta.tolist() == [number] * 3
    for number in (7 - KEPT_MODELS - 1, 7):
        with pytest.raises(NotOnOffer, match=f"model {number} "):
            shelf.get(number)


def test_a_model_that_cannot_be_written_is_not_offered_and_the_error_says_what_to_do(
    task: Task, tmp_path: Path
) -> None:
    shelf = Shelf(task, tmp_path / "gone" / "model")
    with pytest.raises(StorageFailure, match=r"gone/model can't be written \(No such file"):
        shelf.put(1, np.zeros(3))
    assert shelf.current.version == 0


def test_after_a_restart_only_the_current_one_is(task: Task, tmp_path: Path) -> None:
    before = filled(task, tmp_path / "model", 3).current
    again = Shelf(task, tmp_path / "model")
    assert (again.current.version, again.current.digest) == (3, before.digest)
    with pytest.raises(NotOnOffer):
        again.get(2)


class Failed(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return status_of(NotOnOffer("the newest is that of 3"))

    def details(self) -> str:
        return "the newest is that of 3"


def test_a_model_that_is_gone_is_a_round_to_skip_and_no_violation() -> None:
    error = error_of("server B", "b.example:1", Failed())
    assert isinstance(error, NotOnOffer)
    assert isinstance(error, PeerUnavailable)
    assert "the newest is that of 3" in str(error)
