"""A data owner's way to both servers: task, enrolment, model, submission.

Nothing here needs torch: the lowest level submits any vector.
"""

import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Self, TypeVar

import grpc
import numpy as np

from precad.client.both_servers import fetched_model, for_proof
from precad.client.participation import Observer
from precad.client.pending_update import Pair
from precad.common import errors
from precad.common.clock import CLOCK, Clock, Retries, RetryPolicy
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import (
    check_version,
    open_channel,
    why_unreachable,
)
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.model import ModelVector, most_bytes
from precad.common.process import let_go_of_loaded
from precad.common.ring import RingVector
from precad.common.roster import Enrolment
from precad.common.submission import SubmissionContext
from precad.common.task import Task
from precad.common.wire import messages as wire
from precad.common.wire.calls import call_with_retries, error_of
from precad.common.wire.serving import STREAMED_BYTES
from precad.norm_check.proof_submission import SERVERS, AnySubmission, ForProof
from precad.norm_check.share_update import share
from precad.norm_check.submission_messages import body_is_wanted, upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

log = logging.getLogger("precad")

CALL_TIMEOUT_S = 30.0
"""For a call of one message each way."""
UPLOAD_RETRIES = RetryPolicy(0.5, 0.5)
"""Between tries of one upload."""
NAME_FREE_S = 45.0
"""How long an owner's former process may seem to be there: a server's keepalive takes
30 s."""
NAME_RETRIES = RetryPolicy(2.0, 5.0)
_WORTH_A_RETRY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""The second: an upload of this client that broke off is still open at the server."""
Reply = TypeVar("Reply")
_let_go_once = cache(let_go_of_loaded)
"""A process of a thousand owners has its libraries once, and each look at them takes 12
ms."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one server said to an upload; ``rejection`` None when it holds the submission."""

    role: Role
    rejection: errors.Rejection | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """Where a server's training stands for the owner that asks; DescribeReply in precad.proto."""

    role: str = ""
    clock_s: float = 0.0
    enrolling: bool = False
    finished: bool = False
    enrolled: bool = False
    present: bool = False
    refusal: str = ""


