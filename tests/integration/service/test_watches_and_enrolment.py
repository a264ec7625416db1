"""Open watches of real servers, and who enrols when."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.service.conftest import ONE, TWO, A, Deploy, Deployed, reasons
from tests.rig.clock import LeapingClock
from tests.rig.waiting import DEADLINE_S, until

from precad.aggregator.training.session import RoundDone
from precad.client.check_before_enrolling import Kind, look_at_servers
from precad.client.connection import NAME_FREE_S
from precad.common.errors import AccessDenied, NameInUse, PrecadError
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.party_certificate import Principal
from precad.common.roster import Enrolment, Roster, on_grid
from precad.common.task import Task
from precad.common.wire.messages import Notice, RoundOpen, RoundOver, check_opening, check_statement
from precad.protos import precad_pb2 as pb

Code = grpc.StatusCode


def signed_with(notices: Iterator[Notice]) -> bytes:
    notice = next(notices)
    assert isinstance(notice, RoundOpen | RoundOver)
    return notice.signed or b""


def test_notices_hold_what_a_server_signs_at_that_time_and_for_whom(deploy: Deploy) -> None:
    deployed = deploy()
    session = deployed.sessions[A]
    opened = deployed.opened(ONE, cohort=(ONE,))
    done = RoundDone(opened, frozenset((ONE,)), {}, opened.model, 1)
    with deployed.connect(ONE) as one, deployed.connect(TWO) as two:
        # No attempt is open: who wants to know why asks.
        deployed.announce()
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
    deploy: Deploy, tmp_path: Path
) -> None:
    """It held every round to its deadline, for as long as it kept its watch."""
    create_local_keys(tmp_path / "own", [ONE.name, TWO.name])
    deployed = deploy(own=tmp_path / "own")
    session = deployed.sessions[A]
    deployed.announce()
    with deployed.connect(ONE) as bad, deployed.connect(TWO) as good:
        watches = {ONE: bad.watch(), TWO: good.watch()}
        assert all(isinstance(next(watch), RoundOpen) for watch in watches.values())
        deployed.open_round()
        keys = Deployment.open(tmp_path / "own")
        keys.revoke(keys.current_serials(Principal.client(ONE.name)))
        assert reasons(good.submit(deployed.pair(good))) == [None, None]
        gone = session.connected_clients.gone
        until(lambda: session.inbox.over([ONE, TWO], gone), "the round's end without it")
        with pytest.raises(AccessDenied, match="revoked"):
            next(watches[ONE])
        deployed.announce()
        assert isinstance(next(watches[TWO]), RoundOpen)
        assert not gone(TWO)


def test_a_second_process_under_one_name_is_told_so_and_the_first_goes_on(
    deployed: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    """Two owners with one certificate lost 6 of 50 rounds to each other without a word."""
    deployed.announce()
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
        deployed.announce()
        next(watch)
    # Once the first has gone, the second is the client.
    with deployed.connect(ONE) as second:
        assert isinstance(next(second.watch()), RoundOpen)


def test_whoever_names_another_task_is_refused_with_both_digests(
    deployed: Deployed, make_task: Callable[..., Task]
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
            said = set(re.findall(r"[0-9a-f]{64}", str(refused.value)))
            assert {str(other.digest), str(deployed.task.digest)} <= said


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
    with deployed.connect(ONE) as one, deployed.connect(TWO) as two:
        one.enrol(100, 0.2)
        with pytest.raises(PrecadError, match="the training is finished, without it"):
            two.enrol(100, 0.2)


def test_one_client_has_one_account_computed_at_a_time(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes seconds, and an honest owner's claim waits for those before it."""
    cap, go_on = deployed.sessions[A].register.cap, threading.Event()
    monkeypatch.setattr(cap, "precompute", lambda _rate: go_on.wait(DEADLINE_S))
    monkeypatch.setattr(cap, "is_ready", lambda _rate: False)
    claim: dict[str, Any] = {"client": ONE.name, "records": 100}
    claim["task_digest"] = deployed.task.digest.value
    rates = [on_grid(deployed.task, 0.2 / n) for n in range(1, 6)]
    claims = [pb.EnrolRequest(**claim, record_rate=rate) for rate in rates]
    with deployed.stub(A) as stub:
        asked = [stub.Enrol.future(each, timeout=DEADLINE_S) for each in claims]
        until(lambda: sum(each.done() for each in asked) == len(asked) - 1, "the refusals")
        go_on.set()
        codes = [each.code() for each in asked]
    assert (codes.count(Code.RESOURCE_EXHAUSTED), codes.count(Code.OK)) == (len(asked) - 1, 1)
