"""The dealer's gRPC service: keys, words for batches, squares for submissions."""

import asyncio
import hmac
import os
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import grpc.aio

from precad.common import (
    SERVERS,
    AccessDenied,
    Digest,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    Role,
    Secret,
    Task,
    call_in,
    in_pieces,
    listed,
    log,
    submission_id,
)
from precad.common.identity import WIRE_VERSION, Identity, require
from precad.common.ring import to_bytes
from precad.common.wire import STREAMED_BYTES, Context, check_task, refusing
from precad.dealer.dealer_role import DealerRole, Work
from precad.norm_check import Answer, DealRequest, SquareRequest
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingServicer, add_DealingServicer_to_server

_MOST_ANSWERS = 1 << 12
"""Most answers in one message."""


def request_from_wire(message: pb.DealRequest) -> DealRequest:
    """Return a server's request for the triples of a batch.

    Raises Misconfiguration: a value is out of range.
    """
    return DealRequest(
        task=Digest(message.task_digest),
        attempt=message.attempt,
        batch=message.batch,
        clients=message.clients,
        comparisons=message.comparisons,
        nonces=message.nonces,
    )


def square_requests_from_wire(message: pb.SquareRequest) -> Iterator[SquareRequest]:
    """Yield a server's requests about submissions, each with its half of a mask.

    Raises Misconfiguration: a value is out of range.
    """
    for half in message.halves:
        yield SquareRequest(
            task=Digest(message.task_digest),
            attempt=message.attempt,
            context=half.context,
            commitment_a=half.commitment_a,
            commitment_b=half.commitment_b,
            seed=Secret(half.seed),
            salt=Secret(half.salt),
        )


class Outbox:
    """Answers for one server, put in by any thread and sent many in a message.

    A message costs more than an answer in it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, Answer]] = deque()
        self.attempt = -1
        """What the conversation is about; −1 before the first request."""
        self._dealt: set[str] = set()
        """Ids of the submissions whose share of r the server was sent."""
        self._refused: set[str] = set()
        self._changed = asyncio.Event()
        self._ended = False

    def __len__(self) -> int:
        """Return the number of answers that wait for the server to take them."""
        return len(self._waiting)

    def put(self, context: bytes, answer: Answer) -> None:
        """Add an answer about a context, as ``Deliver``; callable in any thread."""
        self._waiting.append((context, answer))
        call_in(self._loop, self._changed.set)

    def end(self) -> None:
        """Have ``replies`` end once all is sent; to be called on the event loop."""
        self._ended = True
        self._changed.set()

    def log_dealt(self, role: Role) -> None:
        """Log what the server of ``role`` was dealt, as the conversation ends.

        Neither the version nor any owner is known here.
        """
        if self.attempt < 0:
            return
        log.info(
            "attempt %d: %d submissions dealt to %s%s, %d refused%s",
            self.attempt,
            len(self._dealt),
            role.value,
            listed(sorted(self._dealt)),
            len(self._refused),
            listed(sorted(self._refused)),
            extra={"attempt": self.attempt},
        )

    async def replies(self) -> AsyncIterator[pb.SquareReply]:
        """Yield messages with the answers, until the end."""
        while self._waiting or not self._ended:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                reply = pb.SquareReply()
                while self._waiting and len(reply.answers) < _MOST_ANSWERS:
                    context, answer = self._waiting.popleft()
                    add_answer(reply, context, answer)
                    if isinstance(answer, int):
                        self._dealt.add(submission_id(context))
                    elif isinstance(answer, PeerViolation):
                        self._refused.add(submission_id(context))
                yield reply


def add_answer(reply: pb.SquareReply, context: bytes, answer: Answer) -> None:
    """Add the dealer's answer about a context to a message."""
    add = partial(reply.answers.add, context=context)
    match answer:
        case Secret():
            add(row_key=answer.reveal())
        case int():
            add(share=answer)
        case PeerViolation():
            add(violation=str(answer))
        case _:
            add(unavailable=str(answer))


