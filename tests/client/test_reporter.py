"""An owner is told each round, and nothing of the telling shows outside: a callback that raises or
takes long, held-out records, a full disk."""

import csv
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import TaskMaker
from tests.rig.scripted_servers import ME, Open, Over, Owner, Script

from precad.accounting.events import poisson_gaussian
from precad.client.account_file import Charge
from precad.client.participation import (
    Evaluation,
    Participation,
    RoundInfo,
    TrainedModel,
    VersionOver,
)
from precad.client.reporter import HISTORY_FILE, Reporter
from precad.common.model import model_digest
from precad.common.task import Task

D = 8
WORK_S = 7.0
ROUNDS = (Open(0, 0), Over(0, 0), Open(1, 1, selected=False), Over(1, 1, counted=False))


@pytest.fixture
def task(make_task: TaskMaker) -> Task:
    return make_task(D, {"deadlines.work": WORK_S})


def model_of(task: Task, version: int) -> TrainedModel:
    theta = np.full(task.dimension, float(version))
    digest = model_digest(task.digest, version, task.model.parameters, theta)
    return TrainedModel(task, version, theta, digest)


def ended(task: Task, version: int, *, counted: bool = True) -> VersionOver:
    privacy = task.privacy
    step = Charge(
        task=task.digest,
        client=ME.name,
        version=version,
        re_releases=0,
        noise_multiplier=privacy.noise_multiplier,
        record_rate=privacy.record_rate,
        delta=privacy.delta,
    ).event
    return VersionOver(version, drawn=True, counted=counted, rejected="", seconds=1.5,
                       spent=Counter({step: version + 1}))  # fmt: skip


def play(task: Task, folder: Path, **listening: Any) -> tuple[Owner, Participation, Reporter]:
    """A whole training against scripted servers."""
    folder.mkdir()
    owner = Owner(Script(task, list(ROUNDS)), folder)
    reporter = Reporter(task, folder=folder, **listening)
    owner.observer = reporter
    with reporter:
        result = owner.run()
    return owner, result, reporter


# --- what is told ------------------------------------------------------------------------------


def test_each_round_is_told_in_order_with_what_it_cost(task: Task, tmp_path: Path) -> None:
    told: list[RoundInfo] = []
    _, result, reporter = play(task, tmp_path / "own", on_round=told.append)
    assert [(r.number, r.drawn, r.counted, r.rejected) for r in told] == [
        (1, True, True, ""),
        (2, False, False, ""),
    ]
    assert {r.rounds for r in told} == {task.training.rounds}
    assert told[0].epsilon == told[1].epsilon == pytest.approx(result.epsilon)
    assert [r.seconds for r in told] == [WORK_S, 0.0]
    assert reporter.history == told
    assert [r.model for r in reporter.history] == [None, None]


def test_of_an_account_over_many_tasks_not_every_round_adds_up_again(task: Task) -> None:
    spent = Counter(
        {poisson_gaussian(rate=0.1, noise_multiplier=2 + kind / 10): 1 for kind in range(17)}
    )
    with Reporter(task) as reporter:
        for version in range(3):
            reporter.over(replace(ended(task, version), spent=spent))
    assert [info.epsilon is None for info in reporter.history] == [False, True, False]


