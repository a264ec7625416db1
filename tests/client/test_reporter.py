"""An owner is told each round, and nothing of the telling shows outside: a callback
that raises or takes long, held-out records, a full disk. What a person sees of it, on a
terminal or elsewhere.
"""

import csv
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TypedDict, Unpack
from unittest.mock import Mock

import numpy as np
import pytest
from tests.rig import tasks, terminal, waiting
from tests.rig.accounts import composed
from tests.rig.documents import Document
from tests.rig.scripted_servers import Open, Over, Owner, Script

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.client import reporter as shown_by
from precad.client.gradients.evaluation import Evaluation
from precad.client.participation import Participation, RoundInfo, VersionOver
from precad.client.participation import TrainedModel as Model
from precad.client.reporter import (
    HISTORY_FILE,
    Reporter,
    display_for,
    rounds_missed,
)
from precad.common.task import Task
from precad.common.terminal import upper

Log = pytest.LogCaptureFixture
D = 8
WORK_S = 7.0
TASK = tasks.task_with({"deadlines.work": WORK_S}, D)
ROUNDS = (Open(0, 0), Over(0, 0), Open(1, 1, selected=False), Over(1, 1, counted=False))


def model_of(version: int) -> Model:
    return tasks.model_at(TASK, np.full(D, float(version)), version)


def ended(version: int, spent: Counter[SampledGaussian] | None = None) -> VersionOver:
    step = poisson_gaussian(rate=0.2, noise_multiplier=2.0)
    spent = spent or Counter({step: version + 1})
    return VersionOver(
        version=version,
        attempt=version + 2,
        submission="0123456789ab",
        drawn=True,
        counted=True,
        rejected="",
        seconds=1.5,
        spent=spent,
    )


class Listening(TypedDict, total=False):
    """What an owner gives a reporter."""

    on_round: shown_by.OnRound
    validate: shown_by.Validate
    note: Callable[[str], object]


def told_of(
    versions: Iterable[int],
    spent: Counter[SampledGaussian] | None = None,
    folder: Path | None = None,
    **listening: Unpack[Listening],
) -> Reporter:
    with Reporter(TASK, folder=folder, **listening) as reporter:
        for version in versions:
            reporter.over(ended(version, spent))
    return reporter


def play(
    folder: Path, task: Task = TASK, **given: Unpack[Listening]
) -> tuple[Owner, Participation, Reporter]:
    folder.mkdir()
    owner = Owner(Script(task, list(ROUNDS)), folder)
    reporter = Reporter(task, folder=folder, **given)
    owner.observer = reporter
    with reporter:
        result = owner.run()
    return owner, result, reporter


