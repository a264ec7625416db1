"""A client that does everything wrong against a running server: its own affair, nobody
else's."""

import itertools
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

import grpc
import numpy as np
import pytest
from benchmarks.crowd.resident import resident_mib
from tests.conftest import small_task
from tests.integration.hostile.conftest import MakeSite, Running, Site
from tests.rig.submissions import body_of
from tests.rig.waiting import beside, until

from precad.aggregator.attempt_states import Opened
from precad.aggregator.rpc import peer_transport
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity import mutual_tls, signatures
from precad.common.submission import Submission, SubmissionContext, shard
from precad.common.wire import guarded_port
from precad.common.wire.guarded_port import CallRate
from precad.common.wire.serving import SERVER_OPTIONS
from precad.norm_check.proof_submission import AnySubmission
from precad.norm_check.submission_messages import upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

D = 8192  # B's body has 64 KiB
CALL_S = 240.0  # Deadline of a call, which on a quiet machine takes milliseconds
WARDS = ("ward-1", "ward-2", "ward-3")
HONEST, HOSTILE = ClientId("ward-1"), ClientId("ward-2")
ROUND = 3
Pieces = Sequence[pb.SubmissionPiece]


@pytest.fixture(scope="module")
def site(make_site: MakeSite) -> Site:
    return make_site(small_task(D, {"deadlines.collect": 3600.0}), *WARDS)


@pytest.fixture(scope="module", params=[Role.SERVER_A, Role.SERVER_B], ids=["a", "b"])
def server(site: Site, request: pytest.FixtureRequest) -> Iterator[Running]:
    # How often one may call is tested for itself; here a storm must get in.
    running = site.start(request.param, CALL_S, CallRate(per_s=10_000.0))
    yield running
    # A worker that takes over another's tests may come back to this server later.
    site.stop(running)


@pytest.fixture
def bench(site: Site, server: Running) -> Iterator["Bench"]:
    with Bench(site, server).round() as bench:
        yield bench
    assert bench.spooled() == []


