"""A server that says whatever a test wants, over TLS, and keeps what it is sent."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from grpc import ServicerContext
from tests.rig.keys import identity
from tests.rig.waiting import until

from precad.common.clock import CLOCK, Clock
from precad.common.identifiers import Digest, Role
from precad.common.identity import credentials, party_certificate, signatures
from precad.common.identity.mutual_tls import WIRE_VERSION, add_port
from precad.common.model import ModelVector, model_digest, to_bytes
from precad.common.task import Task
from precad.common.wire.messages import sign_body
from precad.norm_check.submission_messages import BODY_WANTED
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import (
    AggregationServicer,
    add_AggregationServicer_to_server,
)


@dataclass(slots=True)
class FakeServer(AggregationServicer):
    role: Role
    task: Task
    theta: ModelVector
    rounds: int = 3
    digest: Digest | None = None  # Of the model; right unless given
    announced: bytes | None = None
    described: Task | None = None
    pieces: Callable[[], Iterator[bytes]] | None = None
    receipt: pb.Receipt = field(default_factory=pb.Receipt)
    notices: list[pb.Notice] | None = None
    given: list[bytes] = field(default_factory=list)
    uploads: list[bytes] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)  # By attempt
    address: str = ""
    paced: bool = (
        False  # Whether the next attempt opens only when this one's upload is there
    )
    says_over: bool = (
        False  # Whether each attempt's end is announced, once its upload is there
    )
    covers: bool = False  # Whether the notices say that the client isn't drawn
    calls: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # With sizes
    opened: dict[int, float] = field(default_factory=dict)  # When it was announced
    fetch_s: list[float] = field(default_factory=list)  # How long each may take
    came_after: list[float] = field(default_factory=list)  # From notice to upload
    clock: Clock = CLOCK
    serves_first: Role = (
        Role.SERVER_A
    )  # From which server it tells the client to fetch models
    wire_version: int = (
        WIRE_VERSION  # As it answers; 0 is what servers before version 2 say
    )

    def model(self, version: int = 0) -> bytes:
        own = model_digest(
            self.task.digest, version, self.task.model.parameters, self.theta
        )
        return (self.digest or own).value

    def Describe(  # noqa: N802
        self, request: pb.DescribeRequest, _: ServicerContext
    ) -> pb.DescribeReply:
        self.note("Describe", request.ByteSize())
        task, now = self.described or self.task, time.time_ns() // 1_000_000
        return pb.DescribeReply(
            role=self.role.value,
            task_digest=task.digest.value,
            canonical_task=task.canonical,
            clock_ms=now,
            enrolling=True,
            wire_version=self.wire_version,
        )

    def Enrol(  # noqa: N802
        self, request: pb.EnrolRequest, _: ServicerContext
    ) -> pb.EnrolReply:
        self.note("Enrol", request.ByteSize())
        return pb.EnrolReply(enrolled=1)

    def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: ServicerContext
    ) -> Iterator[pb.Notice]:
        for notice in self._notices(request, context):
            notice.serves_first = self.serves_first.value
            yield notice

    def _notices(
        self, request: pb.WatchRequest, context: ServicerContext
    ) -> Iterator[pb.Notice]:
        self.note("Watch", request.ByteSize())
        if request.task_digest != (self.described or self.task).digest.value:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "task digest differs")
        for notice in self.notices or ():
            self.versions[notice.open.attempt] = notice.open.version
            yield notice
        for number in range(self.rounds):
            self.versions[number] = number
            self.opened[number] = self.clock.now()
            notice = opening(
                number, self.announced or self.model(number), version=number
            )
            notice.open.selected = not self.covers
            yield notice
            if self.paced:
                until(
                    lambda: (
                        len(self.uploads) > number  # noqa: B023
                        or not context.is_active()
                    )
                )
            if self.says_over:
                yield pb.Notice(
                    over=pb.RoundOver(attempt=number, version=number, counted=True)
                )
        last = self.announced or self.model(self.rounds)
        yield pb.Notice(
            finished=pb.TrainingOver(version=self.rounds, model_digest=last)
        )

    def ModelDigest(  # noqa: N802
        self, request: pb.ModelRequest, _: ServicerContext
    ) -> pb.ModelDigestReply:
        self.note("ModelDigest", request.ByteSize())
        return pb.ModelDigestReply(model_digest=self.model(request.version))

    def FetchModel(  # noqa: N802
        self, request: pb.ModelRequest, context: ServicerContext
    ) -> Iterator[pb.ModelPiece]:
        self.note("FetchModel", request.ByteSize())
        self.fetch_s.append(context.time_remaining())
        for data in self.pieces() if self.pieces else iter([to_bytes(self.theta)]):
            yield pb.ModelPiece(data=data)

    def Opening(  # noqa: N802
        self, request: pb.OpeningRequest, _: ServicerContext
    ) -> pb.Signed:
        self.note("Opening", request.ByteSize())
        version = self.versions[request.attempt]
        return self._signed(pb.OpeningBody, request.client, version, request.attempt)

    def GiveBack(  # noqa: N802
        self, request_iterator: Iterator[pb.GivenPiece], _: ServicerContext
    ) -> pb.GivenReply:
        self.given.append(b"".join(piece.data for piece in request_iterator))
        return pb.GivenReply()

    def Statement(  # noqa: N802
        self, request: pb.StatementRequest, _: ServicerContext
    ) -> pb.Signed:
        self.note("Statement", len(request.shown.body))
        return self._signed(pb.StatementBody, request.client, 0, -1)

    def _signed(
        self,
        kind: type[pb.OpeningBody | pb.StatementBody],
        client: str,
        version: int,
        attempt: int,
    ) -> pb.Signed:
        body = kind(
            client=client,
            version=version,
            attempt=attempt,
            task_digest=self.task.digest.value,
            model_digest=self.model(version),
        )
        return sign_body(signatures.CertificateSigner(self.identity), self.role, body)

    @property
    def identity(self) -> credentials.Identity:
        return identity(party_certificate.Principal.service(self.role))

    def Submit(  # noqa: N802
        self, request_iterator: Iterator[pb.SubmissionPiece], context: ServicerContext
    ) -> pb.Receipt:
        # Nobody else uploads: the body may come at once.
        context.send_initial_metadata(BODY_WANTED)
        pieces, sizes, seed = [], [], b""
        for piece in request_iterator:
            if piece.WhichOneof("piece") == "header":
                came = self.clock.now()
                attempt = piece.header.attempt
                self.came_after.append(came - self.opened.get(attempt, came))
                piece.header.signature = b""
                seed = piece.header.seed
            sizes.append(piece.ByteSize())
            pieces.append(piece.body)
        self.note("Submit", *sizes)
        self.uploads.append(b"".join(pieces) or seed)
        return self.receipt

    def note(self, rpc: str, *sizes: int) -> None:
        self.calls.append((rpc, sizes))


def opening(
    number: int, model: bytes, version: int = 0, collect_s: float = 5.0
) -> pb.Notice:
    opened = pb.RoundOpen(
        attempt=number, model_digest=model, selected=True, version=version
    )
    opened.collect_seconds = collect_s
    return pb.Notice(open=opened)


@contextmanager
def started(*fakes: FakeServer) -> Iterator[None]:
    servers = []
    for fake in fakes:
        server = grpc.server(ThreadPoolExecutor(4))
        add_AggregationServicer_to_server(fake, server)
        fake.address = f"127.0.0.1:{add_port(server, '127.0.0.1:0', fake.identity)}"
        server.start()
        servers.append(server)
    yield
    for server in servers:
        server.stop(None).wait()