def test_a_rounds_line_has_the_declared_number_of_owners_and_one(caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    step = poisson_gaussian(rate=0.2, noise_multiplier=2.0, owners=2)
    reporter = told_of([0], Counter({step: 20}))
    (told,) = reporter.history
    at_one = composed(replace(step, owners=1).times(20)).epsilon(1e-5)
    at_two = composed(step.times(20)).epsilon(1e-5)
    assert told.epsilon == pytest.approx(at_two)
    assert at_two > at_one
    both = f"ε {upper(at_two, 3)} at up to 2 owners (ε = {upper(at_one)} at one) spent"
    assert both in caplog.text


def test_each_round_is_told_with_its_cost(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    told: list[RoundInfo] = []
    validate = Mock(
        side_effect=lambda model, _: Evaluation(
            records=3, loss=model.version / 8, accuracy=0.9876
        )
    )
    _, result, reporter = play(
        tmp_path / "own", on_round=told.append, validate=validate
    )
    assert reporter.history == told
    assert [
        (r.number, r.rounds, r.drawn, r.counted, r.rejected, r.seconds) for r in told
    ] == [
        (1, TASK.training.rounds, True, True, "", WORK_S),
        (2, TASK.training.rounds, False, False, "", 0.0),
    ]
    assert [each.model for each in reporter.history] == [None, None]
    assert told[0].epsilon == told[1].epsilon == pytest.approx(result.epsilon)
    path = tmp_path / "own" / HISTORY_FILE
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    kept = [(row["round"], row["drawn"], row["counted"]) for row in rows]
    assert kept == [("1", "True", "True"), ("2", "False", "False")]
    assert path.stat().st_mode & 0o777 == 0o600
    # A line a round goes to the log, and nothing of the held-out records.
    lines = [r.getMessage() for r in caplog.records if r.name == "precad.rounds"]
    begun = [line.split(";")[0] for line in lines]
    assert begun == ["round 1 of 10: counted", "round 2 of 10: not drawn"]
    assert not [each for each in ("0.125", "0.25") if each in caplog.text]
    assert "98.8" not in "".join(lines), "a submission's id may hold 98"
    # The newest model is tried on them.
    assert result.model is not None
    assert validate.call_args.args[0].version == result.model.version == 2
    assert reporter.validation == Evaluation(records=3, loss=0.25, accuracy=0.9876)
    for each in told:
        model, tried = each.model, each.validation
        assert tried == (
            None
            if model is None
            else Evaluation(records=3, loss=model.version / 8, accuracy=0.9876)
        )


def test_a_model_that_a_newer_one_has_followed_is_neither_tried_nor_kept() -> None:
    validate, told = (
        Mock(return_value=Evaluation(records=1, loss=0.0, accuracy=None)),
        list[RoundInfo](),
    )
    with Reporter(TASK, validate=validate, on_round=told.append) as reporter:
        reporter.hold()
        for version in range(4):
            reporter.saw(model_of(version + 1))
            reporter.over(ended(version))
    assert [call.args[0].version for call in validate.call_args_list] == [4]
    assert [None if r.model is None else r.model.version for r in told] == [
        None,
        None,
        None,
        4,
    ]


def test_a_callback_that_raises_stops_nothing_and_is_not_quoted(
    tmp_path: Path, caplog: Log
) -> None:
    for error in (ValueError("accuracy 0.4321"), SystemExit(3), KeyboardInterrupt()):
        name = type(error).__name__
        _, result, reporter = play(tmp_path / name, on_round=Mock(side_effect=error))
        assert (result.ended, result.counted) == ("finished", 1)
        assert reporter.failures == len(reporter.history) == 2
        assert reporter.first_failure is error
        warnings = [
            r.getMessage() for r in caplog.records if r.levelno == logging.WARNING
        ]
        assert any(f"on_round raised {name} after round 1" in line for line in warnings)
    assert "0.4321" not in caplog.text


@pytest.mark.parametrize("cover", [False, True], ids=["as drawn", "covered"])
def test_nothing_shows_of_who_watches_an_owner(
    tmp_path: Path, caplog: Log, *, cover: bool
) -> None:
    """Messages and times are the same, to the byte and to the instant of the clock.

    Held-out records don't show in the log either: a server may serve a model at which
    they raise. Their owner reads it in its private log.
    """
    task = tasks.task_with(
        {"deadlines.work": WORK_S, "privacy.cover_uploads": cover}, D
    )
    seen, notes, lines = [], list[str](), dict[str, list[str]]()
    raising, validating = (
        Mock(side_effect=ValueError),
        Mock(return_value=Evaluation(records=1, loss=0.5, accuracy=0.5)),
    )
    failing = Mock(side_effect=MemoryError("record 7"))
    ways: dict[str, Listening] = {
        "alone": {},
        "watched": {"on_round": raising, "validate": validating},
        "failing": {"validate": failing, "note": notes.append},
        "slow": {"on_round": lambda _: threading.Event().wait(0.05)},
    }
    for name, listening in ways.items():
        caplog.clear()
        owner, result, _ = play(tmp_path / name, task, **listening)
        lines[name] = [record.getMessage() for record in caplog.records]
        script = owner.script
        at = [each.at for each in script.sent]
        seen.append((script.calls, at, script.clock.slept, result.submitted))
    assert all(each == seen[0] for each in seen)
    assert WORK_S in seen[0][1]
    assert lines["failing"] == lines["alone"]
    # Where this machine is slow a model is passed over for the next one.
    assert {note.partition(": ")[2] for note in notes} == {
        "held-out records can't be tried (MemoryError: record 7)"
    }


def test_what_is_slow_waits_while_an_upload_is_due() -> None:
    said: list[str] = []
    at_a_chunk, over = threading.Event(), threading.Event()

    def validate(model: Model, between: Callable[[], object]) -> Evaluation:
        for chunk in range(3):
            at_a_chunk.set()
            over.wait(60)
            between()
            said.append(f"chunk {chunk} of {model.version}")
        return Evaluation(records=1, loss=0.0, accuracy=None)

    with Reporter(
        TASK, validate=validate, on_round=lambda _: said.append("told")
    ) as reporter:
        reporter.saw(model_of(1))
        reporter.over(ended(0))
        assert at_a_chunk.wait(60)
        reporter.hold()
        over.set()
        # The thread comes to the next chunk's gate and stands there.
        assert not threading.Event().wait(0.2)
        assert said == []
        reporter.free()
    assert said == ["chunk 0 of 1", "chunk 1 of 1", "chunk 2 of 1", "told"]


def test_an_interrupted_owner_waits_for_no_callback() -> None:
    gate = threading.Barrier(2)

    def interrupted() -> None:
        with Reporter(TASK, on_round=lambda _: gate.wait(60)) as reporter:
            reporter.over(ended(0))
            waiting.until(lambda: gate.n_waiting, "the callback")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gate.n_waiting == 1
    gate.abort()


def test_a_round_told_again_has_one_line(tmp_path: Path, caplog: Log) -> None:
    path = tmp_path / HISTORY_FILE
    for versions in ((0, 1), (1, 2)):
        told_of(versions, folder=tmp_path)
    lines = path.read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["round", "1", "2", "3"]
    path.unlink()
    path.mkdir()
    assert [info.number for info in told_of([0], folder=tmp_path).history] == [1]
    assert "can't be written" in caplog.text
    # Of an account over many tasks not every round adds up again.
    kinds = [
        poisson_gaussian(rate=0.1, noise_multiplier=2 + kind / 10) for kind in range(17)
    ]
    history = told_of(range(3), Counter(kinds)).history
    assert [info.epsilon is None for info in history] == [False, True, False]


NOON = 1000.0


@pytest.fixture
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_by, "time", SimpleNamespace(monotonic=lambda: NOON))


def info(number: int = 12, **changes: object) -> RoundInfo:
    usual: Document = {
        "drawn": True,
        "counted": True,
        "rejected": "",
        "epsilon": 0.9312,
        "at_owners": "",
    }
    return RoundInfo(
        number=number,
        rounds=400,
        **usual | {"epsilon_limit": 4.0, "seconds": 2.0} | changes,
    )


def test_rounds_are_missed_where_nothing_was_heard_of_an_owner(tmp_path: Path) -> None:
    history = tmp_path / HISTORY_FILE
    assert rounds_missed(history, 10) == 0, "without a file nothing is known"
    rows = (
        "True,True,",  # counted
        "False,False,",  # not drawn
        "True,False,norm-exceeded",  # there, and refused
        "True,False,absent",
        "True,False,",  # sent nothing
    )
    lines = [f"abc,{number},{row}\n" for number, row in enumerate(rows, start=1)]
    history.write_text("task,round,drawn,counted,rejected\n" + "".join(lines), "utf-8")
    # Five more have no row: they ended while it was away.
    assert rounds_missed(history, 10) == 2 + 5


@pytest.mark.usefixtures("at_noon")
def test_a_terminal_shows_the_round(capsys: pytest.CaptureFixture[str]) -> None:
    out = terminal.Terminal()
    display = shown_by.TerminalDisplay("ward-3", 400, out)
    display.start()
    display.round(info())
    display.doing("waiting for server A", NOON + 110)
    display.stop()
    for words in (
        "ward-3: round",
        "12/400",
        "counted; ε 0.932 of 4 spent",
        "server A, 110 s left",
    ):
        assert words in out.getvalue()
    for changes, words in (
        ({"counted": False, "rejected": "absent"}, "rejected (absent)"),
        ({"counted": False, "drawn": False}, "not drawn"),
        (
            {"validation": Evaluation(records=50, loss=0.2, accuracy=0.912)},
            "loss 0.2, 91.2% right on own held-out records",
        ),
        (
            {"validation": Evaluation(records=50, loss=0.2, accuracy=None)},
            "loss 0.2 on own held-out records",
        ),
        ({"epsilon": None}, "counted"),
    ):
        display.last = info(**changes)
        assert words in display.result()
    # Where nobody looks nobody is shown anything.
    assert not sys.stderr.isatty()
    for how in ({}, {"wanted": False}, {"wanted": True}):
        assert display_for("ward-3", 400, **how) is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("at_noon")
def test_a_notebook_gets_one_output_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """IPython isn't needed for it: what is used of it is three names."""
    display, ipython, drawing = (
        Mock(),
        ModuleType("IPython"),
        ModuleType("IPython.display"),
    )
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=1)
    vars(drawing).update(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", drawing)
    found = display_for("ward-<3>", 400)
    assert isinstance(found, shown_by.NotebookDisplay)
    found.start()
    found.doing("waiting for server A", NOON + 60)
    assert "waiting for server A, 60 s left" in found.markup()
    found.round(info(400))
    found.stop()
    assert display.call_args.kwargs == {"display_id": True}
    shown = display.return_value.update.call_args.args[0]
    for words in ('<progress max="400" value="400"', "ward-&lt;3&gt;: round 400/400"):
        assert words in shown
    assert "waiting" not in shown
