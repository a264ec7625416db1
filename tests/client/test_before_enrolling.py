"""Before enrolment: which records, models and losses an owner is told can't be used,
what else `DataOwner.check` and the doctor look at, one by one, and which code runs at
all: beside an owner's settings, which a kit may have brought, it does once its owner
allowed it.

Models and losses that people bring: test_record_gradients.py; all on a real system:
tests/integration/deployment/test_first_mistakes.py.
"""

import functools
import importlib.util
import os
import py_compile
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.rig import commands, hostile_pairs, keys, model_corpus, refusals
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import task_of, task_with
from tests.rig.terminal import Terminal
from torch import nn
from torch.nn import functional

from precad.client import account_file, allowed_code, owner_settings, server_state
from precad.client import check_before_enrolling as checks
from precad.client.check_before_enrolling import Findings, Kind
from precad.client.gradients import (
    local_update,
    record_gradients,
    rehearsal,
    torch_models,
)
from precad.client.gradients.objectives import Loss
from precad.client.own_account import OwnAccount
from precad.client.records.torch_records import as_records
from precad.common import errors, files, identifiers
from precad.common.identity.party_certificate import Principal

N = 20
WEIGHTS = torch.tensor([0.1, 1.0, 5.0])
GENERATOR = np.random.default_rng(1)
X = GENERATOR.normal(size=(N, 6)).astype(np.float32)
Y = GENERATOR.integers(0, 3, N)
cross_entropy = functional.cross_entropy


def linear(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, outputs))


def check(
    model: nn.Module, loss: Loss, x: object, y: object, initial: str = "zeros"
) -> None:
    rehearsal.rehearse(
        model, loss, as_records((x, y)), task_of(model, initial), most=14
    )


def refused(said: str, model: nn.Module, loss: Loss, *records: object) -> None:
    refusals.refused(said, check, model, loss, *records)


@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_that_is_no_class_is_named(label: int) -> None:
    y, smooth = (
        np.where(np.arange(N) == 13, label, Y),
        nn.CrossEntropyLoss(label_smoothing=0.1),
    )
    for loss in (cross_entropy, nn.CrossEntropyLoss(reduction="none"), smooth):
        refused(f"target of record 13 = {label}.*from 0 to 2", linear(), loss, X, y)


