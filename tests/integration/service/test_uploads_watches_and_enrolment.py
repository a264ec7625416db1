"""Real servers whose rounds tests open: what is signed counts, the slow and greedy keep
nothing."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.conftest import small_task
from tests.integration.hostile.conftest import session_of
from tests.rig.clock import LeapingClock
from tests.rig.loop import LoopThread
from tests.rig.proofs_context import stated_for_proof
from tests.rig.submissions import masked, signed_anew
from tests.rig.task_files import task_to_toml
from tests.rig.waiting import DEADLINE_S, until

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.matching import describe, match
from precad.aggregator.rpc.aggregation_service import AggregationService
from precad.aggregator.rpc.limits import IDLE_S, TransferSlot, TransferSlots
from precad.aggregator.training.session import RoundDone, RoundOpened, Session
from precad.client.check_before_enrolling import Kind, look_at_servers
from precad.client.connection import NAME_FREE_S, Receipt, Servers
from precad.client.pending_update import Pair
from precad.common import errors, ring, roster
from precad.common.clock import CLOCK, Clock
from precad.common.identifiers import ClientId, Role
from precad.common.identity import credentials, deployment_keys, mutual_tls, signatures
from precad.common.identity.party_certificate import Principal
from precad.common.model import model_digest, to_bytes
from precad.common.submission import Submission
from precad.common.task import Task
from precad.common.wire import messages, serving
from precad.norm_check import submission_messages
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
A, B = Role.SERVER_A, Role.SERVER_B
Code = grpc.StatusCode
Pieces = Iterator[pb.SubmissionPiece]
Stalled = Callable[..., Pieces]


class Deployed:
    def __init__(self, folder: Path, keys: Path, task: Task, idle_s: float) -> None:
        self.folder, self.task = folder, task
        self.owners = {
            client: credentials.Identity.load(keys / client.name)
            for client in (ONE, TWO)
        }
        self.sessions: dict[Role, Session] = {}
        self.services: dict[Role, AggregationService] = {}
        (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
        self.loop = LoopThread()

        def make(role: Role) -> grpc.aio.Server:
            self.sessions[role] = session_of(role, folder, keys)
            self.services[role] = AggregationService(self.sessions[role], idle_s)
            server = grpc.aio.server(options=serving.SERVER_OPTIONS)
            self.services[role].add_to(server)
            return server

        self.addresses = {
            role: self.loop.serve(
                partial(make, role), credentials.Identity.load(keys / role.value)
            )
            for role in (A, B)
        }

    def close(self) -> None:
        self.loop.stop()
        for session in self.sessions.values():
            session.store.close()

    def opened(
        self, *counted: ClientId, cohort: tuple[ClientId, ...] = (ONE, TWO)
    ) -> Opened:
        model = self.sessions[A].model_store.current.digest
        return Opened(
            attempt=0, version=0, cohort=cohort, model=model, counted=frozenset(counted)
        )

    def open_round(self) -> None:
        for session in self.sessions.values():
            session.inbox.open(self.opened())

    def announce(self) -> None:
        """Server A tells of an attempt of the first client alone."""
        opened = RoundOpened(self.opened(ONE, cohort=(ONE,)), 1.0)
        self.sessions[A].event_log.publish(opened)

    def connect(self, client: ClientId, clock: Clock = CLOCK) -> Servers:
        servers = Servers(
            self.task,
            client,
            server_a=self.addresses[A],
            server_b=self.addresses[B],
            identity=self.owners[client],
            patience_s=DEADLINE_S,
            clock=clock,
        )
        # A server ends a handshake that a busy machine draws out, and the channel tries
        # again.
        for channel in servers._channels:
            grpc.channel_ready_future(channel).result(timeout=DEADLINE_S)
        return servers

    @contextmanager
    def stub(self, role: Role, owner: ClientId = ONE) -> Iterator[AggregationStub]:
        """An owner's, for what its SDK wouldn't send."""
        with mutual_tls.open_channel(
            self.addresses[role], self.owners[owner], role
        ) as channel:
            yield AggregationStub(channel)

    def pair(self, servers: Servers, attempt: int = 0) -> Pair:
        x, stated = np.arange(self.task.dimension), stated_for_proof(servers, 0)
        return servers.prepare(
            version=0, attempt=attempt, model=self.opened().model, x=x, proof=stated
        )

    def outcome(self) -> dict[ClientId, errors.Rejection | str]:
        opened = self.opened(ONE, TWO)
        collected = {
            role: session.inbox.close() for role, session in self.sessions.items()
        }
        of_a, of_b = (
            match(opened, own, collected[own], describe(collected[other]))
            for own, other in ((A, B), (B, A))
        )
        assert of_a.rejections == of_b.rejections
        assert list(of_a.submissions) == list(of_b.submissions)
        return {**of_a.rejections, **dict.fromkeys(of_a.submissions, "counted")}


Deploy = Callable[..., Deployed]


@pytest.fixture
def deploy(keys: Path, tmp_path: Path) -> Iterator[Deploy]:
    """``deploy({"deadlines.collect": 0.6})``: servers of a small task, until the test
    ends."""
    with ExitStack() as stack:

        def start(
            changes: Mapping[str, object] | None = None,
            own: Path = keys,
            idle_s: float = IDLE_S,
        ) -> Deployed:
            task = small_task(8, {"deadlines.rejoin": 1.0, **(changes or {})})
            deployed = Deployed(tmp_path, own, task, idle_s)
            stack.callback(deployed.close)
            return deployed

        yield start


@pytest.fixture
def deployed(deploy: Deploy) -> Deployed:
    made = deploy()
    made.open_round()
    return made


Receipts = tuple[Receipt, Receipt]


def reasons(receipts: Receipts) -> list[errors.Rejection | None]:
    return [receipt.rejection for receipt in receipts]


def test_only_the_connections_key_signs(
    deployed: Deployed, keys: Path, tmp_path: Path
) -> None:
    # Another good certificate of the same client, as a stolen one would be.
    deployment_keys.Deployment.open(keys).issue(
        Principal.client(ONE.name), out=tmp_path / "second"
    )
    second = signatures.CertificateSigner(
        credentials.Identity.load(tmp_path / "second")
    )
    with deployed.connect(ONE) as servers:
        a, b = map(masked, deployed.pair(servers))
        header = signed_anew(a.header, second)
        receipts = servers.submit(
            (replace(a, header=header), replace(b, header=header))
        )
    assert reasons(receipts) == [errors.Rejection.BAD_SIGNATURE] * 2
    assert "another key" in receipts[0].detail
    assert deployed.outcome()[ONE] is errors.Rejection.BAD_SIGNATURE


def test_a_full_disk_costs_one_upload(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the SDK sends it again.

    No descriptor left is the same: the spool can't open a file.
    """
    spool = deployed.folder / B.value / "spool"
    away = spool.rename(spool.with_name("elsewhere"))
    inbox = deployed.sessions[B].inbox

    def place_at_the_third_try(_: Submission) -> object:
        if tries.call_count > 2:
            away.rename(spool)
        return DEFAULT

    tries = Mock(wraps=inbox.start, side_effect=place_at_the_third_try)
    monkeypatch.setattr(inbox, "start", tries)
    with deployed.connect(ONE) as one, deployed.stub(B) as stub:
        pair = deployed.pair(one)
        receipt = stub.Submit(
            submission_messages.upload_pieces(pair[1]), timeout=DEADLINE_S
        )
        assert receipt.rejection == errors.Rejection.TRUNCATED.value
        assert str(deployed.folder) not in receipt.detail
        assert reasons(one.submit(pair)) == [None, None]
    assert (tries.call_count, deployed.outcome()[ONE]) == (3, "counted")


