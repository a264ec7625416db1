"""Slow and greedy callers of real servers: they keep nothing, and nobody else notices them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.integration.service.conftest import DEADLINE_S, ONE, TWO, A, B, Deploy, Deployed, reasons
from tests.rig.waiting import until

from precad.aggregator.rpc.limits import Limits, TransferSlots
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.model import model_digest, to_bytes
from precad.common.ring import KEY_BYTES
from precad.common.share.submission import Submission
from precad.common.wire.messages import sign_body, upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

Code = grpc.StatusCode


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
    ("role", "kind"), [*product([A, B], ["no header", "no body", "drip"]), (B, "salt"), (B, "half")]
)
def test_a_slow_loris_is_cut_off_and_keeps_nothing(
    deploy: Deploy, stalled: Callable[..., Stalling], role: Role, kind: str
) -> None:
    collect_s = 0.6 if kind == "drip" else DEADLINE_S
    idle_s = DEADLINE_S if kind == "drip" else 0.3
    deployed = deploy(changes={"deadlines.collect": collect_s}, limits=Limits(idle_s=idle_s))
    deployed.open_round()
    with deployed.connect(ONE) as servers:
        pair = deployed.pair(servers)
        submission = pair[0] if role is A else pair[1]
        header, *body = upload_pieces(submission)
        pieces = {"no header": [], "no body": [header], "drip": [header]}
        if kind in ("salt", "half"):
            half = pb.SubmissionPiece(body=body[1].body[:16])
            pieces |= {"salt": [header, body[0]], "half": [header, body[0], half]}
        upload = stalled(pieces[kind], 0.05 if kind == "drip" else None)
        with deployed.channel(role) as channel:
            receipt = AggregationStub(channel).Submit(iter(upload), timeout=DEADLINE_S)
        assert (receipt.rejection, deployed.spooled()) == (Rejection.TRUNCATED.value, [])
        # Its place is free again, and the whole upload is welcome; it may take its time.
        deployed.services[role].calls.limits = Limits()
        if kind != "drip":
            assert reasons(servers.submit(pair, DEADLINE_S)) == [None, None]
            assert deployed.outcome()[ONE] == "counted"


class HeldUp:
    """B reads one body at a time from now on, and has one already."""

    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self._upload_slots = deployed.services[B]._upload_slots = TransferSlots(1)
        self._other = self._upload_slots.one()
        deployed.on_loop(self._other.take())

    def until_one_waits(self) -> None:
        """An upload's header has been read, and its body has no slot."""
        until(lambda: self._upload_slots._waiting, "an upload that waits for its slot")

    def end(self) -> None:
        self._deployed.loop.call_soon_threadsafe(self._other.close)


@pytest.mark.parametrize("asked", [True, False], ids=["asked for", "unasked"])
def test_a_body_is_read_when_its_turn_comes(
    deployed: Deployed,
    asked: bool,  # noqa: FBT001 -- a column
) -> None:
    deployed.open_round()
    held = HeldUp(deployed)
    with (
        deployed.connect(ONE) as servers,
        deployed.channel(B) as channel,
        ThreadPoolExecutor(1) as executor,
    ):
        pair = deployed.pair(servers)
        if asked:
            uploading: Any = executor.submit(servers.submit, pair)
        else:
            submit = AggregationStub(channel).Submit
            uploading = submit.future(upload_pieces(pair[1]), timeout=DEADLINE_S)
        held.until_one_waits()
        assert deployed.sessions[B].traffic["clients to server-b"] == KEY_BYTES
        assert not uploading.done()
        held.end()
        if asked:
            assert reasons(uploading.result()) == [None, None]
            assert deployed.outcome()[ONE] == "counted"
        else:
            assert uploading.result().rejection == ""


def test_a_quick_upload_passes_by_all_that_stall(
    deployed: Deployed, stalled: Callable[..., Stalling]
) -> None:
    deployed.open_round()
    deployed.services[B]._upload_slots = TransferSlots(1)
    with (
        deployed.channel(B) as channel,
        deployed.connect(ONE) as slow,
        deployed.connect(TWO) as quick,
    ):
        header, salt_h, *_ = upload_pieces(deployed.pair(slow)[1])
        submit = AggregationStub(channel).Submit
        calls = [
            submit.future(iter(stalled(pieces, 0.01)), timeout=DEADLINE_S)
            for pieces in ([header], [header, salt_h])
        ]
        until(lambda: len(deployed.services[B].calls) == len(calls), "open uploads")
        assert reasons(quick.submit(deployed.pair(quick), DEADLINE_S)) == [None, None]
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()


@pytest.mark.parametrize("role", [A, B])
def test_an_upload_passes_by_the_downloads_that_wait(deployed: Deployed, role: Role) -> None:
    """The last client's download holds up no upload of the first's."""
    deployed.open_round()
    slots = deployed.services[role]._fetch_slots = TransferSlots(1)
    last = slots.one()
    deployed.on_loop(last.take())
    model = deployed.sessions[role].model_store.current.digest
    with (
        deployed.connect(ONE) as first,
        deployed.connect(TWO) as late,
        ThreadPoolExecutor(1) as executor,
    ):
        late.serves_first = role
        fetching = executor.submit(late.fetch_model, 0, model)
        until(lambda: slots._waiting, "a download that waits for its slot")
        assert reasons(first.submit(deployed.pair(first), DEADLINE_S)) == [None, None]
        assert not fetching.done()
        deployed.loop.call_soon_threadsafe(last.close)
        fetching.result(DEADLINE_S)


