"""The dealer's gRPC service: keys once per server, words per batch, squares per submission."""

import asyncio
import hmac
import logging
import os
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import grpc.aio

from precad.common.clock import call_in
from precad.common.errors import (
    AccessDenied,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
)
from precad.common.identifiers import Digest, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import WIRE_VERSION, require
from precad.common.ring import to_bytes
from precad.common.task import Task
from precad.common.wire.serving import STREAMED_BYTES, Context, Refusing, check_task
from precad.dealer.dealer_role import SERVERS, DealerRole, Deliver, Work
from precad.norm_check.dealing import Answer, DealRequest, SquareRequest
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingServicer, add_DealingServicer_to_server

log = logging.getLogger("precad")

_TOGETHER = 1 << 12
"""Answers in a message, at most."""


def request_from_wire(message: pb.DealRequest) -> DealRequest:
    """What a server asks of the dealer. Raises Misconfiguration."""
    return DealRequest(
        task=Digest(message.task_digest),
        attempt=message.attempt,
        batch=message.batch,
        clients=message.clients,
        comparisons=message.comparisons,
        nonces=message.nonces,
    )


def square_requests_from_wire(message: pb.SquareRequest) -> Iterator[SquareRequest]:
    """One server's halves of submissions' masks. Raises Misconfiguration."""
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
    """Takes answers from any thread; a message costs more than an answer in it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, Answer]] = deque()
        self._some = asyncio.Event()
        self._told = False
        """Whether the loop will look yet, for whatever is put before it does."""
        self._ended = False

    def __len__(self) -> int:
        """How many answers wait for the server to take them."""
        return len(self._waiting)

    def put(self, context: bytes, answer: Answer) -> None:
        """As ``Deliver``."""
        self._waiting.append((context, answer))
        if not self._told:
            self._told = True
            call_in(self._loop, self._some.set)

    def end(self) -> None:
        """What waits goes out, and no more; called in the loop's thread."""
        self._ended = True
        self._some.set()

    async def replies(self) -> AsyncIterator[pb.SquareReply]:
        """Messages, until the end."""
        while self._waiting or not self._ended:
            await self._some.wait()
            self._some.clear()
            self._told = False
            while self._waiting:
                reply = pb.SquareReply()
                while self._waiting and len(reply.answers) < _TOGETHER:
                    add_answer(reply, *self._waiting.popleft())
                yield reply


def add_answer(reply: pb.SquareReply, context: bytes, answer: Answer) -> None:
    """The dealer's answer about it, to the answers in ``reply``."""
    match answer:
        case Secret():
            reply.answers.add(context=context, row_key=answer.reveal())
        case int():
            reply.answers.add(context=context, share=answer)
        case PeerViolation():
            reply.answers.add(context=context, violation=str(answer))
        case _:
            reply.answers.add(context=context, unavailable=str(answer))