SECRET = "client ward-2 is at its limit; /var/lib/precad/state.db"
FAILURES = (
    errors.StorageFailure,
    errors.BudgetExceeded,
    errors.PeerViolation,
    KeyError,
)


@pytest.mark.parametrize(
    "failure", [*(k(SECRET) for k in FAILURES), OSError(24, SECRET)], ids=type
)
def test_no_text_of_a_failure_reaches_a_client(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """It may be about somebody else: one told a stranger who was drawn, and who at its
    limit."""

    fail = Mock(side_effect=failure)
    for session in deployed.sessions.values():
        for part, name in (
            *((session.register, "enrol"), (session.inbox, "start")),
            *((session.model_store, "get"), (session.event_log, "follow")),
        ):
            monkeypatch.setattr(part, name, fail)
    digest = deployed.task.digest.value
    with deployed.connect(ONE) as servers, deployed.stub(A) as stub:
        claim = pb.EnrolRequest(
            task_digest=digest, client=ONE.name, records=1, record_rate=0.2
        )
        model = pb.ModelRequest(task_digest=digest, version=0)
        watch = pb.WatchRequest(task_digest=digest, client=ONE.name)
        pieces = list(submission_messages.upload_pieces(deployed.pair(servers)[0]))
        calls: list[Callable[[], object]] = [
            lambda: stub.Enrol(claim, timeout=DEADLINE_S),
            lambda: stub.ModelDigest(model, timeout=DEADLINE_S),
            lambda: list(stub.FetchModel(model, timeout=DEADLINE_S)),
            lambda: list(stub.Watch(watch, timeout=DEADLINE_S)),
            lambda: stub.Submit(iter(pieces), timeout=DEADLINE_S),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call()
            error = refused.value
            assert (error.code(), error.details()) == (
                Code.UNAVAILABLE,
                serving.NOT_NOW,
            )
            said = str(error) + str(error.trailing_metadata())
            assert not [secret for secret in ("ward-2", "/var") if secret in said]


@pytest.fixture
def stalled() -> Iterator[Stalled]:
    """An upload that sends these pieces and then keeps its stream open, or drips."""
    over = threading.Event()

    def upload(pieces: list[pb.SubmissionPiece], drip_s: float | None = None) -> Pieces:
        yield from pieces
        while not over.wait(drip_s):
            yield pb.SubmissionPiece(body=b"")

    yield upload
    over.set()


@contextmanager
def taken(deployed: Deployed, role: Role, slots: str) -> Iterator[TransferSlots]:
    """From now on one transfer at a time, and until the block ends that is somebody
    else's."""
    one = TransferSlots(1)
    setattr(deployed.services[role], slots, one)
    other = TransferSlot(one)
    deployed.loop.run(other.take())
    try:
        yield one
    finally:
        deployed.loop.loop.call_soon_threadsafe(other.close)


@pytest.mark.parametrize(
    ("role", "kind"),
    [*product([A, B], ["no header", "no body", "drip"]), (B, "salt"), (B, "half")],
)
def test_a_slow_loris_is_cut_off(
    deploy: Deploy, stalled: Stalled, role: Role, kind: str
) -> None:
    drips = kind == "drip"
    collect_s, idle_s = (0.6, DEADLINE_S) if drips else (DEADLINE_S, 0.3)
    deployed = deploy({"deadlines.collect": collect_s}, idle_s=idle_s)
    deployed.open_round()
    with deployed.connect(ONE) as servers, deployed.stub(role) as stub:
        pair = deployed.pair(servers)
        header, *body = submission_messages.upload_pieces(
            pair[0] if role is A else pair[1]
        )
        pieces = {"no header": [], "no body": [header], "drip": [header]}
        if kind in ("salt", "half"):
            half = pb.SubmissionPiece(body=body[1].body[:16])
            pieces |= {"salt": [header, body[0]], "half": [header, body[0], half]}
        upload = stalled(pieces[kind], 0.05 if drips else None)
        receipt = stub.Submit(upload, timeout=DEADLINE_S)
        spooled = list((deployed.folder / B.value / "spool").iterdir())
        assert (receipt.rejection, spooled) == (errors.Rejection.TRUNCATED.value, [])
        # Its place is free again, and the whole upload is welcome; it may take its
        # time.
        deployed.services[role].idle_s = IDLE_S
        if not drips:
            assert reasons(servers.submit(pair, DEADLINE_S)) == [None, None]
            assert deployed.outcome()[ONE] == "counted"


@pytest.mark.parametrize("how", ["asked for", "unasked"])
def test_a_body_is_read_when_its_turn_comes(deployed: Deployed, how: str) -> None:
    asked = how == "asked for"
    with (
        deployed.connect(ONE) as servers,
        deployed.stub(B) as stub,
        ThreadPoolExecutor(1) as pool,
    ):
        pair = deployed.pair(servers)
        with taken(deployed, B, "_upload_slots") as slots:
            if asked:
                uploading: Future[Receipts] | grpc.Future[pb.Receipt] = pool.submit(
                    servers.submit, pair
                )
            else:
                uploading = stub.Submit.future(
                    submission_messages.upload_pieces(pair[1]), timeout=DEADLINE_S
                )
            until(lambda: slots._waiting, "an upload that waits for its slot")
            came = deployed.sessions[B].traffic["clients to server-b"]
            assert (came, uploading.done()) == (ring.KEY_BYTES, False)
        said = uploading.result()
        if isinstance(said, tuple):
            assert reasons(said) == [None, None]
            assert deployed.outcome()[ONE] == "counted"
        else:
            assert said.rejection == ""


def test_a_quick_upload_passes_by_all_that_stall(
    deployed: Deployed, stalled: Stalled
) -> None:
    deployed.services[B]._upload_slots = TransferSlots(1)
    with (
        deployed.stub(B) as stub,
        deployed.connect(ONE) as slow,
        deployed.connect(TWO) as quick,
    ):
        header, salt_h, *_ = submission_messages.upload_pieces(deployed.pair(slow)[1])
        calls = [
            stub.Submit.future(stalled(pieces, 0.01), timeout=DEADLINE_S)
            for pieces in ([header], [header, salt_h])
        ]
        until(lambda: len(deployed.services[B].calls) == len(calls), "open uploads")
        assert reasons(quick.submit(deployed.pair(quick), DEADLINE_S)) == [None, None]
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()


@pytest.mark.parametrize("role", [A, B])
def test_an_upload_passes_by_the_downloads_that_wait(
    deployed: Deployed, role: Role
) -> None:
    """The last client's download holds up no upload of the first's."""
    model = deployed.sessions[role].model_store.current.digest
    with (
        deployed.connect(ONE) as one,
        deployed.connect(TWO) as late,
        ThreadPoolExecutor(1) as pool,
    ):
        late.serves_first = role
        with taken(deployed, role, "_fetch_slots") as slots:
            fetching = pool.submit(late.fetch_model, 0, model)
            until(lambda: slots._waiting, "a download that waits for its slot")
            assert reasons(one.submit(deployed.pair(one), DEADLINE_S)) == [None, None]
            assert not fetching.done()
        fetching.result(DEADLINE_S)


def test_who_is_refused_sends_no_body(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[Role, list[str | None]] = {A: [], B: []}

    def noted(submission: Submission) -> Pieces:
        for piece in submission_messages.upload_pieces(submission):
            drawn[submission.role].append(piece.WhichOneof("piece"))
            yield piece

    monkeypatch.setattr("precad.client.connection.upload_pieces", noted)
    with taken(deployed, B, "_upload_slots"), deployed.connect(ONE) as servers:
        pair = deployed.pair(servers, attempt=7)
        assert (
            reasons(servers.submit(pair, DEADLINE_S))
            == [errors.Rejection.WRONG_ATTEMPT] * 2
        )
    assert drawn == {A: ["header"], B: ["header"]}
    assert deployed.sessions[B].traffic["clients to server-b"] == 0


def giving(
    deployed: Deployed,
    role: Role,
    version: int,
    let: threading.Event | None = None,
    client: ClientId = ONE,
    model: bytes | None = None,
) -> Iterator[pb.GivenPiece]:
    """A model that an owner gives back: the statement, then nothing more until it is
    let."""
    digest, theta = deployed.task.digest, np.zeros(deployed.task.dimension)
    found = model_digest(digest, version, deployed.task.model.parameters, theta)
    body = pb.StatementBody(
        task_digest=digest.value,
        client=client.name,
        version=version,
        model_digest=found.value,
    )
    signed = messages.sign_body(deployed.sessions[role].signer, role, body)
    yield pb.GivenPiece(task_digest=digest.value, client=client.name, statement=signed)
    if let is not None:
        let.wait(DEADLINE_S)
    yield pb.GivenPiece(data=to_bytes(theta) if model is None else model)


@pytest.mark.parametrize("role", [A, B])
def test_no_model_is_taken_that_is_here_and_one_at_a_time(
    deployed: Deployed, role: Role
) -> None:
    progress, service = deployed.sessions[role].progress, deployed.services[role]
    go_on, end = threading.Event(), threading.Event()
    with deployed.stub(role) as stub:
        give = stub.GiveBack
        # Not a byte of it was sent, and the call is over.
        give(giving(deployed, role, 0, end), timeout=DEADLINE_S)
        assert progress.given_back is None
        first = give.future(giving(deployed, role, 1, go_on), timeout=DEADLINE_S)
        until(service._giving_back.locked, "an owner that gives one back")
        with pytest.raises(grpc.RpcError) as second:
            give(giving(deployed, role, 1, end), timeout=DEADLINE_S)
        assert second.value.code() is Code.RESOURCE_EXHAUSTED
        go_on.set()
        first.result()
        assert progress.given_back is not None
        assert progress.given_back[0] == 1
        # What it was given, it has.
        give(giving(deployed, role, 1, end), timeout=DEADLINE_S)
    end.set()


def test_who_gave_a_model_back_in_vain_comes_after_the_others(
    deployed: Deployed,
) -> None:
    """Else one that dawdles begins again as soon as it is cut off, before everybody
    else."""
    with deployed.stub(A) as stub, deployed.stub(A, TWO) as another:
        for code in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED):
            bad = giving(deployed, A, 1, model=bytes(8))
            with pytest.raises(grpc.RpcError) as refused:
                stub.GiveBack(bad, timeout=DEADLINE_S)
            assert refused.value.code() is code
        good = giving(deployed, A, 1, client=TWO)
        another.GiveBack(good, timeout=DEADLINE_S)
    assert deployed.sessions[A].progress.given_back is not None


def signed_with(notices: Iterator[messages.Notice]) -> bytes:
    notice = next(notices)
    assert isinstance(notice, messages.RoundOpen | messages.RoundOver)
    return notice.signed or b""


def test_notices_hold_what_a_server_signs_at_that_time_and_for_whom(
    deploy: Deploy,
) -> None:
    deployed = deploy()
    session = deployed.sessions[A]
    opened = deployed.opened(ONE, cohort=(ONE,))
    done = RoundDone(
        opened=opened,
        valid=frozenset((ONE,)),
        rejections={},
        model=opened.model,
        most_participations=1,
    )
    with deployed.connect(ONE) as one, deployed.connect(TWO) as two:
        # No attempt is open: who wants to know why asks.
        deployed.announce()
        assert not signed_with(one.watch())
        deployed.open_round()
        opening = messages.Opening.checked(one.verifier, A, signed_with(one.watch()))
        assert (opening.client, opening.attempt, opening.charges) == (ONE.name, 0, 0)
        assert not signed_with(two.watch())
        session.event_log.publish(done)
        for client, servers in ((ONE, one), (TWO, two)):
            statement = messages.Statement.checked(
                servers.verifier, A, signed_with(servers.watch())
            )
            assert (statement.client, statement.version) == (client.name, 0)


def test_a_revoked_client_loses_its_watch_and_nobody_waits(
    deploy: Deploy, tmp_path: Path
) -> None:
    """It held every round to its deadline, for as long as it kept its watch."""
    deployment_keys.create_local_keys(tmp_path / "own", [ONE.name, TWO.name])
    deployed = deploy(own=tmp_path / "own")
    session = deployed.sessions[A]
    deployed.announce()
    with deployed.connect(ONE) as bad, deployed.connect(TWO) as good:
        watches = {ONE: bad.watch(), TWO: good.watch()}
        assert all(
            isinstance(next(watch), messages.RoundOpen) for watch in watches.values()
        )
        deployed.open_round()
        keys = deployment_keys.Deployment.open(tmp_path / "own")
        keys.revoke(keys.current_serials(Principal.client(ONE.name)))
        assert reasons(good.submit(deployed.pair(good))) == [None, None]
        gone = session.connected_clients.gone
        until(
            lambda: session.inbox.over([ONE, TWO], gone), "the round's end without it"
        )
        with pytest.raises(errors.AccessDenied, match="revoked"):
            next(watches[ONE])
        deployed.announce()
        assert isinstance(next(watches[TWO]), messages.RoundOpen)
        assert not gone(TWO)


def test_the_second_process_is_told(
    deployed: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    """Two owners with one certificate lost 6 of 50 rounds to each other without a
    word."""
    deployed.announce()
    clock = LeapingClock()
    with deployed.connect(ONE) as first, deployed.connect(ONE, clock=clock) as second:
        watch = first.watch()
        next(watch)
        with pytest.raises(
            errors.NameInUse, match="another process takes part as client ward-1"
        ):
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
        assert isinstance(next(second.watch()), messages.RoundOpen)


def test_another_task_is_refused_by_both_digests(deployed: Deployed) -> None:
    other = small_task(8, {"name": "another"})
    with deployed.connect(ONE) as servers:
        servers.task = other
        for meet in (
            servers.check_task,
            lambda: servers.enrol(1, other.privacy.record_rate),
            lambda: list(servers.watch()),
        ):
            with pytest.raises(errors.PrecadError, match="same task file") as refused:
                meet()
            said = set(re.findall(r"[0-9a-f]{64}", str(refused.value)))
            assert {str(other.digest), str(deployed.task.digest)} <= said


def test_who_comes_after_the_end_hears_that_and_an_owner_is_welcome(
    deployed: Deployed,
) -> None:
    claim = roster.Enrolment(ONE, 100, 0.2)
    for session in deployed.sessions.values():
        session.store.enrolment.claim(claim)
        session.register.freeze(roster.Roster({ONE: claim}))
        session.model_store.put(
            deployed.task.training.rounds, session.model_store.theta()
        )
    for name, kind, said in (
        (ONE, Kind.NOTE, "precad join fetches its final model"),
        (TWO, Kind.BAD, "is finished, without client ward-2"),
    ):
        owner = deployed.owners[name]
        findings = look_at_servers(None, name, owner, deployed.addresses, DEADLINE_S)()
        servers = [each for each in findings if each.about.startswith("server")]
        assert [(each.kind, said in each.text) for each in servers] == [
            (kind, True)
        ] * 2
    with deployed.connect(ONE) as one, deployed.connect(TWO) as two:
        one.enrol(100, 0.2)
        with pytest.raises(
            errors.PrecadError, match="the training is finished, without it"
        ):
            two.enrol(100, 0.2)


def test_one_account_a_client_at_once(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes seconds, and an honest owner's claim waits for those before it."""
    cap, go_on = deployed.sessions[A].register.cap, threading.Event()
    monkeypatch.setattr(cap, "precompute", lambda _rate: go_on.wait(DEADLINE_S))
    monkeypatch.setattr(cap, "is_ready", lambda _rate: False)
    claim = partial(
        pb.EnrolRequest,
        task_digest=deployed.task.digest.value,
        client=ONE.name,
        records=100,
    )
    rates = [roster.on_grid(deployed.task, 0.2 / n) for n in range(1, 6)]
    claims = [claim(record_rate=rate) for rate in rates]
    with deployed.stub(A) as stub:
        asked = [stub.Enrol.future(each, timeout=DEADLINE_S) for each in claims]
        until(
            lambda: sum(each.done() for each in asked) == len(asked) - 1, "the refusals"
        )
        go_on.set()
        codes = [each.code() for each in asked]
    assert (codes.count(Code.RESOURCE_EXHAUSTED), codes.count(Code.OK)) == (
        len(asked) - 1,
        1,
    )
