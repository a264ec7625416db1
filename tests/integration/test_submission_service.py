"""Real servers with mutual TLS: signed uploads, enrolment by token, limits; a bad caller hurts
nobody else."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.rig.clock import LeapingClock
from tests.rig.collecting import wait_over
from tests.rig.submissions import signed_anew

from precad.client.check.finding import Kind
from precad.client.check.servers import look_at_servers
from precad.client.connection import NAME_FREE_S, Receipt, Servers
from precad.common.aggregator.collect import Inbox
from precad.common.aggregator.collect.matching import describe, match
from precad.common.aggregator.enrol.admission import Admission, ByToken, anybody
from precad.common.aggregator.enrol.register import Register
from precad.common.aggregator.enrol.tokens import TokenBook, new_token, token_digest
from precad.common.aggregator.round.coin import CoinKey
from precad.common.aggregator.round.states import Opened
from precad.common.aggregator.service.aggregation import AggregationService
from precad.common.aggregator.service.limits import Limits
from precad.common.aggregator.service.turns import Turns
from precad.common.aggregator.store import open_store
from precad.common.aggregator.training.feed import Feed, RoundDone, RoundOpened
from precad.common.aggregator.training.presence import Presence
from precad.common.aggregator.training.session import Session
from precad.common.aggregator.training.shelf import Shelf
from precad.common.clock import CLOCK, Clock
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import (
    AccessDenied,
    AlreadyReleased,
    BudgetExceeded,
    NameInUse,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Rejection,
    StorageFailure,
)
from precad.common.identifiers import ClientId, Role
from precad.common.identity.channel import open_channel
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment import Deployment, create_local_keys
from precad.common.identity.port import add_port
from precad.common.identity.principal import Principal
from precad.common.identity.sign import CertificateSigner, CertificateVerifier
from precad.common.keystream import KEY_BYTES
from precad.common.secret import Secret
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.common.wire.serving import NOT_NOW, SERVER_OPTIONS
from precad.common.wire.statement import check_opening, check_statement
from precad.common.wire.submission import upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub, add_AggregationServicer_to_server

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
A, B = Role.SERVER_A, Role.SERVER_B
Code = grpc.StatusCode
DEADLINE_S = 20.0


class Deployed:
    """Servers A and B on one event loop, without a training: rounds are opened by the test."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        identities: dict[Role, Identity],
        *,
        limits: Limits | None = None,
        admissions: dict[Role, Admission] | None = None,
    ) -> None:
        self.folder = folder
        self.task = task
        self.sessions: dict[Role, Session] = {}
        self.services: dict[Role, AggregationService] = {}
        self.addresses: dict[Role, str] = {}
        self._servers: list[grpc.aio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        for role, identity in identities.items():
            admission = (admissions or {}).get(role, anybody)
            self._on_loop(self._start(role, identity, limits, admission))

    def _on_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _start(
        self,
        role: Role,
        identity: Identity,
        limits: Limits | None,
        admission: Admission,
    ) -> None:
        state = self.folder / role.value
        state.mkdir(exist_ok=True)
        store = open_store(f"sqlite:///{state / 'state.db'}", self.task, role)
        session = Session(
            role=role,
            task=self.task,
            identity=identity,
            store=store,
            signer=CertificateSigner(identity),
            verifier=CertificateVerifier(identity),
            coin_key=CoinKey(Secret.random()),
            inbox=Inbox(role, self.task, CertificateVerifier(identity), state / "spool"),
            register=Register(self.task, store, admission),
            presence=Presence(1.0),
            shelf=Shelf(self.task, state / "model.safetensors"),
            feed=Feed(asyncio.get_running_loop()),
        )
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self.services[role] = AggregationService(session, limits)
        add_AggregationServicer_to_server(self.services[role], server)
        port = add_port(server, "127.0.0.1:0", identity)
        await server.start()
        self._servers.append(server)
        self.sessions[role] = session
        self.addresses[role] = f"127.0.0.1:{port}"

    def close(self) -> None:
        for server in self._servers:
            self._on_loop(server.stop(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for session in self.sessions.values():
            session.store.close()

    def open_round(self, number: int = 0) -> None:
        for session in self.sessions.values():
            model = session.shelf.current.digest
            session.inbox.open(number, [ONE, TWO], model, version=0)

    def connect(self, client: ClientId, identity: Identity, clock: Clock = CLOCK) -> Servers:
        return Servers(
            self.task,
            client,
            self.addresses[A],
            self.addresses[B],
            identity,
            patience_s=DEADLINE_S,
            clock=clock,
        )

    def pair(self, servers: Servers) -> tuple[Submission, Submission]:
        x = np.arange(self.task.dimension, dtype=np.int64)
        return servers.prepare(0, 0, self.sessions[A].shelf.current.digest, x)

    def outcome(self) -> dict[ClientId, Rejection | str]:
        """The round's end on both servers, which must be the same."""
        model = self.sessions[A].shelf.current.digest
        opened = Opened(0, 0, (ONE, TWO), model, frozenset((ONE, TWO)))
        collected = {role: session.inbox.close() for role, session in self.sessions.items()}
        of_a, of_b = (
            match(
                opened,
                own,
                collected[own],
                describe(collected[other]),
            )
            for own, other in ((A, B), (B, A))
        )
        assert of_a.rejections == of_b.rejections
        assert list(of_a.submissions) == list(of_b.submissions)
        return {**of_a.rejections, **dict.fromkeys(of_a.submissions, "counted")}

    def spooled(self) -> list[Path]:
        return list((self.folder / B.value / "spool").iterdir())


Deploy = Callable[..., Deployed]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    create_local_keys(directory, [ONE.name, TWO.name])
    return directory


@pytest.fixture(scope="module")
def identities(keys: Path) -> dict[ClientId, Identity]:
    return {client: Identity.load(keys / client.name) for client in (ONE, TWO)}


@pytest.fixture
def deploy(keys: Path, tmp_path: Path, make_task: Any) -> Iterator[Deploy]:
    started = []

    def start(*, changes: dict[str, Any] | None = None, **kw: Any) -> Any:
        parties = {role: Identity.load(keys / role.value) for role in (A, B)}
        deployed = Deployed(tmp_path, make_task(8, changes), parties, **kw)
        started.append(deployed)
        return deployed

    yield start
    for deployed in started:
        deployed.close()


def reasons(receipts: tuple[Receipt, Receipt]) -> list[Rejection | None]:
    return [receipt.rejection for receipt in receipts]


# --- signatures --------------------------------------------------------------------------------


def test_an_honest_submission_counts(deploy: Deploy, identities: dict[ClientId, Identity]) -> None:
    deployed = deploy()
    deployed.open_round()
    with deployed.connect(ONE, identities[ONE]) as servers:
        pair = deployed.pair(servers)
        assert reasons(servers.submit(pair)) == [None, None]
        # The same bytes again change nothing.
        assert reasons(servers.submit(pair)) == [None, None]
    assert deployed.outcome() == {ONE: "counted", TWO: Rejection.ABSENT}


def test_an_unsigned_submission_is_refused_and_nothing_of_it_kept(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    deployed.open_round()
    with deployed.connect(ONE, identities[ONE]) as servers:
        pair = deployed.pair(servers)
    for submission in pair:
        header, *share = upload_pieces(submission)
        header.header.ClearField("signature")
        header.header.ClearField("certificates")
        address = deployed.addresses[submission.role]
        with open_channel(address, identities[ONE], submission.role) as channel:
            receipt = AggregationStub(channel).Submit(iter([header, *share]), timeout=DEADLINE_S)
        assert receipt.rejection == Rejection.BAD_SIGNATURE.value
        assert "isn't signed" in receipt.detail
    assert deployed.spooled() == []
    assert deployed.outcome() == {ONE: Rejection.BAD_SIGNATURE, TWO: Rejection.ABSENT}


def test_another_clients_submission_replayed_is_refused_and_its_owner_untouched(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    deployed.open_round()
    with (
        deployed.connect(ONE, identities[ONE]) as victim,
        deployed.connect(TWO, identities[TWO]) as thief,
    ):
        pair = deployed.pair(victim)
        # As it is: the connection is another client's.
        with pytest.raises(AccessDenied, match="ward-2"):
            thief.submit(pair)
        # In the thief's own name: the signature is another client's.
        header = replace(pair[0].header, context=replace(pair[0].context, client=TWO))
        renamed = [replace(s, header=header) for s in pair]
        assert reasons(thief.submit((renamed[0], renamed[1]))) == [Rejection.BAD_SIGNATURE] * 2
        # Signed again by the thief: the commitments are bound to their owner.
        header = signed_anew(header, CertificateSigner(identities[TWO]))
        again = [replace(s, header=header) for s in pair]
        assert reasons(thief.submit((again[0], again[1]))) == [Rejection.MALFORMED] * 2
        assert reasons(victim.submit(pair)) == [None, None]
    assert deployed.outcome() == {ONE: "counted", TWO: Rejection.BAD_SIGNATURE}


def test_the_key_that_signed_must_be_the_connections(
    deploy: Deploy, keys: Path, tmp_path: Path, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    deployed.open_round()
    # Another good certificate of the same client, as a stolen one would be.
    Deployment.open(keys).issue(Principal.client(ONE.name), out=tmp_path / "second")
    second = CertificateSigner(Identity.load(tmp_path / "second"))
    with deployed.connect(ONE, identities[ONE]) as servers:
        a, b = deployed.pair(servers)
        header = signed_anew(a.header, second)
        pair = (replace(a, header=header), replace(b, header=header))
        receipts = servers.submit(pair)
    assert reasons(receipts) == [Rejection.BAD_SIGNATURE] * 2
    assert "another key" in receipts[0].detail
    assert deployed.outcome()[ONE] is Rejection.BAD_SIGNATURE


def test_different_pairs_to_a_and_b_have_one_reason_on_both(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    deployed.open_round()
    with deployed.connect(ONE, identities[ONE]) as servers:
        first, second = deployed.pair(servers), deployed.pair(servers)
        assert reasons(servers.submit((first[0], second[1]))) == [None, None]
    assert deployed.outcome() == {ONE: Rejection.UNMATCHED, TWO: Rejection.ABSENT}


def wait_until(true: Callable[[], bool]) -> None:
    """What is on its way to a server needs a moment."""
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- slow and greedy callers -------------------------------------------------------------------


class Stalling:
    """An upload that sends these pieces and then keeps its stream open, or repeats the last."""

    def __init__(self, pieces: list[pb.SubmissionPiece], drip_s: float | None = None) -> None:
        self._pieces = pieces
        self._drip_s = drip_s
        self._end = threading.Event()

    def __iter__(self) -> Iterator[pb.SubmissionPiece]:
        yield from self._pieces
        while not self._end.wait(self._drip_s):
            yield pb.SubmissionPiece(body=b"")

    def end(self) -> None:
        self._end.set()


@pytest.fixture
def stalled() -> Iterator[Callable[..., Stalling]]:
    made: list[Stalling] = []

    def make(pieces: list[pb.SubmissionPiece], drip_s: float | None = None) -> Stalling:
        made.append(Stalling(pieces, drip_s))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.mark.parametrize(
    ("role", "kind"),
    [*product([A, B], ["no header", "no body", "drip"]), (B, "salt"), (B, "half")],
)
def test_a_slow_loris_is_cut_off_and_keeps_nothing(
    deploy: Deploy,
    identities: dict[ClientId, Identity],
    stalled: Callable[..., Stalling],
    role: Role,
    kind: str,
) -> None:
    collect_s = 2.0 if kind == "drip" else 60.0
    idle_s = 60.0 if kind == "drip" else 1.0
    deployed = deploy(changes={"deadlines.collect": collect_s}, limits=Limits(idle_s=idle_s))
    deployed.open_round()
    with deployed.connect(ONE, identities[ONE]) as servers:
        pair = deployed.pair(servers)
        submission = pair[0] if role is A else pair[1]
        header, *body = upload_pieces(submission)
        pieces = {"no header": [], "no body": [header], "drip": [header]}
        if kind in ("salt", "half"):
            half = pb.SubmissionPiece(body=body[1].body[:16])
            pieces |= {"salt": [header, body[0]], "half": [header, body[0], half]}
        upload = stalled(pieces[kind], 0.05 if kind == "drip" else None)
        with open_channel(deployed.addresses[role], identities[ONE], role) as channel:
            receipt = AggregationStub(channel).Submit(iter(upload), timeout=DEADLINE_S)
        assert receipt.rejection == Rejection.TRUNCATED.value
        assert deployed.spooled() == []
        # Its place is free again, and the whole upload is welcome.
        assert reasons(servers.submit(pair, DEADLINE_S)) == [None, None]
    assert deployed.outcome()[ONE] == "counted"


def test_an_upload_that_stalls_for_good_is_truncated_on_both(
    deploy: Deploy, identities: dict[ClientId, Identity], stalled: Callable[..., Stalling]
) -> None:
    # Long enough for the header to arrive on a busy machine: without it nobody can be counted.
    deployed = deploy(limits=Limits(idle_s=2.0))
    deployed.open_round()
    with deployed.connect(ONE, identities[ONE]) as servers:
        header, *_ = upload_pieces(deployed.pair(servers)[1])
        with open_channel(deployed.addresses[B], identities[ONE], B) as channel:
            AggregationStub(channel).Submit(iter(stalled([header])), timeout=DEADLINE_S)
    assert deployed.outcome() == {ONE: Rejection.TRUNCATED, TWO: Rejection.ABSENT}


def test_one_client_holds_two_uploads_open_and_no_third(
    deploy: Deploy, identities: dict[ClientId, Identity], stalled: Callable[..., Stalling]
) -> None:
    deployed = deploy()
    deployed.open_round()
    with (
        open_channel(deployed.addresses[A], identities[ONE], A) as channel,
        deployed.connect(TWO, identities[TWO]) as other,
    ):
        submit = AggregationStub(channel).Submit
        # Without a header: the connection's certificate says who calls.
        uploads = [stalled([]) for _ in range(2)]
        open_calls = [submit.future(iter(upload), timeout=DEADLINE_S) for upload in uploads]
        wait_until(lambda: len(deployed.services[A].calls) == 2)
        third = submit.future(iter(stalled([])), timeout=DEADLINE_S)
        assert third.code() is Code.RESOURCE_EXHAUSTED
        assert "ward-1" in third.details()
        # Nobody else notices.
        assert reasons(other.submit(deployed.pair(other))) == [None, None]
        for upload in uploads:
            upload.end()
        for call in open_calls:
            assert call.result().rejection == Rejection.TRUNCATED.value
        assert submit(iter([]), timeout=DEADLINE_S).rejection == Rejection.TRUNCATED.value
    assert deployed.outcome() == {ONE: Rejection.ABSENT, TWO: "counted"}


def held_up(deployed: Deployed) -> Callable[[], object]:
    """B reads one body at a time from now on, and has one already. Returns what ends that."""
    turns = Turns(1)
    deployed.services[B]._turns = turns
    other = turns.one()
    deployed._on_loop(other.take())
    return lambda: deployed._loop.call_soon_threadsafe(other.close)


def test_a_body_is_sent_when_its_turn_comes(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    deployed.open_round()
    end = held_up(deployed)
    with deployed.connect(ONE, identities[ONE]) as servers, ThreadPoolExecutor(1) as executor:
        uploading = executor.submit(servers.submit, deployed.pair(servers))
        came = deployed.sessions[B].traffic
        wait_until(lambda: came["clients to server-b"] > 0)
        time.sleep(0.2)
        assert came["clients to server-b"] == KEY_BYTES
        assert not uploading.done()
        end()
        assert reasons(uploading.result(DEADLINE_S)) == [None, None]
    assert deployed.outcome()[ONE] == "counted"


def test_a_body_that_comes_unasked_waits_for_its_turn_too(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    deployed.open_round()
    end = held_up(deployed)
    with (
        deployed.connect(ONE, identities[ONE]) as servers,
        open_channel(deployed.addresses[B], identities[ONE], B) as channel,
    ):
        unasked = upload_pieces(deployed.pair(servers)[1])
        call = AggregationStub(channel).Submit.future(unasked, timeout=DEADLINE_S)
        came = deployed.sessions[B].traffic
        wait_until(lambda: came["clients to server-b"] > 0)
        time.sleep(0.2)
        assert came["clients to server-b"] == KEY_BYTES
        end()
        assert call.result().rejection == ""


def test_a_quick_upload_passes_by_all_that_stall(
    deploy: Deploy,
    identities: dict[ClientId, Identity],
    stalled: Callable[..., Stalling],
) -> None:
    deployed = deploy()
    deployed.open_round()
    deployed.services[B]._turns = Turns(1)
    with (
        open_channel(deployed.addresses[B], identities[ONE], B) as channel,
        deployed.connect(ONE, identities[ONE]) as slow,
        deployed.connect(TWO, identities[TWO]) as quick,
    ):
        header, salt_h, *_ = upload_pieces(deployed.pair(slow)[1])
        submit = AggregationStub(channel).Submit
        calls = [
            submit.future(iter(stalled(pieces, 0.01)), timeout=DEADLINE_S)
            for pieces in ([header], [header, salt_h])
        ]
        wait_until(lambda: len(deployed.services[B].calls) == len(calls))
        assert reasons(quick.submit(deployed.pair(quick), DEADLINE_S)) == [None, None]
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()


def test_a_client_that_is_refused_at_its_header_sends_no_body(
    deploy: Deploy, identities: dict[ClientId, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[Role, list[str | None]] = {A: [], B: []}

    def noted(submission: Submission) -> Iterator[pb.SubmissionPiece]:
        for piece in upload_pieces(submission):
            drawn[submission.role].append(piece.WhichOneof("piece"))
            yield piece

    monkeypatch.setattr("precad.client.connection.upload_pieces", noted)
    deployed = deploy()
    deployed.open_round()
    end = held_up(deployed)
    with deployed.connect(ONE, identities[ONE]) as servers:
        x = np.zeros(deployed.task.dimension, dtype=np.int64)
        pair = servers.prepare(0, 7, deployed.sessions[A].shelf.current.digest, x)
        assert reasons(servers.submit(pair, DEADLINE_S)) == [Rejection.WRONG_ATTEMPT] * 2
    end()
    assert drawn == {A: ["header"], B: ["header"]}
    assert deployed.sessions[B].traffic["clients to server-b"] == 0


def test_notices_hold_what_a_server_signs_at_that_time_and_for_whom(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    session = deployed.sessions[A]
    opened = notice_of(session)
    done = RoundDone(opened.opened, frozenset((ONE,)), {}, opened.opened.model, 1, 0.5)
    with (
        deployed.connect(ONE, identities[ONE]) as one,
        deployed.connect(TWO, identities[TWO]) as two,
    ):
        # No attempt is open: who wants to know why asks.
        session.feed.publish(opened)
        assert not next(one.watch()).HasField("word")
        deployed.open_round()
        drawn, other = next(one.watch()), next(two.watch())
        opening = check_opening(one.verifier, A, drawn.word)
        assert (opening.client, opening.attempt, opening.charges) == (ONE.name, 0, 0)
        assert not other.HasField("word")
        assert drawn.ByteSize() == other.ByteSize()
        session.feed.publish(done)
        for client, servers in ((ONE, one), (TWO, two)):
            statement = check_statement(servers.verifier, A, next(servers.watch()).word)
            assert (statement.client, statement.version) == (client.name, 0)


def test_one_client_watches_twice_and_not_thrice(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    session = deployed.sessions[A]
    session.feed.publish(notice_of(session))
    request = pb.WatchRequest(task_digest=deployed.task.digest.value, client=ONE.name)
    with open_channel(deployed.addresses[A], identities[ONE], A) as channel:
        stub = AggregationStub(channel)
        watches = [stub.Watch(request, timeout=DEADLINE_S) for _ in range(2)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as refused:
            next(stub.Watch(request, timeout=DEADLINE_S))
        assert refused.value.code() is Code.RESOURCE_EXHAUSTED
        # The SDK takes it as a server to come back to.
        with (
            deployed.connect(ONE, identities[ONE]) as servers,
            pytest.raises(PeerUnavailable, match="no room"),
        ):
            next(servers.watch())
        with deployed.connect(TWO, identities[TWO]) as servers:
            assert next(servers.watch()).WhichOneof("event") == "open"
        for watch in watches:
            watch.cancel()
    assert len(deployed.services[A].calls) <= 3


def test_a_revoked_client_loses_its_open_watch_and_nobody_waits_for_it(
    tmp_path: Path, make_task: Any
) -> None:
    """It held every round to its deadline, for as long as it kept its watch."""
    create_local_keys(tmp_path / "own", [ONE.name, TWO.name])
    keys = tmp_path / "own"
    parties = {role: Identity.load(keys / role.value) for role in (A, B)}
    deployed = Deployed(tmp_path, make_task(8), parties)
    one, two = (Identity.load(keys / client.name) for client in (ONE, TWO))
    try:
        session = deployed.sessions[A]
        session.feed.publish(notice_of(session))
        with deployed.connect(ONE, one) as bad, deployed.connect(TWO, two) as good:
            watches = {ONE: bad.watch(), TWO: good.watch()}
            for watch in watches.values():
                assert next(watch).WhichOneof("event") == "open"
            deployed.open_round()
            deployment = Deployment.open(keys)
            deployment.revoke(deployment.current_serials(Principal.client(ONE.name)))
            began = time.monotonic()
            assert reasons(good.submit(deployed.pair(good))) == [None, None]
            wait_over(session.inbox, [ONE, TWO], began + DEADLINE_S, session.presence.gone)
            assert time.monotonic() - began < DEADLINE_S / 2
            with pytest.raises(AccessDenied, match="revoked"):
                next(watches[ONE])
            session.feed.publish(notice_of(session))
            assert next(watches[TWO]).WhichOneof("event") == "open"
            assert not session.presence.gone(TWO)
    finally:
        deployed.close()


def test_a_second_process_under_one_name_is_told_so_and_the_first_goes_on(
    deploy: Deploy, identities: dict[ClientId, Identity], caplog: pytest.LogCaptureFixture
) -> None:
    """Two owners with one certificate lost 6 of 50 rounds to each other without a word."""
    deployed = deploy()
    session = deployed.sessions[A]
    session.feed.publish(notice_of(session))
    clock = LeapingClock()
    with (
        deployed.connect(ONE, identities[ONE]) as first,
        deployed.connect(ONE, identities[ONE], clock=clock) as second,
    ):
        watch = first.watch()
        next(watch)
        with pytest.raises(NameInUse, match="another process takes part as client ward-1"):
            next(second.watch())
        assert clock.time - clock.start == NAME_FREE_S
        assert "client ward-1 is there twice" in caplog.text
        # The same process comes back beside its own old watch.
        again = first.watch()
        next(again)
        session.feed.publish(notice_of(session))
        next(watch)
    # Once the first has gone, the second is the client.
    with deployed.connect(ONE, identities[ONE]) as second:
        assert next(second.watch()).WhichOneof("event") == "open"


def notice_of(session: Session) -> Any:
    return RoundOpened(Opened(0, 0, (ONE,), session.shelf.current.digest, frozenset((ONE,))), 1.0)


# --- a server in trouble -----------------------------------------------------------------------


def test_no_place_on_the_disk_costs_an_upload_and_it_may_come_again(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    """No descriptor left is the same: the spool's file can't be opened."""
    deployed = deploy()
    deployed.open_round()
    spool = deployed.folder / B.value / "spool"
    away = spool.with_name("elsewhere")
    with (
        deployed.connect(ONE, identities[ONE]) as one,
        deployed.connect(TWO, identities[TWO]) as two,
    ):
        spool.rename(away)
        pair = deployed.pair(one)
        header, *share = upload_pieces(pair[1])
        with open_channel(deployed.addresses[B], identities[ONE], B) as channel:
            receipt = AggregationStub(channel).Submit(iter([header, *share]), timeout=DEADLINE_S)
        assert receipt.rejection == Rejection.TRUNCATED.value
        assert str(deployed.folder) not in receipt.detail
        away.rename(spool)
        # The SDK sends the same bytes again by itself.
        assert reasons(one.submit(pair)) == [None, None]
        assert reasons(two.submit(deployed.pair(two))) == [None, None]
    assert deployed.outcome() == {ONE: "counted", TWO: "counted"}


def test_the_sdk_sends_again_what_a_server_had_no_place_for(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    deployed.open_round()
    spool = deployed.folder / B.value / "spool"
    away = spool.with_name("elsewhere")
    spool.rename(away)
    back = threading.Timer(1.0, lambda: away.rename(spool))
    back.start()
    with deployed.connect(ONE, identities[ONE]) as servers:
        assert reasons(servers.submit(deployed.pair(servers))) == [None, None]
    back.join()
    assert deployed.outcome()[ONE] == "counted"


SECRET = "client ward-2 is at its limit; /var/lib/precad/state.db"
FAILURES = [
    StorageFailure(SECRET),
    BudgetExceeded(SECRET),
    PeerViolation(SECRET),
    AlreadyReleased(SECRET),
    OSError(24, SECRET),
    AssertionError(SECRET),
    KeyError(SECRET),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_no_text_of_a_failure_reaches_a_client(
    deploy: Deploy,
    identities: dict[ClientId, Identity],
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    """It may be about somebody else: one told a stranger who was drawn, and who at its limit."""
    deployed = deploy()
    deployed.open_round()

    def fail(*_arguments: Any, **_named: Any) -> Any:
        raise failure

    for session in deployed.sessions.values():
        monkeypatch.setattr(session.register, "enrol", fail)
        monkeypatch.setattr(session.inbox, "start", fail)
        monkeypatch.setattr(session.shelf, "get", fail)
        monkeypatch.setattr(session.feed, "follow", fail)
    digest = deployed.task.digest.value
    with (
        deployed.connect(ONE, identities[ONE]) as servers,
        open_channel(deployed.addresses[A], identities[ONE], A) as channel,
    ):
        stub = AggregationStub(channel)
        claim = pb.EnrolRequest(task_digest=digest, client=ONE.name, records=1, record_rate=0.2)
        model = pb.ModelRequest(task_digest=digest, version=0)
        watch = pb.WatchRequest(task_digest=digest, client=ONE.name)
        pieces = list(upload_pieces(deployed.pair(servers)[0]))
        calls: list[Callable[[], Any]] = [
            lambda: stub.Enrol(claim, timeout=DEADLINE_S),
            lambda: stub.ModelDigest(model, timeout=DEADLINE_S),
            lambda: list(stub.FetchModel(model, timeout=DEADLINE_S)),
            lambda: list(stub.Watch(watch, timeout=DEADLINE_S)),
            lambda: stub.Submit(iter(pieces), timeout=DEADLINE_S),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert (refused.value.code(), refused.value.details()) == (Code.UNAVAILABLE, NOT_NOW)
            said = str(refused.value) + str(refused.value.trailing_metadata())
            assert "ward-2" not in said
            assert "/var" not in said


# --- enrolment ---------------------------------------------------------------------------------


def test_one_token_enrols_one_client_at_both_servers(
    deploy: Deploy, identities: dict[ClientId, Identity], tmp_path: Path
) -> None:
    books = {role: TokenBook(tmp_path / role.value) for role in (A, B)}
    deployed = deploy(admissions={role: ByToken(book) for role, book in books.items()})
    token = new_token()
    for book in books.values():
        book.add(token_digest(token))
    with (
        deployed.connect(TWO, identities[TWO]) as two,
        deployed.connect(ONE, identities[ONE]) as one,
    ):
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


def test_after_round_0_no_token_helps(
    deploy: Deploy, identities: dict[ClientId, Identity], tmp_path: Path
) -> None:
    books = {role: TokenBook(tmp_path / role.value) for role in (A, B)}
    deployed = deploy(admissions={role: ByToken(book) for role, book in books.items()})
    token = new_token()
    for role, book in books.items():
        book.add(token_digest(token))
        other = Enrolment(TWO, 1, 0.1)
        deployed.sessions[role].store.claim(other)
        deployed.sessions[role].register.freeze(Roster({TWO: other}))
    with (
        deployed.connect(ONE, identities[ONE]) as servers,
        pytest.raises(PrecadError, match="too late"),
    ):
        servers.enrol(100, 0.2, Secret(token.encode()))
    assert {state.client for book in books.values() for state in book.states()} == {None}


def test_who_comes_when_the_training_is_finished_hears_that_and_an_owner_of_it_is_welcome(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    claim = Enrolment(ONE, 100, 0.2)
    for session in deployed.sessions.values():
        session.store.claim(claim)
        session.register.freeze(Roster({ONE: claim}))
        session.shelf.put(deployed.task.training.rounds, session.shelf.theta())
    for name, kind, said in (
        (ONE, Kind.NOTE, "precad join fetches its final model"),
        (TWO, Kind.BAD, "is finished, without client ward-2"),
    ):
        findings = look_at_servers(None, name, identities[name], deployed.addresses, DEADLINE_S)()
        servers = [each for each in findings if each.about.startswith("server")]
        assert [(each.kind, said in each.said) for each in servers] == [(kind, True)] * 2
    with deployed.connect(ONE, identities[ONE]) as servers_of_one:
        servers_of_one.enrol(100, 0.2)
    with (
        deployed.connect(TWO, identities[TWO]) as servers_of_two,
        pytest.raises(PrecadError, match="the training is finished, without it"),
    ):
        servers_of_two.enrol(100, 0.2)


def test_held_submissions_keep_the_header_that_was_checked(
    deploy: Deploy, identities: dict[ClientId, Identity]
) -> None:
    deployed = deploy()
    deployed.open_round()
    with deployed.connect(ONE, identities[ONE]) as servers:
        pair = deployed.pair(servers)
        servers.submit(pair)
    for session in deployed.sessions.values():
        held = session.inbox.close()[ONE]
        assert isinstance(held, Submission)
        assert held.header == pair[0].header
        session.inbox.verifier.check(held.header.signature, held.header.signed)
