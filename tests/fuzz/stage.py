"""What a fuzz target is, and what targets run against: real services, no network.

A target is a function of bytes that raises PrecadError alone, and its seeds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never, TypeVar, cast
from unittest.mock import AsyncMock

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from tests.integration.hostile.conftest import NOWHERE, session_of
from tests.rig import clock, memory, tasks
from tests.rig.documents import Arguments
from tests.rig.task_files import task_to_toml

from precad.aggregator.attempt_states import Opened
from precad.aggregator.rpc.aggregation_service import AggregationService
from precad.aggregator.rpc.dealer_client import RemoteDealer
from precad.aggregator.rpc.operation_service import OperationService
from precad.aggregator.training.session import Session, TrainingDone
from precad.client import connection, pending_update
from precad.client.own_account import OwnAccount
from precad.client.participant import Participant
from precad.client.server_statements import ServerStatements
from precad.common.errors import MAX_TEXT, PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import SERVERS, ClientId, Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.submission import SubmissionContext
from precad.common.wire.messages import sign_body
from precad.common.wire.serving import NOT_NOW
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService
from precad.norm_check.proof_submission import AnySubmission, ForProof
from precad.norm_check.share_update import share
from precad.norm_check.submission_messages import BODY_WANTED
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub, DealingStub

D = 8
ROUND = 3
VERSION = 2
CLIENT = ClientId("ward-1")
OPENINGS = Digest(b"a" * 32), Digest(b"b" * 32)
SEED_HOLDER = Role.SERVER_A
Parsed = TypeVar("Parsed", bound=Message)


class Aborted(Exception):
    """The call ended with a status code and details."""


def context_of(certificate: bytes) -> SimpleNamespace:
    async def abort(code: grpc.StatusCode, details: str = "") -> Never:
        raise Aborted(code, details)

    made = SimpleNamespace(
        abort=abort, send_initial_metadata=AsyncMock(), done=lambda: False
    )
    made.auth_context, made.peer = (
        lambda: {"x509_pem_cert": [certificate]},
        lambda: "ipv4:[::1]:1",
    )
    return made


class Refusing(grpc.RpcError):
    """A server that ends a call, with a code and a text of these bytes."""

    def __init__(self, code: str = "FAILED_PRECONDITION", text: bytes = b"no") -> None:
        super().__init__(code, text)

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode[self.args[0]]

    def details(self) -> str:
        return str(self.args[1], errors="replace")


def split(data: bytes) -> list[bytes]:
    """A stream's messages: each after two bytes of length, the last one whole."""
    pieces = []
    while data:
        length = int.from_bytes(data[:2], "big")
        pieces.append(data[2 : 2 + length])
        data = data[2 + length :]
    return pieces


def join(*pieces: bytes) -> bytes:
    return b"".join(len(piece).to_bytes(2, "big") + piece for piece in pieces)