def test_the_rounds_are_in_a_file_for_this_user_alone(task: Task, tmp_path: Path) -> None:
    play(task, tmp_path / "own")
    path = tmp_path / "own" / HISTORY_FILE
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [(row["round"], row["drawn"], row["counted"]) for row in rows] == [
        ("1", "True", "True"),
        ("2", "False", "False"),
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_one_line_a_round_goes_to_the_log_and_nothing_of_the_held_out_records(
    task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    play(task, tmp_path / "own", validate=lambda *_: Evaluation(5, 0.125, 0.9876))
    lines = [r.getMessage() for r in caplog.records if r.name == "precad.rounds"]
    assert [line.split(";")[0] for line in lines] == [
        "round 1 of 10: counted",
        "round 2 of 10: not drawn",
    ]
    assert "0.125" not in caplog.text
    assert "98" not in "".join(lines)


def test_the_newest_model_is_tried_on_the_held_out_records(task: Task, tmp_path: Path) -> None:
    tried: list[int] = []

    def validate(model: TrainedModel, between: Callable[[], object]) -> Evaluation:
        between()
        tried.append(model.version)
        return Evaluation(3, float(model.version), None)

    told: list[RoundInfo] = []
    _, result, reporter = play(task, tmp_path / "own", validate=validate, on_round=told.append)
    assert result.model is not None
    assert (tried[-1], result.model.version) == (2, 2)
    assert reporter.validation == Evaluation(3, 2.0, None)
    for info in told:
        assert info.validation is None or info.model is not None
        assert info.model is None or info.validation == Evaluation(3, info.model.version, None)


def test_a_model_that_a_newer_one_has_followed_is_neither_tried_nor_kept(task: Task) -> None:
    tried: list[int] = []
    told: list[RoundInfo] = []

    def validate(model: TrainedModel, _: Callable[[], object]) -> Evaluation:
        tried.append(model.version)
        return Evaluation(1, 0.0, None)

    with Reporter(task, validate=validate, on_round=told.append) as reporter:
        reporter.hold()
        for version in range(4):
            reporter.saw(model_of(task, version + 1))
            reporter.over(ended(task, version))
    assert tried == [4]
    assert [None if r.model is None else r.model.version for r in told] == [None, None, None, 4]


# --- what nobody outside sees ------------------------------------------------------------------


class Stubborn(Exception):
    """Of an owner's own code."""


def broken(info: RoundInfo) -> None:
    raise Stubborn(f"accuracy 0.4321 in {info.number}")


def test_a_callback_that_raises_stops_nothing_and_is_neither_silent_nor_quoted(
    task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    _, result, reporter = play(task, tmp_path / "own", on_round=broken)
    assert (result.ended, result.counted) == ("finished", 1)
    assert reporter.failures == len(reporter.history) == 2
    assert isinstance(reporter.first_failure, Stubborn)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("on_round raised Stubborn after round 1" in line for line in warnings)
    assert "0.4321" not in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_not_even_an_exit_in_a_callback_ends_the_training(
    task: Task, tmp_path: Path, error: BaseException
) -> None:
    def leave(_: RoundInfo) -> None:
        raise error

    _, result, reporter = play(task, tmp_path / "own", on_round=leave)
    assert result.ended == "finished"
    assert reporter.first_failure is error


@pytest.mark.parametrize("cover", [False, True], ids=["as drawn", "covered"])
def test_messages_and_their_times_are_those_of_an_owner_that_nobody_watches(
    make_task: TaskMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, cover: bool
) -> None:
    """To the byte and to the instant of the clock; held-out records don't show in the log either.

    A server may serve a model at which they raise. Their owner reads it in its private log.
    """
    task = make_task(D, {"deadlines.work": WORK_S, "privacy.cover_uploads": cover})

    def fails(_model: TrainedModel, _between: Callable[[], object]) -> Evaluation:
        raise MemoryError("record 7")

    seen, notes, lines = [], list[str](), dict[str, list[str]]()
    for name, listening in (
        ("alone", {}),
        ("watched", {"on_round": broken, "validate": lambda *_: Evaluation(1, 0.5, 0.5)}),
        ("failing", {"validate": fails, "note": notes.append}),
        ("slow", {"on_round": lambda _: threading.Event().wait(0.05)}),
    ):
        caplog.clear()
        owner, result, _ = play(task, tmp_path / name, **listening)
        lines[name] = [record.getMessage() for record in caplog.records]
        script = owner.script
        seen.append(
            (script.calls, [s.at for s in script.sent], script.clock.slept, result.submitted)
        )
    assert all(each == seen[0] for each in seen)
    assert WORK_S in seen[0][1]
    assert lines["failing"] == lines["alone"]
    # Where this machine is slow a model is passed over for the next one.
    assert {note.partition(": ")[2] for note in notes} == {
        "held-out records can't be tried (MemoryError: record 7)"
    }


def test_what_is_slow_waits_while_an_upload_is_due(task: Task) -> None:
    said: list[str] = []
    at_a_chunk, over = threading.Event(), threading.Event()

    def validate(model: TrainedModel, between: Callable[[], object]) -> Evaluation:
        for chunk in range(3):
            at_a_chunk.set()
            over.wait(60)
            between()
            said.append(f"chunk {chunk} of {model.version}")
        return Evaluation(1, 0.0, None)

    with Reporter(task, validate=validate, on_round=lambda _: said.append("told")) as reporter:
        reporter.saw(model_of(task, 1))
        reporter.over(ended(task, 0))
        assert at_a_chunk.wait(60)
        reporter.hold()
        over.set()
        # The thread comes to the next chunk's gate and stands there.
        assert not threading.Event().wait(0.2)
        assert said == []
        reporter.free()
    assert said == ["chunk 0 of 1", "chunk 1 of 1", "chunk 2 of 1", "told"]


def test_an_interrupted_owner_waits_for_no_callback(task: Task) -> None:
    stuck, free = threading.Event(), threading.Event()

    def slow(_: RoundInfo) -> None:
        stuck.set()
        free.wait(60)

    def interrupted() -> None:
        with Reporter(task, on_round=slow) as reporter:
            reporter.over(ended(task, 0))
            assert stuck.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not free.is_set()
    free.set()


def test_a_history_that_cannot_be_written_stops_nothing(
    task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / HISTORY_FILE).mkdir()
    with Reporter(task, folder=tmp_path) as reporter:
        reporter.over(ended(task, 0))
    assert [info.number for info in reporter.history] == [1]
    assert "can't be written" in caplog.text


def test_a_round_that_is_told_again_after_a_restart_has_one_line(
    task: Task, tmp_path: Path
) -> None:
    for versions in ((0, 1), (1, 2)):
        with Reporter(task, folder=tmp_path) as reporter:
            for version in versions:
                reporter.over(ended(task, version))
    lines = (tmp_path / HISTORY_FILE).read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["round", "1", "2", "3"]