class Bench:
    def __init__(self, site: Site, server: Running) -> None:
        self.site = site
        self.server = server
        self.role: Role = server.session.role
        self.model: Digest = server.session.model_store.current.digest
        self._channels: dict[str, grpc.Channel] = {}

    @contextmanager
    def round(self, number: int = ROUND) -> Iterator["Bench"]:
        """Submissions of both wards are taken."""
        inbox = self.server.session.inbox
        inbox.open(
            Opened(
                attempt=number,
                version=0,
                cohort=(HONEST, HOSTILE),
                model=self.model,
                counted=frozenset(),
            )
        )
        yield self
        inbox.cancel()
        for channel in self._channels.values():
            channel.close()

    def channel(self, who: str) -> grpc.Channel:
        if who not in self._channels:
            identity = self.site.identity(who)
            self._channels[who] = mutual_tls.open_channel(
                self.server.address, identity, self.role
            )
        return self._channels[who]

    def submission(
        self, who: str = "ward-2", number: int = ROUND, model: Digest | None = None
    ) -> Submission:
        pair = shard(
            np.arange(D, dtype=np.int64),
            SubmissionContext(
                task=self.site.task.digest,
                version=0,
                attempt=number,
                client=ClientId(who),
                model=model or self.model,
            ),
            signatures.CertificateSigner(self.site.identity(who)),
        )
        return pair[0] if self.role is Role.SERVER_A else pair[1]

    def pieces(
        self, who: str = "ward-2", number: int = ROUND, model: Digest | None = None
    ) -> list[pb.SubmissionPiece]:
        """Of a submission: the header, and for server B the body in four equal
        pieces."""
        submission = self.submission(who, number, model)
        data = body_of(submission)
        size = max(1, len(data) // 4)
        parts = (data[i : i + size] for i in range(0, len(data), size))
        return [
            next(iter(upload_pieces(submission))),
            *(pb.SubmissionPiece(body=p) for p in parts),
        ]

    def submit(self, pieces: Iterable[pb.SubmissionPiece], who: str = "ward-2") -> str:
        """The receipt's rejection, ``""`` when held, or the status code's name."""
        try:
            receipt = AggregationStub(self.channel(who)).Submit(
                iter(pieces), timeout=CALL_S
            )
        except grpc.RpcError as error:
            return str(error.code().name)
        assert not receipt.rejection or receipt.detail
        return str(receipt.rejection)

    def honest_submits(self) -> None:
        """As a client that tries again after whatever breaks its upload."""
        submission = self.submission("ward-1")
        until(
            lambda: self.submit(upload_pieces(submission), "ward-1") == "",
            "an honest upload",
        )

    def closed(self) -> tuple[bool, AnySubmission | Rejection]:
        """Whether the honest client's submission is held, and what the hostile one's
        came to."""
        collected = self.server.session.inbox.close()
        for held in collected.values():
            if isinstance(held, Submission):
                held.discard()
        return isinstance(collected[HONEST], Submission), collected[HOSTILE]

    def spooled(self) -> list[Path]:
        return list((self.site.folder / self.role.value / "spool").glob("*"))


Make = Callable[[Bench], Pieces]


def header_with(
    *cleared: Literal["signature", "certificates"],
    of: str = "ward-2",
    **changes: object,
) -> Make:
    """A good submission's, but for some fields; functions get the bench."""

    def make(bench: Bench) -> Pieces:
        header, *body = bench.pieces(of)
        for field in cleared:
            header.header.ClearField(field)
        for name, value in changes.items():
            setattr(header.header, name, value(bench) if callable(value) else value)
        return [header, *body]

    return make


def body_as(order: Callable[[list[pb.SubmissionPiece]], Pieces]) -> Make:
    """A good header, then a body's pieces otherwise; at server A, which takes none, of
    zeros."""

    def make(bench: Bench) -> Pieces:
        header, *body = bench.pieces()
        return [header, *order(body or [pb.SubmissionPiece(body=bytes(8))] * 4)]

    return make


MALFORMED, UNSIGNED = Rejection.MALFORMED, Rejection.BAD_SIGNATURE
UPLOADS: dict[str, tuple[Make, Rejection | str]] = {
    "header twice": (lambda b: [b.pieces()[0]] * 2, MALFORMED),
    "too long": (body_as(lambda s: [*s, s[0]]), MALFORMED),
    "reordered": (body_as(lambda s: s[::-1]), MALFORMED),
    "repeated": (body_as(lambda s: [s[0], s[0], *s[2:]]), MALFORMED),
    "short nonce": (header_with(nonce=b"1"), MALFORMED),
    "short salt": (header_with(salt=b"1"), MALFORMED),
    "long seed": (header_with(seed=bytes(33)), MALFORMED),
    "another salt": (header_with(salt=bytes(32)), MALFORMED),
    "another seed": (header_with(seed=bytes(32)), MALFORMED),
    "short commitment": (header_with(commitment_a=b"1"), MALFORMED),
    "another commitment": (header_with(commitment_b=bytes(32)), UNSIGNED),
    "another body digest": (header_with(body_digest=bytes(32)), UNSIGNED),
    "another version": (header_with(version=1), Rejection.WRONG_ATTEMPT),
    "no signature": (header_with("signature", "certificates"), UNSIGNED),
    "a made-up signature": (header_with(signature=b"1"), UNSIGNED),
    "another's signature": (header_with(of="ward-1", client="ward-2"), UNSIGNED),
    "another's commitment": (
        header_with(commitment_b=lambda b: b.submission().header.commitment_b.value),
        UNSIGNED,
    ),
    "another's nonce": (
        header_with(nonce=lambda b: b.submission("ward-1").context.nonce),
        UNSIGNED,
    ),
    "forged model digest": (
        lambda b: b.pieces(model=Digest(b"\7" * 32)),
        Rejection.WRONG_MODEL,
    ),
    # Not known to be this round's and this client's: nothing came of that client's.
    "nothing": (lambda _: [], "truncated"),
    "no header": (lambda _: [pb.SubmissionPiece(body=b"x")], "malformed"),
    "a piece that is neither": (lambda _: [pb.SubmissionPiece()], "malformed"),
    "stale round": (lambda b: b.pieces(number=ROUND - 1), "wrong-attempt"),
    "future round": (lambda b: b.pieces(number=ROUND + 1), "wrong-attempt"),
    "the last round there is": (lambda b: b.pieces(number=2**64 - 1), "wrong-attempt"),
    "another task": (header_with(task_digest=b"\1" * 32), "wrong-task"),
    "another's name": (header_with(client="ward-1"), "PERMISSION_DENIED"),
    "no name": (header_with(client="x" * 100_000), "INVALID_ARGUMENT"),
}  # And what is answered: a reason that is counted, or words alone


@pytest.mark.parametrize("kind", UPLOADS)
def test_a_bad_upload_is_refused_with_its_reason_and_counted(
    bench: Bench, kind: str
) -> None:
    make, why = UPLOADS[kind]
    assert bench.submit(make(bench)) == getattr(why, "value", why)
    bench.honest_submits()
    assert bench.closed() == (
        True,
        why if isinstance(why, Rejection) else Rejection.ABSENT,
    )


def test_a_bad_header_may_be_mended_and_a_good_one_is_the_clients_only_one(
    bench: Bench,
) -> None:
    bad = header_with(seed=bytes(32))(bench)
    found = [bench.submit(pieces) for pieces in (bad, bench.pieces(), bench.pieces())]
    assert found == ["malformed", "", "duplicate"]
    assert isinstance(bench.closed()[1], Submission)


def test_a_message_above_the_cap_never_reaches_the_parser(bench: Bench) -> None:
    header = bench.pieces()[0]
    large = pb.SubmissionPiece(body=bytes((2 << 20) + 1))
    assert bench.submit([header, large]) == "RESOURCE_EXHAUSTED"
    assert bench.submit([large]) == "RESOURCE_EXHAUSTED"
    bench.honest_submits()
    honest, hostile = bench.closed()
    # The header was all that server A wanted.
    at_a = bench.role is Role.SERVER_A
    assert (honest, isinstance(hostile, Submission)) == (True, at_a)
    assert at_a or hostile is Rejection.TRUNCATED


def test_more_calls_at_once_than_one_caller_may_have(bench: Bench) -> None:
    released = threading.Event()
    header = bench.pieces()[0]

    def waiting() -> Iterator[pb.SubmissionPiece]:
        yield header
        released.wait()

    with ThreadPoolExecutor(6) as threads:
        uploads = [threads.submit(bench.submit, waiting()) for _ in range(6)]
        bench.honest_submits()
        until(lambda: sum(upload.done() for upload in uploads) == 4, "four refusals")
        released.set()
        outcomes = Counter(upload.result() for upload in uploads)
    # A header is all of an upload at server A.
    assert outcomes == {
        "RESOURCE_EXHAUSTED": 4,
        "" if bench.role is Role.SERVER_A else "truncated": 2,
    }


def test_watches_without_end_are_refused_after_two(bench: Bench) -> None:
    request = pb.WatchRequest(task_digest=bench.site.task.digest.value, client="ward-2")
    stub = AggregationStub(bench.channel("ward-2"))
    watches = [stub.Watch(request, timeout=CALL_S) for _ in range(20)]
    until(lambda: sum(watch.is_active() for watch in watches) == 2, "18 refusals")
    # Which two came first is the network's affair.
    refused = [watch for watch in watches if not watch.is_active()]
    assert {watch.code().name for watch in refused} == {"RESOURCE_EXHAUSTED"}
    for watch in watches:
        watch.cancel()
    bench.honest_submits()
    assert bench.closed()[0]


def dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=CALL_S)


