"""OpenWatches of real servers, and enrolment by token."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.integration.service.conftest import (
    DEADLINE_S,
    ONE,
    TWO,
    A,
    B,
    Deploy,
    Deployed,
    notice_of,
    reasons,
)
from tests.rig.clock import LeapingClock
from tests.rig.waiting import until

from precad.aggregator.enrol.admission import ByToken, new_token, token_digest
from precad.aggregator.training.session import RoundDone
from precad.client.check_before_enrolling import Kind, look_at_servers
from precad.client.connection import NAME_FREE_S
from precad.common.errors import AccessDenied, NameInUse, PrecadError
from precad.common.identifiers import Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.party_certificate import Principal
from precad.common.roster import Enrolment, Roster, on_grid
from precad.common.wire.messages import Notice, RoundOpen, RoundOver, check_opening, check_statement
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

Code = grpc.StatusCode


def signed_with(notices: Iterator[Notice]) -> bytes:
    notice = next(notices)
    assert isinstance(notice, RoundOpen | RoundOver)
    return notice.signed or b""


def test_notices_hold_what_a_server_signs_at_that_time_and_for_whom(deployed: Deployed) -> None:
    session = deployed.sessions[A]
    opened = notice_of(session)
    done = RoundDone(opened.opened, frozenset((ONE,)), {}, opened.opened.model, 1)
    with deployed.connect(ONE) as one, deployed.connect(TWO) as two:
        # No attempt is open: who wants to know why asks.
        session.event_log.publish(opened)
        assert not signed_with(one.watch())
        deployed.open_round()
        opening = check_opening(one.verifier, A, signed_with(one.watch()))
        assert (opening.client, opening.attempt, opening.charges) == (ONE.name, 0, 0)
        assert not signed_with(two.watch())
        session.event_log.publish(done)
        for client, servers in ((ONE, one), (TWO, two)):
            statement = check_statement(servers.verifier, A, signed_with(servers.watch()))
            assert (statement.client, statement.version) == (client.name, 0)


def test_a_revoked_client_loses_its_open_watch_and_nobody_waits_for_it(
    tmp_path: Path, make_task: Any
) -> None:
    """It held every round to its deadline, for as long as it kept its watch."""
    create_local_keys(tmp_path / "own", [ONE.name, TWO.name])
    keys = tmp_path / "own"
    parties = {role: Identity.load(keys / role.value) for role in (A, B)}
    owners = {client: Identity.load(keys / client.name) for client in (ONE, TWO)}
    deployed = Deployed(tmp_path, make_task(8), parties, owners)
    try:
        session = deployed.sessions[A]
        session.event_log.publish(notice_of(session))
        with deployed.connect(ONE) as bad, deployed.connect(TWO) as good:
            watches = {ONE: bad.watch(), TWO: good.watch()}
            for watch in watches.values():
                assert isinstance(next(watch), RoundOpen)
            deployed.open_round()
            deployment = Deployment.open(keys)
            deployment.revoke(deployment.current_serials(Principal.client(ONE.name)))
            assert reasons(good.submit(deployed.pair(good))) == [None, None]
            gone = session.connected_clients.gone
            until(lambda: session.inbox.over([ONE, TWO], gone), "the round's end without it")
            with pytest.raises(AccessDenied, match="revoked"):
                next(watches[ONE])
            session.event_log.publish(notice_of(session))
            assert isinstance(next(watches[TWO]), RoundOpen)
            assert not session.connected_clients.gone(TWO)
    finally:
        deployed.close()


def test_a_second_process_under_one_name_is_told_so_and_the_first_goes_on(
    deployed: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    """Two owners with one certificate lost 6 of 50 rounds to each other without a word."""
    session = deployed.sessions[A]
    session.event_log.publish(notice_of(session))
    clock = LeapingClock()
    with deployed.connect(ONE) as first, deployed.connect(ONE, clock=clock) as second:
        watch = first.watch()
        next(watch)
        with pytest.raises(NameInUse, match="another process takes part as client ward-1"):
            next(second.watch())
        assert clock.time - clock.start == NAME_FREE_S
        assert "client ward-1 is there twice" in caplog.text
        # The same process comes back beside its own old watch.
        again = first.watch()
        next(again)
        session.event_log.publish(notice_of(session))
        next(watch)
    # Once the first has gone, the second is the client.
    with deployed.connect(ONE) as second:
        assert isinstance(next(second.watch()), RoundOpen)


def test_whoever_names_another_task_is_refused_with_both_digests(
    deployed: Deployed, make_task: Any
) -> None:
    other = make_task(8, {"name": "another"})
    with deployed.connect(ONE) as servers:
        servers.task = other
        for meet in (
            servers.check_task,
            lambda: servers.enrol(1, other.privacy.record_rate),
            lambda: list(servers.watch()),
        ):
            with pytest.raises(PrecadError, match="same task file") as refused:
                meet()
            assert {str(other.digest), str(deployed.task.digest)} <= set(
                re.findall(r"[0-9a-f]{64}", str(refused.value))
            )


def test_one_token_enrols_one_client_at_both_servers(deploy: Deploy, tmp_path: Path) -> None:
    books = {role: ByToken(tmp_path / role.value) for role in (A, B)}
    deployed = deploy(admissions=dict(books))
    token = new_token()
    for book in books.values():
        book.add(token_digest(token))
    with deployed.connect(TWO) as two, deployed.connect(ONE) as one:
        with pytest.raises(AccessDenied, match="brings no token"):
            one.enrol(100, 0.2)
        with pytest.raises(AccessDenied, match="no such token"):
            one.enrol(100, 0.2, Secret(new_token().encode()))
        # As the doctor asks; it spends nothing.
        for stub in one._stubs.values():
            assert stub.Describe(pb.DescribeRequest(token=token)).refusal == ""
            assert "brings no token" in stub.Describe(pb.DescribeRequest()).refusal
        one.enrol(100, 0.2, Secret(token.encode()))
        one.enrol(100, 0.2, Secret(token.encode()))
        with pytest.raises(AccessDenied, match="another client") as denied:
            two.enrol(100, 0.2, Secret(token.encode()))
        assert token not in str(denied.value)
    for session in deployed.sessions.values():
        assert dict(session.register.roster()) == {ONE: Enrolment(ONE, 100, 0.2)}


def test_after_round_0_no_token_helps(deploy: Deploy, tmp_path: Path) -> None:
    books = {role: ByToken(tmp_path / role.value) for role in (A, B)}
    deployed = deploy(admissions=dict(books))
    token = new_token()
    for role, book in books.items():
        book.add(token_digest(token))
        other = Enrolment(TWO, 1, 0.1)
        deployed.sessions[role].store.enrolment.claim(other)
        deployed.sessions[role].register.freeze(Roster({TWO: other}))
    with deployed.connect(ONE) as servers, pytest.raises(PrecadError, match="too late"):
        servers.enrol(100, 0.2, Secret(token.encode()))
    assert {owner for book in books.values() for owner in book.owners().values()} == {None}


def test_who_comes_when_the_training_is_finished_hears_that_and_an_owner_of_it_is_welcome(
    deployed: Deployed,
) -> None:
    claim = Enrolment(ONE, 100, 0.2)
    for session in deployed.sessions.values():
        session.store.enrolment.claim(claim)
        session.register.freeze(Roster({ONE: claim}))
        session.model_store.put(deployed.task.training.rounds, session.model_store.theta())
    for name, kind, said in (
        (ONE, Kind.NOTE, "precad join fetches its final model"),
        (TWO, Kind.BAD, "is finished, without client ward-2"),
    ):
        owner = deployed.owners[name]
        findings = look_at_servers(None, name, owner, deployed.addresses, DEADLINE_S)()
        servers = [each for each in findings if each.about.startswith("server")]
        assert [(each.kind, said in each.text) for each in servers] == [(kind, True)] * 2
    with deployed.connect(ONE) as servers_of_one:
        servers_of_one.enrol(100, 0.2)
    with (
        deployed.connect(TWO) as servers_of_two,
        pytest.raises(PrecadError, match="the training is finished, without it"),
    ):
        servers_of_two.enrol(100, 0.2)


def test_one_client_has_one_account_computed_at_a_time(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes seconds, and an honest owner's claim waits for those before it."""
    cap, go_on = deployed.sessions[A].register.cap, threading.Event()
    monkeypatch.setattr(cap, "precompute", lambda _rate: go_on.wait(DEADLINE_S))
    monkeypatch.setattr(cap, "is_ready", lambda _rate: False)
    rates = [on_grid(deployed.task, 0.2 / n) for n in range(1, 6)]
    with deployed.channel(A) as channel:
        enrol = AggregationStub(channel).Enrol
        asked = [
            enrol.future(
                pb.EnrolRequest(
                    task_digest=deployed.task.digest.value,
                    client=ONE.name,
                    records=100,
                    record_rate=rate,
                ),
                timeout=DEADLINE_S,
            )
            for rate in rates
        ]
        until(lambda: sum(each.done() for each in asked) == len(rates) - 1, "the refusals")
        go_on.set()
        codes = [each.code() for each in asked]
    assert (codes.count(Code.RESOURCE_EXHAUSTED), codes.count(Code.OK)) == (len(rates) - 1, 1)