def ask_for_state(
    task: Task | None,
    identity: Identity,
    role: Role,
    address: str,
    within_s: float,
    token: Secret | None = None,
) -> ServerState:
    """Return what a server says over a connection of its own; with ``task``, that it runs this one.

    The server looks at ``token``, which stays unused. Raises as ``Servers.check_task``.
    """
    request = pb.DescribeRequest(token=_text(token))
    with open_channel(address, identity, role) as channel:
        try:
            # Whoever answers there is the server: a first connection that is slow is
            # tried again.
            describe = AggregationStub(channel).Describe
            reply = describe(request, timeout=within_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise error_of(role.title, address, error) from None
    return _state(task, role, reply)


def _state(task: Task | None, role: Role, reply: pb.DescribeReply) -> ServerState:
    check_version(role.title, reply.wire_version)
    if task is not None and reply.task_digest != task.digest.value:
        also = differences(task, reply.canonical_task)
        raise errors.TaskMismatch(str(task.digest), reply.task_digest.hex(), also)
    return ServerState(
        role=reply.role,
        clock_s=reply.clock_ms / 1000,
        enrolling=reply.enrolling,
        finished=reply.finished,
        enrolled=reply.enrolled,
        present=reply.present,
        refusal=reply.refusal,
    )


def _text(token: Secret | None) -> str:
    return "" if token is None else token.reveal().decode()


class Servers:
    """Channels to server A and server B for one client and one task.

    ``task`` is the owner's own copy: servers with another one are refused. Addresses
    are ``host:port``. A server that doesn't answer yet is waited for ``patience_s``,
    the task's enrolment deadline unless given.
    """

    def __init__(
        self,
        task: Task,
        client: ClientId,
        *,
        server_a: str,
        server_b: str,
        identity: Identity,
        patience_s: float | None = None,
        clock: Clock = CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self._observer = observer or Observer()
        self.task = task
        self.client = client
        self._identity = identity
        self._signer = CertificateSigner(identity)
        self.verifier = CertificateVerifier(identity)
        self._patience_s = task.deadlines.enrol if patience_s is None else patience_s
        self._addresses = {Role.SERVER_A: server_a, Role.SERVER_B: server_b}
        of = self._addresses.items()
        self._channels = {
            role: open_channel(address, identity, role) for role, address in of
        }
        self._stubs = {role: AggregationStub(c) for role, c in self._channels.items()}
        self.serves_first = Role.SERVER_A
        """Which server models are fetched from first: as the newest notice says."""
        self._instance = secrets.token_bytes(16)
        self._clock = clock
        self._uploads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="upload")
        _let_go_once()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both channels."""
        self._uploads.shutdown(wait=False, cancel_futures=True)
        for channel in self._channels.values():
            channel.close()

    def check_task(self) -> None:
        """Both servers must run exactly this task, in the roles that they were addressed by.

        Raises TaskMismatch: a server runs another one; names both digests.
        Misidentified: another party or authority answers there. PeerUnavailable.
        PeerViolation: it plays another role.
        """
        for role, stub in self._stubs.items():
            reply = self._patiently(role, stub.Describe, pb.DescribeRequest())
            found = _state(self.task, role, reply).role
            if found != role.value:
                raise errors.PeerViolation(
                    f"{self._addresses[role]} is {found}, not {role.value}: mend the"
                    " addresses"
                )

    def enrol(
        self, records: int, record_rate: float, token: Secret | None = None
    ) -> None:
        """Take part, at both servers, with |D_i| records at p_i.

        A claim may be repeated.

        Raises Misconfiguration: the claim passes a cap of the task; and
        PeerUnavailable, PeerViolation, AccessDenied: a server refuses.
        """
        Enrolment(self.client, records, record_rate).check(self.task)
        request = pb.EnrolRequest(
            task_digest=self.task.digest.value,
            client=self.client.name,
            records=records,
            record_rate=record_rate,
            token=_text(token),
        )
        # B first: whoever A knows, B must know.
        for role in (Role.SERVER_B, Role.SERVER_A):
            self._patiently(role, self._stubs[role].Enrol, request)

    def watch(self) -> Iterator[wire.Notice]:
        """Server A's notices, from the current round on.

        Raises NameInUse: another process takes part as this client, and didn't end; and
        PeerUnavailable, PeerViolation, AccessDenied as server A says.
        """
        request = pb.WatchRequest(
            task_digest=self.task.digest.value,
            client=self.client.name,
            instance=self._instance,
        )
        retries = Retries(
            total_s=NAME_FREE_S,
            policy=NAME_RETRIES,
            clock=self._clock,
        )
        while True:
            try:
                for message in self._stubs[Role.SERVER_A].Watch(request):
                    self.serves_first = wire.serves_first(message)
                    yield wire.read_notice(message)
            except grpc.RpcError as error:
                ended = self._error(Role.SERVER_A, error)
                if not isinstance(ended, errors.NameInUse):
                    raise ended from None
            else:
                return
            # After a power cut, or the like, a server takes a while to see that the
            # other is gone.
            log.warning(
                "%s; trying again for %.0f s", ended, max(0.0, retries.remaining())
            )
            self._waiting("this client's former process to end", retries.remaining())
            retries.wait(ended)

    def fetch_model(
        self, version: int, announced: Digest, *, signed: bool = False
    ) -> ModelVector:
        """θ_t, ``[d]``, as ``fetched_model``: from ``serves_first``, or else from the other server.

        Where both have ``signed`` that it is this one, the other isn't asked for its
        digest.

        Raises PeerViolation: the servers show different models, or no bytes fit the
        digest; PeerUnavailable: a server isn't there.
        """
        return fetched_model(
            self.task,
            version,
            announced,
            self.serves_first,
            lambda role, last: self.model_bytes(role, version, patient=last),
            None if signed else lambda role: self._model_digest(role, version),
        )

    def _model_digest(self, role: Role, version: int) -> Digest:
        request = pb.ModelRequest(task_digest=self.task.digest.value, version=version)
        digest_of = self._stubs[role].ModelDigest
        reply = self._patiently(role, digest_of, request, CALL_TIMEOUT_S)
        try:
            return Digest(reply.model_digest)
        except errors.Misconfiguration as error:
            raise errors.PeerViolation(f"{role.title}: {error}") from None

    def model_bytes(
        self, role: Role, version: int, *, patient: bool = True
    ) -> bytearray:
        """What ``role`` serves as θ_t; unless ``patient``, as long as some of it keeps coming.

        Raises PeerViolation: it is longer than any model of the task. PeerUnavailable:
        the server isn't there, or nothing came within ``deadlines.peer``.
        """
        request = pb.ModelRequest(task_digest=self.task.digest.value, version=version)
        deadlines = self.task.deadlines
        # A long model on a slow line, or one of a thousand that fetch it at once, takes
        # longer than one message may.
        timeout_s = max(CALL_TIMEOUT_S, deadlines.collect)
        pieces: Any = self._stubs[role].FetchModel(request, timeout=timeout_s)
        idle_s = None if patient else deadlines.peer
        data = bytearray()
        most = most_bytes(self.task.dimension)
        over = threading.Event()
        idle = threading.Event()

        def watch() -> None:
            came = 0
            while not over.wait(idle_s):
                if len(data) == came:
                    idle.set()
                    pieces.cancel()
                    return
                came = len(data)

        if idle_s is not None:
            threading.Thread(
                target=watch,
                name="fetch",
                daemon=True,
            ).start()
        try:
            for piece in pieces:
                data += piece.data
                if len(data) > most:
                    pieces.cancel()
                    said = f"{role.title} served a model longer than {most} bytes"
                    raise errors.PeerViolation(said)
        except grpc.RpcError as error:
            if idle.is_set():
                said = f"{role.title} served nothing for {idle_s:g} s"
                raise errors.PeerUnavailable(said) from None
            raise self._error(role, error) from None
        finally:
            over.set()
        return data

    def opening(self, role: Role, attempt: int) -> bytes:
        """What ``role`` signs before anything is shared.

        Raises PeerUnavailable, NotOnOffer.
        """
        request = pb.OpeningRequest(
            task_digest=self.task.digest.value,
            client=self.client.name,
            attempt=attempt,
        )
        opening = self._stubs[role].Opening
        return self._patiently(
            role, opening, request, CALL_TIMEOUT_S
        ).SerializeToString()

    def stated_for_proof(
        self, attempt: int, of_a: bytes | None = None
    ) -> ForProof | None:
        """What both servers state for an open attempt's proofs; None where the task has none.

        A's may have come with its notice (``of_a``). Raises PeerUnavailable,
        NotOnOffer, and PeerViolation where they don't state the same.
        """
        if self.task.proof is None:
            return None
        of_a = of_a or self.opening(Role.SERVER_A, attempt)
        signed = zip(SERVERS, (of_a, self.opening(Role.SERVER_B, attempt)), strict=True)
        return for_proof(*(wire.check_opening(self.verifier, *each) for each in signed))

    def statement(
        self, role: Role, shown: bytes | None, opening: bytes | None
    ) -> bytes:
        """The newest statement of ``role`` on this owner's account.

        Raises PeerUnavailable.

        It is ``shown`` its own last statement, and the ``opening`` that it last signed,
        if any.
        """
        request = pb.StatementRequest(
            task_digest=self.task.digest.value,
            client=self.client.name,
            shown=None if shown is None else pb.Signed.FromString(shown),
            opening=None if opening is None else pb.Signed.FromString(opening),
        )
        statement = self._stubs[role].Statement
        return self._patiently(
            role, statement, request, CALL_TIMEOUT_S
        ).SerializeToString()

    def give_back(self, role: Role, shown: bytes, theta: bytes) -> None:
        """Give ``role`` the model that its own statement names and that it has lost.

        Raises PeerUnavailable, and PeerViolation where it doesn't take it.
        """

        def pieces() -> Iterator[pb.GivenPiece]:
            statement = pb.Signed.FromString(shown)
            digest = self.task.digest.value
            yield pb.GivenPiece(
                task_digest=digest,
                client=self.client.name,
                statement=statement,
            )
            for start in range(0, len(theta), STREAMED_BYTES):
                yield pb.GivenPiece(data=theta[start : start + STREAMED_BYTES])

        try:
            self._stubs[role].GiveBack(pieces(), timeout=self.task.deadlines.collect)
        except grpc.RpcError as error:
            raise self._error(role, error) from None

    def prepare(
        self,
        *,
        version: int,
        attempt: int,
        model: Digest,
        x: RingVector,
        proof: ForProof | None = None,
    ) -> Pair:
        """Share ``x`` (``[d] int64``) for the two servers, signed.

        Keep the pair for retries.

        It was computed at θ_t of ``version`` t and digest ``model``. ``proof`` is what
        both servers stated for this attempt, where norms are proved.
        """
        dimension = self.task.dimension
        if x.shape != (dimension,) or x.dtype != np.int64:
            what = (
                f"update is {x.dtype}{list(x.shape)}, this task's is int64[{dimension}]"
            )
            raise errors.RejectedSubmission(errors.Rejection.MALFORMED, what)
        context = SubmissionContext(
            task=self.task.digest,
            version=version,
            attempt=attempt,
            client=self.client,
            model=model,
        )
        return share(
            self.task,
            x,
            context,
            self._signer,
            proof,
        )

    def submit(
        self, pair: Pair, timeout_s: float | None = None
    ) -> tuple[Receipt, Receipt]:
        """Send each server its half of ``prepare``'s pair, both at once, and return both receipts.

        The same bytes go again if a link breaks, until ``timeout_s``, the task's
        collection deadline unless given. Raises PeerUnavailable.
        """
        limit = self.task.deadlines.collect if timeout_s is None else timeout_s
        futures = [self._uploads.submit(self.submit_half, item, limit) for item in pair]
        a, b = (future.result() for future in futures)
        return a, b

    def submit_half(self, submission: AnySubmission, limit_s: float) -> Receipt:
        """Send one server its submission, as ``submit`` does."""
        role = submission.role
        late = errors.PeerUnavailable(
            f"{role.value} took no submission before the deadline"
        )
        retries = Retries(
            total_s=limit_s,
            policy=UPLOAD_RETRIES,
            counted_from_now=True,
        )
        while True:
            try:
                reply = self._upload(submission, max(0.0, retries.remaining()))
            except grpc.RpcError as error:
                if error.code() not in _WORTH_A_RETRY:
                    raise self._error(role, error) from None
                self._waiting(f"{role.title} to take the upload", retries.remaining())
                retries.wait(late)
                continue
            rejection = wire.rejection_of(reply.rejection)
            lost = rejection is errors.Rejection.TRUNCATED
            if lost and retries.remaining() > UPLOAD_RETRIES.longest_s:
                # The server lost a part of it, or has no place now: the same bytes are
                # welcome.
                retries.wait(late)
                continue
            return Receipt(
                role, rejection, errors.one_line(reply.detail[: errors.MAX_TEXT])
            )

    def _upload(self, submission: AnySubmission, timeout_s: float) -> pb.Receipt:
        """One try. Raises grpc.RpcError."""
        begun: Future[grpc.Call] = Future()

        def pieces() -> Iterator[pb.SubmissionPiece]:
            messages = upload_pieces(submission)
            yield next(messages)
            if submission.body is None or body_is_wanted(
                begun.result().initial_metadata()
            ):
                yield from messages

        submit = self._stubs[submission.role].Submit
        call = submit.future(pieces(), timeout=timeout_s, wait_for_ready=True)
        begun.set_result(call)
        receipt: pb.Receipt = call.result()
        return receipt

    def _patiently(
        self,
        role: Role,
        call: Callable[..., Reply],
        request: object,
        within_s: float | None = None,
    ) -> Reply:
        try:
            return call_with_retries(
                lambda timeout_s: call(request, timeout=timeout_s),
                self._patience_s if within_s is None else within_s,
                self._clock,
                why=partial(
                    why_unreachable, self._addresses[role], self._identity, role
                ),
                waiting=partial(self._waiting, role.title),
            )
        except grpc.RpcError as error:
            raise self._error(role, error) from None

    def _error(self, role: Role, error: grpc.RpcError) -> Exception:
        return error_of(role.title, self._addresses[role], error)

    def _waiting(self, whom: str, left_s: float) -> None:
        self._observer.doing(f"waiting for {whom}", self._clock.now() + left_s)


_NAMED = ("name", "validation", "projections", "fractional_bits")


def differences(ours: Task, canonical: bytes) -> str:
    """Fields of ours and of the task with these bytes that differ; empty if there is none."""
    try:
        theirs = Task.parse(json.loads(canonical))
    except (ValueError, RecursionError, errors.Misconfiguration):
        return ""
    pairs = ((name, getattr(ours, name), getattr(theirs, name)) for name in _NAMED)
    return ", ".join(
        f"{name} is {own!r}, not {its!r}" for name, own, its in pairs if own != its
    )