def test_what_only_trying_finds_is_named() -> None:
    def own(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 2 * cross_entropy(outputs, targets)

    # A loss of one's own, and a table.
    y = np.where(np.arange(N) == 13, 3, Y)
    refused(r"record 13.*can't take it.*mend", linear(), own, X, y)
    model: nn.Module = nn.Sequential(
        nn.Embedding(50, 2), nn.Flatten(), nn.Linear(12, 3)
    )
    tokens = GENERATOR.integers(0, 50, (N, 6))
    check(model, cross_entropy, tokens, Y)
    tokens[17, 2] = 50
    refused(r"record 17.*IndexError", model, cross_entropy, tokens, Y)
    # Parts of a record may be left without a label, but not all.
    model = nn.Conv1d(1, 3, 1)
    x, y = X[:, None, :], np.tile(Y[:, None], (1, 6))
    y[4, 1:] = -100
    check(model, cross_entropy, x, y)
    y[4] = -100
    refused("loss of record 4 = nan", model, cross_entropy, x, y)
    y[4] = 0
    y[4, 2] = 7
    refused(r"target\[2\] of record 4 = 7", model, cross_entropy, x, y)
    # A loss that overflows does so once parameters aren't zero.
    x, y = X.copy(), X[:, :1]
    x[11] = 3e38
    check(linear(1), functional.mse_loss, x, y)
    said = r"loss of record 11 = inf.*mend this record"
    refused(said, linear(1), functional.mse_loss, x, y, "uniform")
    # Shapes and types that don't fit are told in words.
    refused(
        "labels are whole numbers", linear(), cross_entropy, X, Y.astype(np.float32)
    )
    for inputs, targets in ((X[:, :5], Y), (X, X), (X.astype(np.int64), Y)):
        refused("don't go together", linear(), cross_entropy, inputs, targets)


def pairs(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Neighbours in the batch are two views of one thing (as NT-Xent has it)."""
    unit = functional.normalize(outputs, dim=1)
    partner = (
        torch.arange(len(outputs)) ^ 1
        if len(outputs) > 1
        else torch.zeros(1, dtype=torch.int64)
    )
    return cross_entropy(unit @ unit.T / 0.1, partner)


CALLS = count(1)
CENTRED = model_corpus.Own(lambda m, x: m.head(x - x.mean(dim=0) / 2))
"""Batch statistics without being a known layer."""
REMEMBERING = model_corpus.Own(lambda m, x: m.head(x * next(CALLS)))
"""What it gives depends on what it saw before, and it keeps that outside of buffers."""


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (linear(), pairs),
        (
            linear(),
            lambda out, y: (
                cross_entropy(out, y) + (out - out.mean(dim=0)).square().sum()
            ),
        ),
        *((model, cross_entropy) for model in (CENTRED, REMEMBERING)),
    ],
    ids=["pairs", "spread", "centred", "remembering"],
)
def test_what_mixes_records_is_refused_with_a_way_out(
    model: nn.Module, loss: Loss
) -> None:
    refused(r"mixes the records.*reduction='sum'", model, loss, X, Y)


class Weighted(nn.Module):
    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = self.loss(outputs, targets)
        return own + 0.01 * outputs.square().sum()


LABELS = np.maximum(Y, 1)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_losses_of_each_record_alone_are_taken() -> None:
    for loss, targets in (
        (nn.MSELoss(reduction="none"), X[:, :3]),
        (Weighted(nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none")), LABELS),
        (lambda outputs, y: cross_entropy(outputs.flip(1), y, ignore_index=0), LABELS),
    ):
        check(linear(), loss, X, targets)


def test_class_weights_that_would_do_nothing_are_refused() -> None:
    """A record's weighted mean is w·l/w: the model was the same to the bit, and nobody
    said so."""
    for loss in (
        nn.NLLLoss(weight=WEIGHTS),
        lambda outputs, targets: cross_entropy(outputs, targets, WEIGHTS),
        lambda outputs, targets: functional.nll_loss(
            outputs.log_softmax(1), targets, WEIGHTS
        ),
        Weighted(nn.CrossEntropyLoss(weight=WEIGHTS)),
        functools.partial(cross_entropy, weight=WEIGHTS),
        functools.partial(functional.nll_loss, weight=WEIGHTS, reduction="mean"),
    ):
        refused(
            r"weights cancel in one record's.*new --balance.*1 and less",
            linear(),
            loss,
            X,
            Y,
        )


def test_the_rehearsal_leaves_the_model_as_it_was_which_must_be_on_the_processor() -> (
    None
):
    model = linear().eval()
    before = [p.clone() for p in model.parameters()]
    check(model, cross_entropy, X, Y)
    assert not model.training
    assert all(
        torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)
    )
    elsewhere = nn.Sequential(nn.Flatten(), nn.Linear(6, 3, device="meta"))
    said = r"model, 1.weight = 'meta': .*give model.cpu\(\)"
    refusals.refused(said, rehearsal.check_processor, elsewhere)


WARD = identifiers.ClientId("ward-1")
A, B = identifiers.Role.SERVER_A, identifiers.Role.SERVER_B


def test_an_attempt_that_fails_is_a_finding_and_a_bug_stays_loud() -> None:
    findings, wrong = Findings(), Mock(side_effect=errors.PrecadError("mend it"))
    assert [findings.attempt("data", each) for each in (wrong, lambda: 7)] == [None, 7]
    assert [findings.passes("data", each) for each in (wrong, lambda: None)] == [
        False,
        True,
    ]
    assert [each.text for each in findings.wrong] == ["mend it", "mend it"]
    with pytest.raises(ZeroDivisionError):
        findings.attempt("data", lambda: 1 // 0)


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        addresses = {A: address, B: address}
        own = keys.identity(Principal.client(WARD.name))
        findings = checks.look_at_servers(None, WARD, own, addresses, 0.5)()
    assert len(findings.wrong) == 2
    assert all("didn't answer within 0.5 s" in each.text for each in findings)


def test_where_a_training_stands_is_said() -> None:
    enrolled, finished, present = (
        {each: True} for each in ("enrolled", "finished", "present")
    )
    refusal = {"enrolling": True, "refusal": "no; ask\x1b[2J"}
    for reply, kind, said in (
        ({"enrolling": True}, Kind.GOOD, "enrolment is open"),
        (enrolled, Kind.GOOD, "this client is enrolled"),
        (refusal, Kind.BAD, "server A at a:1 wouldn't enrol this client: no; ask [2J"),
        ({}, Kind.BAD, "too late"),
        (enrolled | finished, Kind.NOTE, "training at a:1 is finished"),
        # Its own process may be about to end.
        (enrolled | finished | present, Kind.NOTE, "is finished"),
        (finished, Kind.BAD, "is finished, without client ward-1: ask the operator"),
        (enrolled | present, Kind.BAD, "another process takes part"),
    ):
        state = server_state.ServerState(**reply)
        found = checks._server_finding(A, "a:1", WARD, state)
        assert (found.kind, said in found.text) == (kind, True), found


FAR = 3 * checks.SKEW_S


def test_the_clock_that_is_off_is_named() -> None:
    for ahead, said in (
        ({A: 1.0, B: -1.0}, "agrees"),
        ({A: FAR, B: FAR + 5}, "this machine's clock is 0:03:00 h behind the servers'"),
        ({A: -FAR}, "this machine's clock is 0:03:00 h ahead of the servers'"),
        (
            {A: FAR, B: 0.0},
            "the clock of server A is 0:03:00 h ahead of this machine's",
        ),
    ):
        (found,) = checks._clock_findings(ahead)
        assert (said in found.text, found.kind is Kind.GOOD) == (True, said == "agrees")


def test_a_folder_in_use_or_full_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        (found,) = checks.look_at_state(task_with({}), tmp_path, None).wrong
        return found.text

    assert not checks.look_at_state(
        task_with({}), tmp_path / "new" / "state", None
    ).wrong
    assert not (tmp_path / "new").exists()
    with files.state_lock(tmp_path), files.state_lock(None), files.state_lock(None):
        assert "another process takes part" in said()
    (tmp_path / "file").touch()
    (found,) = checks.look_at_state(
        task_with({}), tmp_path / "file" / "state", None
    ).wrong
    assert "can't be written (Not a directory)" in found.text
    room = SimpleNamespace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: room)
    assert "is full" in said()
    assert "make room for 1 MB" in said()


def test_a_limit_says_how_many_rounds_it_allows_and_whether_it_leaves_room(
    tmp_path: Path,
) -> None:
    task, short = (
        task_with({"training.rounds": 400}),
        task_with({"training.rounds": 40}),
    )
    account = OwnAccount(task, 0.2, 2.0, tmp_path / account_file.ACCOUNT_FILE, WARD)
    left = account.rounds_left(400)
    assert 1 < left < 400
    (found,) = checks.look_at_limit(task, account)
    assert found.kind is Kind.NOTE
    assert f"allows {left} of the task's 400 rounds" in found.text
    # It is the number that is really allowed.
    for version in range(left):
        account.charge(version)
    assert (account.rounds_left(400), account.allows(left)) == (0, False)
    ample = OwnAccount(short, 0.2, 50.0, None, WARD)
    assert [each.kind for each in checks.look_at_limit(short, ample)] == [Kind.GOOD]
    needed = ample.ample()
    (found,) = checks.look_at_limit(
        short, OwnAccount(short, 0.2, needed - 0.05, None, WARD)
    )
    assert (
        "allows 40 of the task's 40 rounds, and goes to this task alone" in found.text
    )
    assert f"an epsilon_limit of {needed:.2f} or more" in found.text


def test_an_owner_is_told_whether_its_work_ends_before_uploads() -> None:
    model = torch_models.logistic(4, 3)
    records = as_records((np.ones((20, 4), np.float32), np.zeros(20, np.int64)))
    for wait_s, kind in ((10_000.0, Kind.GOOD), (0.0, Kind.NOTE)):
        changes = {"deadlines.work": wait_s, "deadlines.collect": 20_000.0}
        task = task_with(
            {"model": torch_models.model_section(model, architecture="logistic")}
            | changes
        )
        found = checks.look_at_owner(
            task, WARD, records, 0.2, model=model, loss=functional.cross_entropy
        )
        (pace,) = (each for each in found if each.about == "pace")
        assert (pace.kind, "deadlines.work" in pace.text) == (kind, kind is Kind.NOTE)
        assert found.wrong == ()


def test_an_owner_is_asked_whether_records_of_one_target_alone_are_meant() -> None:
    model = torch_models.logistic(4, 3)
    section = torch_models.model_section(model, architecture="logistic")
    for labels, asked in (([1, 1, 1], True), ([1, 0, 1], False), ([1], False)):
        x = np.ones((len(labels), 4), np.float32)
        found = checks.look_at_owner(
            task_with({"model": section}),
            WARD,
            as_records((x, np.array(labels))),
            0.2,
            model=model,
            loss=functional.cross_entropy,
        )
        notes = [each.text for each in found if each.about == "data"]
        assert any("have the same target" in text for text in notes) is asked
        assert found.wrong == ()


def test_a_doctor_wants_three_times_the_work_at_the_slowest_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that goes on with each kernel, and more where exp gives denormal numbers."""
    model = torch_models.logistic(4, 3)
    records = as_records((np.ones((20, 4), np.float32), np.zeros(20, np.int64)))
    passed, kernel = [0.0], record_gradients.RecordGradients.kernel

    def slow(self: Any, named: Any, *given: Any, **more: Any) -> Any:
        bias = named["1.bias"]
        passed[0] += 2.0 if bool((bias == -94).all()) else 0.5
        return kernel(self, named, *given, **more)

    monkeypatch.setattr(record_gradients.RecordGradients, "kernel", slow)
    clock = SimpleNamespace(perf_counter=lambda: passed[0])
    monkeypatch.setattr(local_update, "time", clock)
    section = torch_models.model_section(model, architecture="logistic")
    for wait_s, kind in ((6.0, Kind.GOOD), (5.9, Kind.NOTE)):
        task = task_with({"model": section, "deadlines.work": wait_s})
        found = checks.look_at_owner(
            task, WARD, records, 0.2, model=model, loss=functional.cross_entropy
        )
        (pace,) = (each for each in found if each.about == "pace")
        assert (pace.kind, "takes 2 s here" in pace.text) == (kind, True)
        assert ("be 6 or more" in pace.text) == (kind is Kind.NOTE)
    # A new task has that of records that are made up.
    assert rehearsal.made_up_work_s(model, task, (4,), 20) == 2.0


def test_any_operation_is_taken_where_every_record_alone_fits_the_wait() -> None:
    model, loss, targets, _ = hostile_pairs.PAIRS["inverse"]
    records = hostile_pairs.records_for(targets)
    section = torch_models.model_section(
        model, architecture="custom", initial="uniform"
    )
    changes = {"model": section, "training.any_operations": True}
    changes["deadlines.collect"] = 20_000.0
    given = model, loss, records
    with pytest.raises(
        errors.Misconfiguration, match=r"deadlines.work = 0.001.*each computed alone"
    ):
        rehearsal.rehearse(*given, task_with(changes | {"deadlines.work": 0.001}), 100)
    task = task_with(changes | {"deadlines.work": 10_000.0})
    rehearsal.rehearse(*given, task, 100)
    plain = task_with({**changes, "training.any_operations": False})
    assert (
        plain.digest
        == task_with({"model": section, "deadlines.collect": 20_000.0}).digest
    )
    assert plain.digest != task.digest


RAN = (
    "from pathlib import Path\nPath({!r}).touch()\ndef loss(outputs, targets):\n   "
    " return 1\n"
)
SETTINGS = """client = "ward-1"
task = "task.toml"
identity = "keys"
server_a = "a.example:1"
server_b = "b.example:1"
data = "own.csv"
state = "state"
"""
CAME = ("beside_", "kit", "__pycache__", "turtle", "tkinter")
"""How modules that tests write, or load anew, begin."""


@dataclass(frozen=True, slots=True)
class Kit:
    """A settings' folder with code, and a home and a working folder beside it."""

    folder: Path
    patch: pytest.MonkeyPatch

    def write(self, name: str, code: str = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code or self.mark)
        return path

    @property
    def mark(self) -> str:
        return RAN.format(str(self.folder / "ran"))

    @property
    def ran(self) -> bool:
        return (self.folder / "ran").exists()

    def loss(self, place: str = "beside_settings:loss") -> Any:
        settings = self.folder / "settings.toml"
        settings.write_text(SETTINGS + f'loss = "{place}"\n')
        return owner_settings.JoinSettings.load(settings).own_loss()

    def refuses(
        self, place: str = "beside_settings:loss", said: str = "isn't allowed"
    ) -> None:
        (self.folder / "ran").unlink(missing_ok=True)
        refusals.refused(said, self.loss, place)
        assert not self.ran

    def answered(
        self, answer: str, place: str = "beside_settings:loss"
    ) -> tuple[Any, str]:
        """The loss, or why there is none, and what was shown at a terminal where this
        is typed."""
        shown = Terminal()
        with self.patch.context() as terminal:
            terminal.setattr(sys, "stdin", Terminal(answer))
            terminal.setattr(sys, "stderr", shown)
            try:
                return self.loss(place), shown.getvalue()
            except errors.Misconfiguration as refused:
                return str(refused), shown.getvalue()


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    for each in ("kit", "work", "home"):
        (tmp_path / each).mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    made = Kit(tmp_path / "kit", monkeypatch)
    made.write("beside_settings.py", f"import beside_settings_helper\n{made.mark}")
    made.write("beside_settings_helper.py", "\n")
    made.write("task.toml", task_to_toml(task_with({})))
    yield made
    for name in [each for each in sys.modules if each.startswith(CAME)]:
        del sys.modules[name]


def test_doctor_and_join_run_nothing_but_what_was_looked_at_and_allowed(
    kit: Kit,
) -> None:
    kit.refuses(said=r"loss = .*isn't allowed here.*allowed-code")
    for command in ("doctor", "join"):
        assert (
            commands.precad(command, "--config", kit.folder / "settings.toml").exit_code
            != 0
        )
    assert not kit.ran
    # On a terminal it is shown and asked.
    for answer in ("", "\n", "y\n"):
        found, shown = kit.answered(answer)
        allowed = answer == "y\n"
        assert (callable(found), kit.ran) == (allowed, allowed)
        assert allowed or "isn't allowed" in found
        assert "beside_settings.py, beside_settings_helper.py" in shown
        assert str(kit.folder) in shown
    assert len(allowed_code.allowed_file().read_text().split()) == 1
    assert callable(kit.loss())  # and nobody is asked
    kit.write("beside_settings_helper.py", "import this_is_new")
    kit.refuses()
    # Compiled code that came along isn't what was looked at either.
    kit.write("beside_settings_helper.py", "\n")
    compiled = kit.write("beside_settings_helper.pyc", "\0")
    kit.refuses()
    # No folder is left out.
    compiled.unlink()
    kit.write("__pycache__/beside_evil.py")
    kit.refuses("__pycache__.beside_evil:loss", "isn't shown")
    kit.write("../beside_elsewhere/evil.py")
    (kit.folder / "beside_linked").symlink_to(kit.folder.parent / "beside_elsewhere")
    kit.refuses("beside_linked.evil:loss", "isn't shown")


def test_code_where_the_owner_works_is_its_own(kit: Kit) -> None:
    for path in kit.folder.glob("*.py"):
        path.rename(kit.folder.parent / "work" / path.name)
    assert callable(kit.loss())
    assert not allowed_code.allowed_file().exists()


def test_code_is_no_more_its_owners_by_the_name_of_a_folder_or_a_module(
    kit: Kit,
) -> None:
    """From the folder above, a kit's archive is a package of its owner's by its
    look."""
    kit.patch.chdir(kit.folder.parent)
    kit.refuses("kit.beside_settings:loss")
    # The settings name what Python brings; what it imports in turn came with the kit.
    kit.patch.chdir(kit.folder)
    kit.write("tkinter/__init__.py")
    for name in [
        each for each in sys.modules if each.partition(".")[0] in ("turtle", "tkinter")
    ]:
        kit.patch.delitem(sys.modules, name)
    kit.refuses("turtle:Turtle", r"isn't allowed|can't be loaded")


def test_what_is_imported_later_is_what_was_looked_at_too(kit: Kit) -> None:
    """A layer may import when it is made; compiled code that came along says
    otherwise."""
    later = "def loss(*_):\n    from .later import found\n    return found\n"
    kit.write("beside_package/__init__.py", later)
    source = kit.write("beside_package/later.py", "found = 'looked at'\n")
    evil = kit.write("beside_package/evil.py", "found = 'not looked at'\n")
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir()
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), str(cached), invalidation_mode=mode)
    evil.unlink()
    loss, _ = kit.answered("y\n", "beside_package:loss")
    assert loss() == "looked at"
    assert kit.loss("beside_package:loss")() == "looked at"


def test_an_environment_beside_the_settings_is_installed_and_nobody_is_asked(
    kit: Kit,
) -> None:
    packages = kit.folder / "venv" / "site-packages"
    packages.parent.mkdir()
    kit.write("venv/site-packages/beside_installed.py")
    (packages / "beside_library.so").write_bytes(b"")
    os.truncate(packages / "beside_library.so", 2**27)
    kit.patch.syspath_prepend(packages)
    assert callable(
        kit.answered("y\n")[0]
    )  # the code beside them, however large a library is
    assert callable(kit.loss("beside_installed:loss"))
