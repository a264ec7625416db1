"""A data owner's calls to both servers: task, enrolment, notices, models, submissions.

Nothing here needs torch: this lowest level submits any vector.
"""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, Self, TypeVar

import grpc
import numpy as np

from precad.client.both_servers import fetched_model, stepped_model
from precad.client.participation import Observer
from precad.client.pending_update import Pair
from precad.client.server_state import state_of, token_text
from precad.common import (
    CLOCK,
    MAX_TEXT,
    ClientId,
    Clock,
    Digest,
    Enrolment,
    Misconfiguration,
    ModelVector,
    NameInUse,
    PeerUnavailable,
    PeerViolation,
    RejectedSubmission,
    Rejection,
    Retries,
    RetryPolicy,
    RingVector,
    Role,
    Secret,
    SubmissionContext,
    Task,
    frozen_dataclass,
    in_pieces,
    let_go_of_loaded,
    log,
    most_bytes,
    one_line,
)
from precad.common.identity import (
    CertificateSigner,
    CertificateVerifier,
    Identity,
    ends_soon,
    open_channel,
    why_unreachable,
)
from precad.common.wire import (
    STREAMED_BYTES,
    Notice,
    call_with_retries,
    collected,
    errors_of,
    read_notice,
    rejection_of,
    serves_first,
)
from precad.norm_check import AnySubmission, ForProof, body_is_wanted, upload_pieces
from precad.norm_check.share_update import share
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

CALL_TIMEOUT_S = 30.0
"""Seconds for a call with one message each way."""
UPLOAD_RETRIES = RetryPolicy(first_s=0.5, longest_s=0.5)
"""Waits between tries of one upload."""
NAME_FREE_S = 45.0
"""Seconds that an owner's former process may seem to be there: a server's keepalive
takes 30 s."""
NAME_RETRIES = RetryPolicy(first_s=2.0, longest_s=5.0)
"""Waits between tries while the client's name is in use."""
_WORTH_A_RETRY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Statuses after which an upload is tried again. The second says that an upload of this
client that broke off is still open at the server."""
Reply = TypeVar("Reply")
_let_go_once = cache(let_go_of_loaded)
"""Calls ``let_go_of_loaded`` the first time only: a process of a thousand owners has
its libraries once, and each look at them takes 12 ms."""


@frozen_dataclass
class Receipt:
    """What one server answered to an upload."""

    role: Role
    rejection: Rejection | None
    """Why the server didn't take the submission; None when it holds it."""
    detail: str
    """The server's own words, on one line."""