class DealingService(DealingServicer):
    """Gives each server its own part, and never the other's."""

    def __init__(self, task: Task, dealer: DealerRole, identity: Identity) -> None:
        self._task = task
        self._dealer = dealer
        self._identity = identity
        self._epoch = secrets.token_bytes(16)
        """Names this start of the dealer: its keys last as long."""
        self._squaring = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="square")
        self.left: set[Role] = set()
        """Servers whose training is over."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """For the metrics: joins, halves and violations by server, bytes by link."""
        self.conversations: dict[Outbox, Role] = {}
        """Open conversations about an attempt."""
        self.dealing: set[Future[None]] = set()
        """Squarings that wait for a thread or run in one."""
        self.on_both_left: Callable[[], object] = lambda: None
        """Called on the event loop when both servers have left."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offer the service on a server that isn't started yet."""
        add_DealingServicer_to_server(self, server)

    # The names of calls are gRPC's.
    async def Join(  # noqa: N802
        self, request: pb.JoinRequest, context: Context
    ) -> pb.JoinReply:
        """Return the calling server's own key for the task."""
        async with refusing(context):
            role = self._calling_server(context, request.role)
            check_task(self._task, request.task_digest)
        self.left.discard(role)
        self.counts["joins", role.value] += 1
        log.info("%s joined", role.value)
        return pb.JoinReply(
            key=self._dealer.key_for(role).reveal(),
            epoch=self._epoch,
            newest_attempt=self._dealer.newest_attempt,
            wire_version=WIRE_VERSION,
        )

    async def Deal(  # noqa: N802
        self, request: pb.DealRequest, context: Context
    ) -> AsyncIterator[pb.DealPiece]:
        """Yield the calling server's correction words, in pieces."""
        async with refusing(context):
            role = self._calling_server(context, request.role)
            self._check_current(request)
            self._check_size(request)
            words = await asyncio.to_thread(
                self._dealer.corrections, role, request_from_wire(request)
            )
        data = to_bytes(words)
        self.counts["bytes", f"dealer to {role.value}"] += len(data)
        for piece in in_pieces(data, STREAMED_BYTES):
            yield pb.DealPiece(words=bytes(piece))

    async def Square(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.SquareRequest], context: Context
    ) -> AsyncGenerator[pb.SquareReply, None]:
        """Yield an attempt's row keys and the caller's shares of squares."""
        answers = Outbox()
        async with refusing(context):
            role = require(context, self._identity, *SERVERS).role
            self.conversations[answers] = role
            reading = asyncio.create_task(
                self._take_requests(request_iterator, context, answers)
            )
            reading.add_done_callback(lambda _: answers.end())
            try:
                async for reply in answers.replies():
                    self.counts["bytes", f"dealer to {role.value}"] += reply.ByteSize()
                    refused = sum(
                        answer.HasField("violation") for answer in reply.answers
                    )
                    self.counts["violations", role.value] += refused
                    yield reply
                await reading
            finally:
                del self.conversations[answers]
                reading.cancel()
                answers.log_dealt(role)
                self._dealer.forget(answers.put)

    async def Leave(  # noqa: N802
        self, request: pb.LeaveRequest, context: Context
    ) -> pb.LeaveReply:
        """Note that the caller's training is over; one that joins again is back."""
        async with refusing(context):
            role = self._calling_server(context, request.role)
            check_task(self._task, request.task_digest)
        log.info("%s left: its training is over", role.value)
        self.left.add(role)
        if self.left.issuperset(SERVERS):
            self.on_both_left()
        return pb.LeaveReply()

    async def _take_requests(
        self,
        requests: AsyncIterator[pb.SquareRequest],
        context: Context,
        answers: Outbox,
    ) -> None:
        """Pass a conversation's requests to the dealer, for ``Square``.

        Raises AccessDenied: the caller's certificate has lapsed; Misconfiguration: more
        submissions than the task has clients, or a value out of range; and as ``ask``
        and ``_check_current``.
        """
        taken = 0
        most = self._task.enrolment.clients
        async for message in requests:
            # Connections live for weeks: the certificate may have lapsed since the last
            # message.
            role = require(context, self._identity, *SERVERS).role
            self._check_current(message)
            answers.attempt = message.attempt
            self.counts["halves", role.value] += len(message.halves)
            self.counts["bytes", f"{role.value} to dealer"] += message.ByteSize()
            taken += len(message.halves)
            if taken > most:
                raise Misconfiguration(
                    "squares", taken, f"this task has at most {most} clients"
                )
            for request in square_requests_from_wire(message):
                self._start(self._dealer.ask(role, request, answers.put))
                del request
            # While it waits for the next message nothing here holds a seed.
            del message

    def _start(self, work: Work | None) -> None:
        """Run a squaring, if any, in a thread; only its answers are waited for."""
        if work is not None:
            squaring = self._squaring.submit(work)
            self.dealing.add(squaring)
            squaring.add_done_callback(self._note_end)

    def _note_end(self, squaring: Future[None]) -> None:
        """Forget a squaring that has ended, and log its error if it has one."""
        self.dealing.discard(squaring)
        error = squaring.exception()
        if error is not None:
            log.error("a submission's dealing failed: %r", error, exc_info=error)

    def _check_current(self, request: pb.DealRequest | pb.SquareRequest) -> None:
        """Check that a request is about this task and this start of the dealer.

        Raises TaskMismatch: another task; PeerUnavailable: the server joined an earlier
        start, whose key was another.
        """
        check_task(self._task, request.task_digest)
        if not hmac.compare_digest(request.epoch, self._epoch):
            raise PeerUnavailable("the dealer has restarted since; join again")

    def _check_size(self, request: pb.DealRequest) -> None:
        """Check that a batch is as large as this task can have one.

        Raises Misconfiguration: too many clients, or another number of comparisons.
        """
        most_clients = self._task.enrolment.clients
        # Both bounds of each projection, and the norm.
        comparisons = 2 * self._task.projections + 1
        if (
            request.clients > most_clients
            or request.comparisons != request.clients * comparisons
        ):
            raise Misconfiguration(
                "clients, comparisons",
                (request.clients, request.comparisons),
                f"this task has at most {most_clients} clients, with {comparisons}"
                " comparisons each",
            )

    def _calling_server(self, context: Context, claimed: str) -> Role:
        """Return the caller's role, which it claims and its certificate confirms.

        Raises AccessDenied: it isn't a server's, or the certificate is of another role.
        """
        for role in SERVERS:
            if role.value == claimed:
                return require(context, self._identity, role).role
        raise AccessDenied(
            f"role {claimed!r} gets nothing here; only the two servers do"
        )
