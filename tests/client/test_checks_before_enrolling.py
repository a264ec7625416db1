"""What `DataOwner.check` and the doctor look at, one by one; all together on a real system in
tests/integration/deployment/test_first_mistakes.py.
"""

import os
import socket
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.keys import identity
from tests.rig.tasks import task_with
from torch.nn import functional

from precad.client import check_before_enrolling as checks
from precad.client.account_file import ACCOUNT_FILE
from precad.client.check_before_enrolling import Findings, Kind
from precad.client.connection import ServerState
from precad.client.gradients.torch_models import logistic, model_section
from precad.client.own_account import OwnAccount
from precad.client.records.torch_records import as_records
from precad.common.errors import PrecadError
from precad.common.files import state_lock
from precad.common.identifiers import ClientId, Role
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task

WARD = ClientId("ward-1")
A, B = Role.SERVER_A, Role.SERVER_B


def test_an_attempt_that_fails_is_a_finding_and_a_bug_stays_loud() -> None:
    findings = Findings()

    def wrong() -> int:
        raise PrecadError("mend it")

    assert [findings.attempt("data", each) for each in (wrong, lambda: 7)] == [None, 7]
    assert [findings.passes("data", each) for each in (wrong, lambda: None)] == [False, True]
    assert [each.text for each in findings.wrong] == ["mend it", "mend it"]
    with pytest.raises(ZeroDivisionError):
        findings.attempt("data", lambda: 1 // 0)


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        addresses = {A: address, B: address}
        look = checks.look_at_servers(
            None, WARD, identity(Principal.client(WARD.name)), addresses, 0.5
        )
        findings = look()
    assert [each.kind for each in findings] == [Kind.BAD, Kind.BAD]
    assert all("didn't answer within 0.5 s" in each.text for each in findings)


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        ({"enrolling": True}, Kind.GOOD, "enrolment is open"),
        ({"enrolled": True}, Kind.GOOD, "this client is enrolled"),
        (
            {"enrolling": True, "refusal": "this server knows no such token; ask\x1b[2J"},
            Kind.BAD,
            "server A at a:1 wouldn't enrol this client: this server knows no such token; ask [2J",
        ),
        ({}, Kind.BAD, "too late"),
        ({"enrolled": True, "finished": True}, Kind.NOTE, "training at a:1 is finished"),
        # Its own process may be about to end.
        ({"enrolled": True, "finished": True, "present": True}, Kind.NOTE, "is finished"),
        ({"finished": True}, Kind.BAD, "is finished, without client ward-1: ask the operator"),
        ({"enrolled": True, "present": True}, Kind.BAD, "another process takes part"),
    ],
)
def test_where_a_training_stands_is_said(reply: dict[str, Any], kind: Kind, said: str) -> None:
    found = checks._standing("server A", "a:1", WARD, ServerState(**reply))
    assert found.kind is kind
    assert said in found.text


FAR = 3 * checks.SKEW_S


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        ({A: 1.0, B: -1.0}, "agrees"),
        ({A: FAR, B: FAR + 5}, "this machine's clock is 0:03:00 h behind the servers'"),
        ({A: -FAR}, "this machine's clock is 0:03:00 h ahead of the servers'"),
        ({A: FAR, B: 0.0}, "the clock of server A is 0:03:00 h ahead of this machine's"),
    ],
)
def test_the_clock_that_is_off_is_named(ahead: dict[Role, float], said: str) -> None:
    (found,) = checks._clocks(ahead)
    assert said in found.text
    assert (found.kind is Kind.GOOD) == ("agrees" in said)
    assert checks._clocks({}) == []


def test_a_state_folder_in_use_and_a_full_disk_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        (found,) = checks.look_at_state(task_with({}), tmp_path, None).wrong
        return found.text

    assert not checks.look_at_state(task_with({}), tmp_path / "new" / "state", None).wrong
    assert not (tmp_path / "new").exists()
    with state_lock(tmp_path):
        assert "another process takes part" in said()
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 -- as shutil's
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(9, 9, 1000))
    assert "is full" in said()
    assert "make room for 1 MB" in said()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    (found,) = checks.look_at_state(task_with({}), tmp_path / "state", None).wrong
    assert "can't be written (Permission denied)" in found.text


def of_limit(task: Task, account: OwnAccount) -> tuple[Kind, str]:
    (found,) = checks.look_at_limit(task, account)
    return found.kind, found.text


def test_a_limit_says_how_many_rounds_it_allows_and_whether_it_leaves_room(tmp_path: Path) -> None:
    task, short = task_with({"training.rounds": 400}), task_with({"training.rounds": 40})
    account = OwnAccount(task, 0.2, 2.0, tmp_path / ACCOUNT_FILE, WARD)
    left = account.rounds_left(400)
    assert 1 < left < 400
    kind, said = of_limit(task, account)
    assert (kind, f"allows {left} of the task's 400 rounds" in said) == (Kind.NOTE, True)
    # It is the number that is really allowed.
    for version in range(left):
        account.charge(version)
    assert (account.rounds_left(400), account.allows(left)) == (0, False)
    ample = OwnAccount(short, 0.2, 50.0, None, WARD)
    assert of_limit(short, ample)[0] is Kind.GOOD
    needed = ample.ample()
    _, said = of_limit(short, OwnAccount(short, 0.2, needed - 0.05, None, WARD))
    assert "allows 40 of the task's 40 rounds, and goes to this task alone" in said
    assert f"an epsilon_limit of {needed:.2f} or more" in said


@pytest.mark.parametrize(("wait_s", "kind"), [(10_000.0, Kind.GOOD), (0.0, Kind.NOTE)])
def test_an_owner_is_told_whether_its_work_ends_before_uploads(wait_s: float, kind: Kind) -> None:
    model = logistic(4, 3)
    changes = {"model": model_section(model, "logistic"), "deadlines.work": wait_s}
    task = task_with(changes | {"deadlines.collect": 20_000.0})
    records = as_records((np.ones((20, 4), np.float32), np.zeros(20, np.int64)))
    found = checks.look_at_owner(task, WARD, records, 0.2, model, functional.cross_entropy)
    (pace,) = (each for each in found if each.about == "pace")
    assert (pace.kind, "deadlines.work" in pace.text) == (kind, kind is Kind.NOTE)
    assert found.wrong == ()