def ended(opened: socket.socket) -> None:
    with suppress(ConnectionError):
        while opened.recv(4096):
            pass


@contextmanager
def flood(address: str, silent: int, half_open: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing, and ones that begin a TLS handshake and stop."""
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(20)
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(dialled(address)) for _ in range(silent + half_open)
        ]
        for each in sockets[:half_open]:
            each.sendall(hello)
        yield sockets


def test_unfinished_handshakes_are_closed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the dealer's port, whose options are the servers', but for a shorter time."""
    name = "grpc.server_handshake_timeout_ms"
    assert dict(SERVER_OPTIONS)[name] <= 5000
    monkeypatch.setattr(guarded_port, "SERVER_OPTIONS", (*SERVER_OPTIONS, (name, 500)))
    dealer = site.start(Role.DEALER)
    with flood(dealer.address, silent=20, half_open=20) as sockets:
        for each in sockets:
            ended(each)


def test_no_client_adds_a_stream_to_the_servers_link(bench: Bench) -> None:
    """Also where it knows the link's name, which server B tells server A alone."""

    over = threading.Event()

    def link(who: str, said: str) -> "grpc._CallIterator[bytes]":
        stream: grpc.StreamStreamMultiCallable[threading.Event, bytes]
        stream = bench.channel(who).stream_stream(peer_transport.METHOD)
        nothing = (each for each in (over,) if not each.wait())
        return stream(nothing, metadata=(("precad-link", said),), timeout=CALL_S)

    with ExitStack() as stack:
        stack.callback(over.set)
        first = link("server-a", "2")
        name = str(dict(first.initial_metadata()).get("precad-link", ""))
        assert bool(name) == (bench.role is Role.SERVER_B)
        with pytest.raises(grpc.RpcError) as refused:
            next(link("ward-2", f"{name} 1"))
        expected = (
            grpc.StatusCode.FAILED_PRECONDITION
            if name
            else grpc.StatusCode.UNIMPLEMENTED
        )
        assert refused.value.code() is expected
        assert first.is_active() == bool(name)
        first.cancel()
    bench.honest_submits()


def test_garbage_instead_of_tls_or_http2_ends_its_own_connection_only(
    bench: Bench,
) -> None:
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(5000),
        bytes(100),
    ):
        with dialled(bench.server.address) as opened:
            opened.sendall(garbage)
            ended(opened)
    bench.honest_submits()
    assert bench.closed()[0]
    # Between rounds nothing is taken.
    for number in (0, ROUND, ROUND + 1):
        assert bench.submit(bench.pieces(number=number)) == "wrong-attempt"