def parsed(kind: type[Parsed], data: bytes) -> Parsed:
    """The message; an error of ours where gRPC's own parser refuses the bytes."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise PeerViolation("these bytes are no message") from None


class Stage:
    def __init__(self, validation: str = "crypten") -> None:
        self._temporary = memory.in_memory()
        self.folder = Path(self._temporary.name)
        deadlines = {"enrol": 0.01, "collect": 600.0, "work": 0.0}
        self.task = tasks.task_with(
            {"validation": validation, "deadlines": deadlines}, D
        )
        self.loop = asyncio.new_event_loop()
        (self.folder / "task.toml").write_text(
            task_to_toml(self.task), encoding="utf-8"
        )
        create_local_keys(self.folder / "keys", [CLIENT.name])
        self.identity = Identity.load(self.folder / "keys" / "server-a")
        self.client_identity = Identity.load(self.folder / "keys" / CLIENT.name)
        self.signer = CertificateSigner(self.client_identity)
        self.verifier = CertificateVerifier(self.identity)
        keys = self.folder / "keys"
        self._pens = {
            r: CertificateSigner(Identity.load(keys / r.value)) for r in SERVERS
        }
        self.sessions = {
            r: self.loop.run_until_complete(self._session(r)) for r in SERVERS
        }
        self.aggregation = {
            role: AggregationService(s) for role, s in self.sessions.items()
        }
        self.operation = OperationService(self.sessions[Role.SERVER_A])
        self._servers = connection.Servers(
            self.task,
            CLIENT,
            server_a=NOWHERE,
            server_b=NOWHERE,
            identity=self.client_identity,
            patience_s=0.01,
        )
        self._channel = grpc.insecure_channel(NOWHERE)
        self._dealer = RemoteDealer(self._channel, NOWHERE, self.task, Role.SERVER_B)

    async def _session(self, role: Role) -> Session:
        dealer = NOWHERE if self.task.has_dealer else None
        session = session_of(role, self.folder, self.folder / "keys", dealer)
        session.event_log.publish(TrainingDone(0, session.model_store.current.digest))
        await asyncio.sleep(0)
        return session

    def file(self, data: bytes, suffix: str = "") -> Path:
        """A file with these bytes; the next call may replace it."""
        path = self.folder / f"input{suffix}"
        path.write_bytes(data)
        return path

    def call(self, handler: Callable[..., object], request: object, party: str) -> None:
        certificate = (self.folder / "keys" / party / "cert.pem").read_bytes()
        answer = handler(request, context_of(certificate))
        self.loop.run_until_complete(_exhaust(answer))

    def stream(
        self,
        handler: Callable[..., object],
        messages: Sequence[Message],
        party: str,
    ) -> None:
        async def streamed() -> AsyncIterator[Message]:
            for message in messages:
                yield message

        self.call(handler, streamed(), party)

    def submit(self, role: Role, messages: list[pb.SubmissionPiece]) -> bool:
        session = self.sessions[role]
        model = session.model_store.current.digest
        holders = {} if self.task.proof is None else {CLIENT: SEED_HOLDER}
        session.inbox.open(
            Opened(
                attempt=ROUND,
                version=VERSION,
                cohort=(CLIENT,),
                model=model,
                counted=frozenset(),
                seed_holders=holders,
            )
        )
        # Fresh in every attempt, and what is sent here was made before.
        opened = session.inbox._open_attempt
        assert opened is not None
        opened.opening = OPENINGS[SERVERS.index(role)]
        try:
            self.stream(self.aggregation[role].Submit, messages, CLIENT.name)
            held = CLIENT in opened.held
        finally:
            session.inbox.cancel()
        assert role is Role.SERVER_A or not list(
            (self.folder / role.value / "spool").iterdir()
        )
        return held

    def dealer(self) -> DealingService:
        """A dealer's start of its own: it remembers what it dealt."""
        service = DealingService(self.task, DealerRole.of(self.task), self.identity)
        service._epoch = bytes(16)
        return service

    def remote_dealer(
        self, pieces: list[pb.DealPiece], reply: pb.JoinReply
    ) -> RemoteDealer:
        answers = _Answers({"Join": reply, "Deal": pieces})
        self._dealer._stub = cast("DealingStub", answers)
        return self._dealer

    def take_part(self, answers: Arguments) -> None:
        """A client's training against servers that answer this, and then pause."""
        stopped = pb.Notice(paused=pb.TrainingPaused(), serves_first="server-a")
        answers = {**answers, "Watch": [*answers["Watch"], stopped]}
        at_b = pb.DescribeReply()
        at_b.CopyFrom(answers["Describe"])
        if at_b.role == "server-a":
            at_b.role = "server-b"
        stubs = self._servers._stubs
        for role, own in zip(
            SERVERS, (answers, answers | {"Describe": at_b}), strict=True
        ):
            # A server says anything under its own signature.
            pen = self._pens[role]
            signed = {
                name: sign_body(pen, role, own[name])
                for name in ("Opening", "Statement")
            }
            stubs[role] = cast("AggregationStub", _Answers(own | signed))
        self._servers.check_task()
        self._servers.enrol(50, 0.2)
        pending = pending_update.Pending(self.task, CLIENT)
        account = OwnAccount(self.task, 0.2, None, None)
        zeros = np.zeros(D, dtype=np.int64)
        Participant(
            servers=self._servers,
            budget=account,
            pending=pending,
            compute=lambda _: zeros,
            clock=_NoPatience(),
            statements=ServerStatements(self.task, CLIENT),
        ).run()


class _NoPatience(clock.LeapingClock):
    """The pause lasts: whoever would wait for its end has seen enough."""

    def sleep(self, seconds: float) -> None:
        raise PeerUnavailable(f"a pause of {seconds:g} s")


class _Answers:
    def __init__(self, answers: Arguments) -> None:
        self._answers = answers

    def __getattr__(self, method: str) -> Callable[..., object]:
        def call(request: object, **_: object) -> object:
            if isinstance(request, Iterator):
                list(request)
            answer = self._answers.get(method)
            if answer is None:
                raise Refusing
            return _Stream(answer) if isinstance(answer, list) else answer

        def future(request: object, **_: object) -> SimpleNamespace:
            # It is this client's turn at once, and the call ends when it is asked how.
            result = partial(call, request)
            return SimpleNamespace(result=result, initial_metadata=lambda: BODY_WANTED)

        call.future = future  # type: ignore[attr-defined]
        return call


class _Stream(list[object]):
    cancel = list[object].clear


async def _exhaust(answer: Any) -> None:
    if hasattr(answer, "__aiter__"):
        async for _ in answer:
            pass
    else:
        await answer


# How a call ends whose handler raised something unforeseen; or as ``NOT_NOW``.
BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
Parse = Callable[[bytes], object]
Seeds = Callable[[], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Target:
    parse: Parse
    seeds: Seeds

    def check(self, data: bytes) -> None:
        """Parse; any error but ours, or one of ours without bounds, is raised."""
        try:
            self.parse(data)
        except PrecadError as error:
            text = str(error)
        except Aborted as ended:
            code, text = ended.args
            if code in BUGS or text == NOT_NOW:
                raise
        else:
            return
        if len(text) > MAX_TEXT:
            raise AssertionError(f"an error of {len(text)} characters")


TARGETS: dict[str, Target] = {}


def target(name: str, seeds: Seeds) -> Callable[[Parse], Parse]:
    def add(parse: Parse) -> Parse:
        TARGETS[name] = Target(parse, seeds)
        return parse

    return add


@cache
def stage(validation: str = "crypten") -> Stage:
    return Stage(validation)


def pair(validation: str = "crypten") -> tuple[AnySubmission, AnySubmission]:
    here = stage(validation)
    model = here.sessions[Role.SERVER_A].model_store.current.digest
    context = SubmissionContext(
        task=here.task.digest,
        version=VERSION,
        attempt=ROUND,
        client=CLIENT,
        model=model,
    )
    stated = ForProof(OPENINGS, SEED_HOLDER)
    return share(here.task, np.arange(D, dtype=np.int64), context, here.signer, stated)