class Servers:
    """Channels to server A and server B for one client and one task.

    Used in a ``with`` block, which closes the channels at its end.

    Args:
        task: the owner's own copy. Servers with another one are refused.
        client: who takes part.
        server_a: ``host:port`` of server A.
        server_b: ``host:port`` of server B.
        identity: the client's certificate and key.
        patience_s: seconds for which a server that doesn't answer yet is waited for;
            the task's enrolment deadline unless given.
        clock: what waits pass by.
        observer: is told what is waited for.
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
        """Open a channel to each server; nothing is called yet."""
        self._observer = observer or Observer()
        self.task = task
        self.client = client
        self._identity = identity
        self.verifier = CertificateVerifier(identity)
        self._patience_s = task.deadlines.enrol if patience_s is None else patience_s
        self._addresses = {Role.SERVER_A: server_a, Role.SERVER_B: server_b}
        self._channels: list[grpc.Channel] = []
        """All that were opened: calls over an earlier one may be open."""
        self._stubs: dict[Role, AggregationStub] = {}
        self._connect()
        self.serves_first = Role.SERVER_A
        """The server that models are fetched from first, as the newest notice says."""
        self._instance = secrets.token_bytes(16)
        """Names this process to server A, which lets one process of a client watch."""
        self._clock = clock
        self._bound = task.mechanism.bound  # β_i, once this client has enrolled
        self._uploads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="upload")
        _let_go_once()

    @property
    def _own(self) -> dict[str, Any]:
        """What each request has that names the task and this client."""
        return {"task_digest": self.task.digest.value, "client": self.client.name}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both channels; uploads that haven't begun don't begin any more."""
        self._uploads.shutdown(wait=False, cancel_futures=True)
        for channel in self._channels:
            channel.close()

    def _connect(self) -> None:
        """Open channels, and sign, with the newest certificate, unless that is so.

        What is signed must be of the key that the connections show.
        """
        newest = self._identity.current()
        if self._stubs and newest is self._identity:
            return
        for sentence in ends_soon(newest):
            log.warning("%s", sentence)
        self._identity = newest
        self._signer = CertificateSigner(self._identity)
        for role, address in self._addresses.items():
            channel = open_channel(address, self._identity, role)
            self._channels.append(channel)
            self._stubs[role] = AggregationStub(channel)

    def check_task(self) -> None:
        """Check that both servers run exactly this task, each in its own role.

        Raises:
            TaskMismatch: a server runs another task; names both digests.
            Misidentified: another party or authority answers at an address.
            PeerUnavailable: a server isn't there.
            PeerViolation: a server doesn't play the role that its address is for.
        """
        for role, stub in self._stubs.items():
            reply = self._call(role, stub.Describe, pb.DescribeRequest())
            stated_role = state_of(reply, self.task, role).role
            if stated_role != role.value:
                raise PeerViolation(
                    f"{self._addresses[role]} is {stated_role}, not {role.value}: mend"
                    " the addresses"
                )

    def enrol(
        self, records: int, record_rate: float, token: Secret | None = None
    ) -> None:
        """Enrol at both servers, with |D_i| ``records`` at the rate p_i.

        A claim may be repeated. ``token`` is the operator's one-time token, where the
        servers ask for one.

        Raises Misconfiguration: the claim passes a cap of the task; and
        PeerUnavailable, PeerViolation, AccessDenied: a server refuses.
        """
        claim = Enrolment(self.client, records, record_rate)
        claim.check(self.task)
        self._bound = self.task.mechanism.bound_of(claim)
        request = pb.EnrolRequest(
            **self._own,
            records=records,
            record_rate=record_rate,
            token=token_text(token),
        )
        # B first: whoever A knows, B must know.
        for role in (Role.SERVER_B, Role.SERVER_A):
            reply = self._call(role, self._stubs[role].Enrol, request)
        owners = self.task.enrolment.clients
        if reply.enrolled < owners:
            log.info(
                "enrolled, %d of at most %d owners so far: the first round comes once"
                " all are, or about %s after the servers' start, unless their operators"
                " set another time or number",
                reply.enrolled,
                owners,
                self.task.deadlines.enrol_in_words,
            )

    def watch(self) -> Iterator[Notice]:
        """Yield server A's notices, from the current round on.

        Another process that takes part as this client is waited for, for
        ``NAME_FREE_S``. ``serves_first`` follows each notice.

        Raises NameInUse: the other process didn't end; and PeerUnavailable,
        PeerViolation, AccessDenied as server A says.
        """
        request = pb.WatchRequest(
            **self._own,
            instance=self._instance,
        )
        retries = Retries(
            total_s=NAME_FREE_S,
            policy=NAME_RETRIES,
            clock=self._clock,
        )
        shown = self._identity
        while True:
            try:
                with self._errors(Role.SERVER_A):
                    for message in self._stubs[Role.SERVER_A].Watch(request):
                        self.serves_first = serves_first(message)
                        yield read_notice(message)
                        if shown is not shown.current():
                            raise PeerUnavailable("the certificate was renewed")
            except NameInUse as failure:
                # After a power cut, or the like, a server takes a while to see that the
                # other process is gone.
                left_s = retries.remaining()
                log.warning("%s; trying again for %.0f s", failure, max(0.0, left_s))
                self._tell_waiting("this client's former process to end", left_s)
                retries.wait(failure)
            else:
                return

    def fetch_model(
        self, version: int, announced: Digest, *, signed: bool = False
    ) -> ModelVector:
        """Return θ_t, ``[d]``, of ``version`` t and the ``announced`` digest.

        It is fetched from ``serves_first``, or else from the other server, as
        ``fetched_model`` does. Where both servers have ``signed`` the digest, the other
        one isn't asked for it.

        Raises PeerViolation: the servers show different models, or no bytes fit the
        digest; PeerUnavailable: a server isn't there.
        """
        return fetched_model(
            self.task,
            version,
            announced,
            first=self.serves_first,
            bytes_of=lambda role, is_last: self.model_bytes(
                role, version, patient=is_last
            ),
            digest_of=None if signed else partial(self._model_digest, version=version),
        )

    def next_model(
        self,
        before: ModelVector,
        *,
        version: int,
        announced: Digest,
        step: Digest,
    ) -> ModelVector:
        """Return θ_t, ``[d]``, made of θ_{t−1} and the step from ``serves_first``.

        Raises PeerUnavailable: that server isn't there, or offers no step; and
        PeerViolation, as ``stepped_model``.
        """
        data = self.model_bytes(self.serves_first, version, patient=False, is_step=True)
        return stepped_model(
            before,
            data,
            task=self.task,
            version=version,
            announced=announced,
            step=step,
        )

    def require_final(self, version: int, announced: Digest) -> None:
        """Ask both servers for the final model's digest: they hear that it is here.

        Raises PeerViolation: one of them has another.
        """
        for role in self._stubs:
            if self._model_digest(role, version) != announced:
                raise PeerViolation(
                    f"{role.title} has another model {version} than {announced}"
                )

    def _model_digest(self, role: Role, version: int) -> Digest:
        request = pb.ModelRequest(task_digest=self.task.digest.value, version=version)
        reply = self._call(role, self._stubs[role].ModelDigest, request, CALL_TIMEOUT_S)
        try:
            return Digest(reply.model_digest)
        except Misconfiguration as error:
            raise PeerViolation(f"{role.title}: {error}") from None

    def model_bytes(
        self,
        role: Role,
        version: int,
        *,
        patient: bool = True,
        is_step: bool = False,
    ) -> bytearray:
        """Return the bytes that ``role`` serves as θ_t, of ``version`` t.

        With ``is_step`` those of the step that leads to it. Unless ``patient``, the
        call is given up once nothing has come for ``deadlines.peer``.

        Raises PeerViolation: the model is longer than any model of the task.
        PeerUnavailable: the server isn't there, or nothing came in that time.
        """
        request = pb.ModelRequest(
            task_digest=self.task.digest.value, version=version, step=is_step
        )
        deadlines = self.task.deadlines
        # A long model on a slow line, or one of a thousand that fetch it at once, takes
        # longer than one message may.
        timeout_s = max(CALL_TIMEOUT_S, deadlines.collect)
        pieces = self._stubs[role].FetchModel(request, timeout=timeout_s)
        with self._errors(role):
            return collected(
                pieces,
                role.title,
                most=most_bytes(self.task.dimension),
                idle_s=None if patient else deadlines.peer,
            )

    def opening(self, role: Role, attempt: int) -> bytes:
        """Return what ``role`` signs for an attempt, before anything is shared for it.

        The bytes are a ``Signed`` message with an ``OpeningBody``, unchecked.

        Raises PeerUnavailable, NotOnOffer.
        """
        request = pb.OpeningRequest(
            **self._own,
            attempt=attempt,
        )
        reply = self._call(role, self._stubs[role].Opening, request, CALL_TIMEOUT_S)
        return reply.SerializeToString()

    def statement(
        self, role: Role, shown: bytes | None, opening: bytes | None
    ) -> bytes:
        """Return the newest statement of ``role`` on this owner's account.

        The bytes are a ``Signed`` message with a ``StatementBody``, unchecked. The
        server is ``shown`` its own last statement, and the ``opening`` that it signed
        last; None where there is none.

        Raises PeerUnavailable.
        """
        self._connect()
        request = pb.StatementRequest(
            **self._own,
            shown=None if shown is None else pb.Signed.FromString(shown),
            opening=None if opening is None else pb.Signed.FromString(opening),
        )
        reply = self._call(role, self._stubs[role].Statement, request, CALL_TIMEOUT_S)
        return reply.SerializeToString()

    def give_back(self, role: Role, shown: bytes, theta: bytes) -> None:
        """Give ``role`` a model that it has signed and lost.

        ``shown`` is the server's own statement that names the model, ``theta`` the
        model's bytes.

        Raises PeerUnavailable, and PeerViolation: the server doesn't take it.
        """

        def pieces() -> Iterator[pb.GivenPiece]:
            yield pb.GivenPiece(
                **self._own,
                statement=pb.Signed.FromString(shown),
            )
            for piece in in_pieces(theta, STREAMED_BYTES):
                yield pb.GivenPiece(data=bytes(piece))

        with self._errors(role):
            self._stubs[role].GiveBack(pieces(), timeout=self.task.deadlines.collect)

    def prepare(
        self,
        *,
        version: int,
        attempt: int,
        model: Digest,
        x: RingVector,
        proof: ForProof | None = None,
    ) -> Pair:
        """Return an update as two signed submissions, a share of it for each server.

        Keep the pair for retries.

        Args:
            version: t, of the model that the update was computed at.
            attempt: the one that the pair is for.
            model: the digest of θ_t.
            x: the update X, ``[d] int64``.
            proof: what both servers stated for this attempt, where norms are proved.

        Raises RejectedSubmission: ``x`` hasn't the task's shape or type.
        """
        self._connect()
        dimension = self.task.dimension
        if x.shape != (dimension,) or x.dtype != np.int64:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"update is {x.dtype}{list(x.shape)}, this task's is"
                f" int64[{dimension}]",
            )
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
            bound=self._bound,
        )

    def submit(
        self, pair: Pair, timeout_s: float | None = None
    ) -> tuple[Receipt, Receipt]:
        """Send each server its submission of ``prepare``'s pair, both at once.

        The receipts of server A and of server B are returned. If a link breaks, the
        same bytes go again, for ``timeout_s`` seconds: the task's collection deadline
        unless given.

        Raises PeerUnavailable.
        """
        limit_s = self.task.deadlines.collect if timeout_s is None else timeout_s
        uploads = [
            self._uploads.submit(self.submit_half, submission, limit_s)
            for submission in pair
        ]
        receipt_a, receipt_b = (upload.result() for upload in uploads)
        return receipt_a, receipt_b

    def submit_half(self, submission: AnySubmission, limit_s: float) -> Receipt:
        """Send one server its submission, as ``submit`` does, and return its receipt.

        The same bytes go again, for ``limit_s`` seconds, where a link breaks, where the
        server has no place for the call, or where it lost a part of the upload.

        Raises PeerUnavailable: the server took nothing in that time.
        """
        role = submission.role
        late = PeerUnavailable(f"{role.value} took no submission before the deadline")
        retries = Retries(
            total_s=limit_s,
            policy=UPLOAD_RETRIES,
            counted_from_now=True,
        )
        with self._errors(role):
            while True:
                try:
                    reply = self._upload(submission, max(0.0, retries.remaining()))
                except grpc.RpcError as error:
                    if error.code() not in _WORTH_A_RETRY:
                        raise
                    self._tell_waiting(
                        f"{role.title} to take the upload", retries.remaining()
                    )
                    retries.wait(late)
                    continue
                rejection = rejection_of(reply.rejection)
                truncated = rejection is Rejection.TRUNCATED
                if truncated and retries.remaining() > UPLOAD_RETRIES.longest_s:
                    # The server lost a part of it, or has no place now: the same bytes
                    # are welcome.
                    retries.wait(late)
                    continue
                return Receipt(role, rejection, one_line(reply.detail[:MAX_TEXT]))

    def _upload(self, submission: AnySubmission, timeout_s: float) -> pb.Receipt:
        """Try once to upload a submission, and return the server's answer.

        The body follows the header only once the server says that it reads it.

        Raises grpc.RpcError.
        """
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
        return call.result()

    def _call(
        self,
        role: Role,
        call: Callable[..., Reply],
        request: object,
        within_s: float | None = None,
    ) -> Reply:
        """Make a call to ``role``, again and again while it isn't there.

        ``within_s`` is how long, ``patience_s`` of this object unless given. What goes
        wrong is raised as one of precad's errors.
        """
        with self._errors(role):
            return call_with_retries(
                lambda timeout_s: call(request, timeout=timeout_s),
                self._patience_s if within_s is None else within_s,
                self._clock,
                why=partial(
                    why_unreachable, self._addresses[role], self._identity, role
                ),
                waiting=partial(self._tell_waiting, role.title),
            )

    def _errors(self, role: Role) -> AbstractContextManager[None]:
        return errors_of(role.title, self._addresses[role])

    def _tell_waiting(self, whom: str, left_s: float) -> None:
        self._observer.doing(f"waiting for {whom}", self._clock.now() + left_s)