class DealingService(DealingServicer):
    """Gives each server its own part, and never the other's."""

    def __init__(self, task: Task, dealer: DealerRole, identity: Identity) -> None:
        self._task = task
        self._dealer = dealer
        self._identity = identity
        self._epoch = secrets.token_bytes(16)
        self._squaring = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="square")
        self._left: set[Role] = set()
        self.counts: Counter[tuple[str, str]] = Counter()
        """Joins, halves, violations by server, bytes by link: for the metrics."""
        self.conversations: dict[Outbox, Role] = {}
        self.dealing: set[Future[None]] = set()
        """What isn't done yet, in threads of its own."""
        self.on_both_left: Callable[[], None] = lambda: None
        """Called on the event loop when both servers have left."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offer the service on a server that isn't started yet."""
        add_DealingServicer_to_server(self, server)

    # The names are gRPC's.
    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:  # noqa: N802
        """This server's own key for the task."""
        async with Refusing(context):
            role = self._server(context, request.role)
            check_task(self._task, request.task_digest)
        self._left.discard(role)
        self.counts["joins", role.value] += 1
        log.info("%s joined", role.value)
        key = self._dealer.key_for(role).reveal()
        newest = self._dealer.newest_attempt
        return pb.JoinReply(
            key=key,
            epoch=self._epoch,
            newest_attempt=newest,
            wire_version=WIRE_VERSION,
        )

    async def Deal(  # noqa: N802
        self, request: pb.DealRequest, context: Context
    ) -> AsyncIterator[pb.DealPiece]:
        """This server's correction words."""
        async with Refusing(context):
            role = self._server(context, request.role)
            self._check(request)
            most = self._task.enrolment.clients
            each = 2 * self._task.projections + 1
            asked = (request.clients, request.comparisons)
            if asked[0] > most or asked[1] != asked[0] * each:
                why = (
                    f"this task has at most {most} clients, with {each} comparisons"
                    " each"
                )
                raise Misconfiguration("clients, comparisons", asked, why)
            wanted = request_from_wire(request)
            words = await asyncio.to_thread(self._dealer.corrections, role, wanted)
        data = memoryview(to_bytes(words))
        self.counts["bytes", f"dealer to {role.value}"] += len(data)
        for start in range(0, len(data), STREAMED_BYTES):
            yield pb.DealPiece(words=bytes(data[start : start + STREAMED_BYTES]))

    async def Square(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.SquareRequest], context: Context
    ) -> AsyncGenerator[pb.SquareReply, None]:
        """One attempt's row keys and this server's shares of squares, as they come to be."""
        answers = Outbox()
        async with Refusing(context):
            role = require(context, self._identity, *SERVERS).role
            self.conversations[answers] = role
            reading = asyncio.create_task(
                self._take(request_iterator, context, answers.put)
            )
            reading.add_done_callback(lambda _: answers.end())
            try:
                async for reply in answers.replies():
                    self.counts["bytes", f"dealer to {role.value}"] += reply.ByteSize()
                    refused = sum(each.HasField("violation") for each in reply.answers)
                    self.counts["violations", role.value] += refused
                    yield reply
                await reading
            finally:
                del self.conversations[answers]
                reading.cancel()
                self._dealer.forget(answers.put)

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveReply:  # noqa: N802
        """Note that this server's training is over; one that joins again is back."""
        async with Refusing(context):
            role = self._server(context, request.role)
            check_task(self._task, request.task_digest)
        log.info("%s left: its training is over", role.value)
        self._left.add(role)
        if self._left.issuperset(SERVERS):
            self.on_both_left()
        return pb.LeaveReply()

    async def _take(
        self,
        requests: AsyncIterator[pb.SquareRequest],
        context: Context,
        deliver: Deliver,
    ) -> None:
        taken = 0
        most = self._task.enrolment.clients
        async for message in requests:
            # Connections live for weeks: the certificate may have lapsed since the last
            # one.
            role = require(context, self._identity, *SERVERS).role
            self._check(message)
            self.counts["halves", role.value] += len(message.halves)
            self.counts["bytes", f"{role.value} to dealer"] += message.ByteSize()
            taken = taken + len(message.halves)
            if taken > most:
                raise Misconfiguration(
                    "squares", taken, f"this task has at most {most} clients"
                )
            for request in square_requests_from_wire(message):
                self._begin(self._dealer.ask(role, request, deliver))
                del request
            # While it waits for the next message nothing here holds a seed.
            del message

    def _begin(self, work: Work | None) -> None:
        """In a thread of its own: who waits for it hears its answers, and nobody its end."""
        if work is not None:
            doing = self._squaring.submit(work)
            self.dealing.add(doing)
            doing.add_done_callback(self._done)

    def _done(self, work: Future[None]) -> None:
        self.dealing.discard(work)
        error = work.exception()
        if error is not None:
            log.error("a submission's dealing failed: %r", error, exc_info=error)

    def _check(self, request: pb.DealRequest | pb.SquareRequest) -> None:
        check_task(self._task, request.task_digest)
        if not hmac.compare_digest(request.epoch, self._epoch):
            raise PeerUnavailable("the dealer has restarted since; join again")

    def _server(self, context: Context, claimed: str) -> Role:
        role = {r.value: r for r in SERVERS}.get(claimed)
        if role is None:
            raise AccessDenied(
                f"role {claimed!r} gets nothing here; only the two servers do"
            )
        return require(context, self._identity, role).role