@pytest.mark.parametrize("role", [A, B])
def test_both_servers_know_who_has_the_final_model(deployed: Deployed, role: Role) -> None:
    """Whichever serves it: the other is asked for the digest."""
    task = deployed.task
    theta, last = np.ones(task.dimension, np.float32), task.training.rounds
    for session in deployed.sessions.values():
        session.model_store.put(last, theta)
        session.store.versions.confirm(last)
    with deployed.connect(ONE) as servers:
        servers.serves_first = role
        servers.fetch_model(last, deployed.sessions[role].model_store.current.digest)
    for session in deployed.sessions.values():
        clients = session.connected_clients
        until(partial(clients.all_have_final_model, [ONE]), "the server's note of it")
        assert not clients.all_have_final_model([ONE, TWO])


def test_a_client_that_is_refused_at_its_header_sends_no_body(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[Role, list[str | None]] = {A: [], B: []}

    def noted(submission: Submission) -> Iterator[pb.SubmissionPiece]:
        for piece in upload_pieces(submission):
            drawn[submission.role].append(piece.WhichOneof("piece"))
            yield piece

    monkeypatch.setattr("precad.client.connection.upload_pieces", noted)
    deployed = deploy()
    deployed.open_round()
    held = HeldUp(deployed)
    with deployed.connect(ONE) as servers:
        x = np.zeros(deployed.task.dimension, dtype=np.int64)
        pair = servers.prepare(0, 7, deployed.sessions[A].model_store.current.digest, x)
        assert reasons(servers.submit(pair, DEADLINE_S)) == [Rejection.WRONG_ATTEMPT] * 2
    held.end()
    assert drawn == {A: ["header"], B: ["header"]}
    assert deployed.sessions[B].traffic["clients to server-b"] == 0


class Giving:
    """A model that an owner gives back: the statement, then nothing more until it is let."""

    def __init__(
        self, deployed: Deployed, role: Role, version: int, client: ClientId = ONE
    ) -> None:
        session = deployed.sessions[role]
        digest = deployed.task.digest.value
        theta = np.zeros(deployed.task.dimension)
        found = model_digest(deployed.task.digest, version, session.task.model.parameters, theta)
        body = pb.StatementBody(
            task_digest=digest, client=client.name, version=version, model_digest=found.value
        )
        signed = sign_body(session.signer, role, body)
        self.first = pb.GivenPiece(task_digest=digest, client=client.name, statement=signed)
        self.model = pb.GivenPiece(data=to_bytes(theta))
        self.go_on = threading.Event()

    def __iter__(self) -> Iterator[pb.GivenPiece]:
        yield self.first
        self.go_on.wait(DEADLINE_S)
        yield self.model


@pytest.mark.parametrize("role", [A, B])
def test_no_model_is_taken_that_this_server_has_and_one_at_a_time(
    deployed: Deployed, role: Role
) -> None:
    session, service = deployed.sessions[role], deployed.services[role]
    has, lacks, again = (Giving(deployed, role, version) for version in (0, 1, 1))
    with deployed.channel(role) as channel:
        give = AggregationStub(channel).GiveBack
        # Not a byte of it was sent, and the call is over.
        give(iter(has), timeout=DEADLINE_S)
        assert session.progress.given_back is None
        first = give.future(iter(lacks), timeout=DEADLINE_S)
        until(service._giving_back.locked, "an owner that gives one back")
        with pytest.raises(grpc.RpcError) as second:
            give(iter(again), timeout=DEADLINE_S)
        assert second.value.code() is Code.RESOURCE_EXHAUSTED
        lacks.go_on.set()
        first.result()
        assert session.progress.given_back is not None
        assert session.progress.given_back[0] == 1
        # What it was given, it has.
        give(iter(again), timeout=DEADLINE_S)
    has.go_on.set()
    again.go_on.set()


def test_who_gave_a_model_back_in_vain_comes_after_the_others(deployed: Deployed) -> None:
    """Else one that dawdles begins again as soon as it is cut off, before everybody else."""
    session = deployed.sessions[A]
    bad, good = Giving(deployed, A, 1), Giving(deployed, A, 1, TWO)
    bad.model = pb.GivenPiece(data=bytes(8))
    for each in (bad, good):
        each.go_on.set()
    with deployed.channel(A) as channel, deployed.channel(A, TWO) as another:
        for code in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED):
            with pytest.raises(grpc.RpcError) as refused:
                AggregationStub(channel).GiveBack(iter(bad), timeout=DEADLINE_S)
            assert refused.value.code() is code
        AggregationStub(another).GiveBack(iter(good), timeout=DEADLINE_S)
    assert session.progress.given_back is not None
