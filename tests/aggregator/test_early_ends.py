"""A limit that ends owners before the last round is said before the start, and then."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.rig.aggregators import session_of
from tests.rig.commands import precad
from tests.rig.epsilons import record_epsilon
from tests.rig.keys import identity
from tests.rig.stores import charge
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import task_with

from precad.accounting.adversaries import Adversary
from precad.aggregator.enrol.register import Register
from precad.aggregator.rpc.server_metrics import Metrics
from precad.aggregator.store import open_store
from precad.aggregator.training.session import Session
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId, Role
from precad.common.identity.party_certificate import Principal
from precad.common.roster import Enrolment
from precad.common.task import Task

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
ROUNDS, RATE, NOISE, DELTA = 30, 0.2, 2.0, 1e-5


def limited(rounds: int, owner_rate: float = 1.0) -> Task:
    """A task whose limit lasts for so many participations at its rate, and no more."""
    limit = record_epsilon(
        record_rate=RATE,
        noise_multiplier=NOISE,
        delta=DELTA,
        participations=rounds,
    )
    changes = {
        "training.rounds": ROUNDS,
        "privacy.epsilon_limit": limit * 1.0001,
        "privacy.client_rate": owner_rate,
    }
    return task_with(changes)


def session(task: Task, folder: Path) -> Session:
    store = open_store("sqlite://", task, Role.SERVER_A)
    register = Register(task, store)
    register.enrol(Enrolment(ONE, 100, RATE))
    # At half of the rate the limit lasts to the end.
    register.enrol(Enrolment(TWO, 100, RATE / 2))
    return session_of(
        Role.SERVER_A,
        task,
        store,
        folder,
        register=register,
        identity=identity(Principal.service(Role.SERVER_A)),
    )


def test_of_enrolled_owners_those_are_told_whose_limit_ends_first(
    tmp_path: Path,
) -> None:
    server = session(limited(23), tmp_path)
    assert server.early_ends() == [23]
    shown = {metric.name: metric.samples for metric in Metrics(server).collect()}
    assert [each.value for each in shown["precad_owners_ending_early"]] == [1]
    # A charge without a round that it made costs the owner one of those that are left.
    server.store.attempts.learn([charge(0, 0, ONE)])
    assert server.early_ends() == [22]
    server.store.close()


def test_metrics_have_the_declared_number_of_owners_and_one(tmp_path: Path) -> None:
    server = session(task_with({"privacy.owners_per_unit": 2}), tmp_path)
    server.store.attempts.learn([charge(0, 0, ONE)])
    shown = {metric.name: metric.samples for metric in Metrics(server).collect()}
    at_two = {e.labels["adversary"]: e.value for e in shown["precad_epsilon"]}
    at_one = {
        e.labels["adversary"]: e.value for e in shown["precad_epsilon_at_one_owner"]
    }
    one_server = Adversary.ONE_SERVER.value
    alone = record_epsilon(
        record_rate=RATE,
        noise_multiplier=NOISE,
        delta=DELTA,
        participations=1,
    )
    assert at_one[one_server] == pytest.approx(alone)
    assert at_two[one_server] > at_one[one_server]
    server.store.close()
    alone_server = session(task_with({}), tmp_path)
    names = [metric.name for metric in Metrics(alone_server).collect()]
    assert "precad_epsilon_at_one_owner" not in names
    alone_server.store.close()


def test_an_owner_without_an_account_is_told_and_stops_no_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = session(limited(30), tmp_path)
    assert server.early_ends() == []
    error = Misconfiguration("record_rate", RATE, "no account")
    monkeypatch.setattr(server.register.cap, "left", Mock(side_effect=error))
    assert server.early_ends() == [0, 0]
    server.store.close()


@pytest.mark.parametrize(
    ("lasts", "owner_rate", "before"),
    [(23, 1.0, 23), (9, 0.5, 18), (15, 0.5, None), (30, 1.0, None)],
)
def test_a_task_is_checked_for_a_limit_that_ends_before_its_last_round(
    tmp_path: Path, lasts: int, owner_rate: float, before: int | None
) -> None:
    file = tmp_path / "task.toml"
    file.write_text(task_to_toml(limited(lasts, owner_rate)), encoding="utf-8")
    done = precad("task", "check", file)
    assert done.exit_code == 0
    assert ("epsilon_limit is expected to end owners" in done.stderr) is bool(before)
    if before is not None:
        assert f"before round {before} of {ROUNDS} (the first is 0)" in done.stderr


def test_a_least_number_leaves_other_digests_and_does_not_go_with_a_hidden_coin() -> (
    None
):
    plain = task_with({})
    wished = task_with({"training.least_counted": 2})
    assert b"least_counted" not in plain.canonical
    assert b'"least_counted":2' in wished.canonical
    assert plain.digest != wished.digest
    for change in (
        {"training.least_counted": plain.enrolment.clients + 1},
        {"training.least_counted": 2, "privacy.cover_uploads": True},
    ):
        with pytest.raises(Misconfiguration, match=r"training\.least_counted"):
            task_with(change)