def test_memory_and_spool_stay_bounded_through_many_broken_uploads(
    bench: Bench,
) -> None:
    # One header, over and over: a second one would be a duplicate. Server A takes no
    # body.
    header, *body = bench.pieces()
    at_a = bench.role is Role.SERVER_A
    bad = Rejection.MALFORMED if at_a else Rejection.TRUNCATED

    def burst(count: int) -> None:
        for number in range(count):
            part = [pb.SubmissionPiece(body=bytes(8))] if at_a else body[: number % 4]
            assert bench.submit([header, *part]) == bad.value

    burst(20)
    before = resident_mib(os.getpid())
    burst(150)
    assert resident_mib(os.getpid()) - before < 16
    assert bench.spooled() == []
    bench.honest_submits()
    assert bench.closed() == (True, bad)


def test_everything_at_once_and_the_honest_client_still_counts(bench: Bench) -> None:
    answers: list[str] = []

    def storm(first: int, over: threading.Event) -> None:
        for make, _ in itertools.islice(itertools.cycle(UPLOADS.values()), first, None):
            if over.is_set():
                return
            answers.append(bench.submit(make(bench)))

    storms = (partial(storm, first) for first in (0, 7))
    with flood(bench.server.address, silent=60, half_open=60), beside(*storms):
        until(lambda: len(answers) > 10, "a storm")
        bench.honest_submits()
        until(lambda: len(answers) > 60, "a longer storm")
    assert "" not in answers
    honest, hostile = bench.closed()
    assert (honest, isinstance(hostile, Rejection)) == (True, True)


def test_a_replay_after_a_restart_is_refused(site: Site, make_site: MakeSite) -> None:
    here = make_site(site.task, *WARDS)
    with Bench(here, here.start(Role.SERVER_B)).round() as before:
        captured = before.pieces()
        assert (before.submit(captured), len(before.spooled())) == ("", 1)
    here.stop(before.server)
    with Bench(here, here.start(Role.SERVER_B)).round(ROUND + 1) as after:
        assert (after.spooled(), after.submit(captured)) == ([], "wrong-attempt")
        captured[0].header.attempt = ROUND + 1
        assert after.submit(captured) == "bad-signature"
        assert after.submit(after.pieces("ward-1", number=ROUND + 1), "ward-1") == ""
        assert after.closed() == (True, Rejection.BAD_SIGNATURE)
