"""Validation by pairs of workers, A's with B's: results are those of one process, bit for bit.

Both servers go through the same steps in the same order, and so give every submission
to the same pair and the same batch without a word about it; they only tell each other
which pairs are there. A batch is recorded as used, durably, by both before its first
submission goes to a worker, and so before anything of it is dealt. A pair that is lost
before has no part in the attempt; one that is lost after ends the attempt, as a lost
server does, and the next one shares X afresh.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Self

import grpc
import numpy as np

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.upload import SpooledBody
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.server_messages import WorkerCount, Workers, WorkerState
from precad.aggregator.settings import ServerSettings
from precad.aggregator.training.session import Session
from precad.aggregator.validate.validation import (
    MAX_BATCH_CLIENTS,
    Validation,
    Verdicts,
)
from precad.aggregator.workers.worker_attempt import Taken
from precad.aggregator.workers.worker_placement import (
    RayCluster,
    ThisMachine,
    WorkerPool,
    WorkerStart,
)
from precad.common.clock import CLOCK, Clock
from precad.common.errors import (
    BodyUnreadable,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Rejection,
)
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import (
    check_version,
    greeted_version,
    open_channel,
)
from precad.common.process_settings import HttpProxy
from precad.common.ring import WORD_BYTES, from_bytes
from precad.common.submission import MESSAGE_BYTES
from precad.common.task import Task
from precad.common.wire.calls import error_of
from precad.norm_check.prime_field import group_of
from precad.norm_check.proof_submission import AnySubmission
from precad.norm_check.submission_messages import header_to_wire
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import WorkingStub

log = logging.getLogger("precad")

_LOOK_S = 0.2


class WorkerLink:
    """A server's conversation with one of its workers, at ``address``, about one attempt.

    A worker on the ``same_disk`` can open this server's files.
    """

    def __init__(
        self,
        address: str,
        task: Task,
        role: Role,
        identity: Identity,
        begin: pb.WorkBegin,
        *,
        same_disk: bool,
    ) -> None:
        self._address = address
        self._dimension = task.dimension
        self._same_disk = same_disk
        self._orders: queue.SimpleQueue[Taken | pb.WorkOrder | None] = (
            queue.SimpleQueue()
        )
        self._orders.put(pb.WorkOrder(begin=begin))
        self._changed = threading.Condition()
        self._linked = False
        self._ended: PrecadError | None = None
        self._rejections: dict[ClientId, Rejection] = {}
        self._sum = bytearray()
        self._done: pb.WorkDone | None = None
        self._channel = open_channel(address, identity, role)
        self._call = WorkingStub(self._channel).Validate(self._messages())
        self._reader = threading.Thread(
            target=self._read,
            name="worker-reports",
            daemon=True,
        )
        self._reader.start()

    @property
    def ready(self) -> bool:
        """Whether it is linked with the other server's worker, as far as is known."""
        return self._linked and self._ended is None

    @property
    def error(self) -> PrecadError | None:
        """Why it can't go on."""
        return None if self._done is not None else self._ended

    def take(self, taken: Taken) -> None:
        """Hand one over; doesn't wait."""
        self._orders.put(taken)

    def decide(self) -> None:
        """Nothing more is taken; ``verdicts`` come."""
        self._orders.put(pb.WorkOrder(decide=pb.WorkDecide()))

    def wait(self, seconds: float) -> tuple[Verdicts, int] | None:
        """Its verdicts and bytes sent, if in time.

        Raises PeerUnavailable, PeerViolation.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._ended, seconds)
            if self._done is None:
                if self._ended is not None:
                    raise self._ended
                return None
            if len(self._sum) != self._dimension * WORD_BYTES:
                raise PeerViolation(f"a worker's sum has {len(self._sum)} bytes")
            share_sum = np.array(from_bytes(self._sum))
            return Verdicts(self._rejections, share_sum), self._done.bytes_sent

    def close(self) -> None:
        """Break it off; the worker forgets what it had."""
        self._orders.put(None)
        self._call.cancel()
        self._channel.close()
        self._reader.join(timeout=1)

    def _messages(self) -> Iterator[pb.WorkOrder]:
        # Read as the worker takes it: bodies aren't in memory before.
        while (order := self._orders.get()) is not None:
            if isinstance(order, pb.WorkOrder):
                yield order
                continue
            try:
                with closing(_take_orders(order, same_disk=self._same_disk)) as orders:
                    yield from orders
            except BodyUnreadable as error:
                self._end(
                    PeerUnavailable(f"a body for a worker can't be read: {error}")
                )
                return
            del order

    def _read(self) -> None:
        try:
            for number, report in enumerate(self._call):
                if number == 0:
                    said = greeted_version(self._call.initial_metadata())
                    check_version(f"the worker at {self._address}", said)
                self._note(report)
            self._end(PeerUnavailable(f"the worker at {self._address} ended its part"))
        except grpc.RpcError as error:
            self._end(error_of("a worker", self._address, error))
        except PrecadError as error:
            self._end(error)

    def _note(self, report: pb.WorkReport) -> None:
        with self._changed:
            match report.WhichOneof("report"):
                case "linked":
                    self._linked = True
                case "rejection":
                    self._reject(report.rejection)
                case "share_sum":
                    self._sum += report.share_sum
                    if len(self._sum) > self._dimension * WORD_BYTES:
                        raise PeerViolation("a worker's sum is too long")
                case "done":
                    self._done = report.done
                case "failure":
                    kind = (
                        PeerViolation if report.failure.violation else PeerUnavailable
                    )
                    raise kind(f"the worker at {self._address}: {report.failure.text}")
                case _:
                    raise PeerViolation("a worker's report holds nothing")
            self._changed.notify_all()

    def _reject(self, said: pb.WorkRejection) -> None:
        try:
            self._rejections[ClientId(said.client)] = Rejection(said.reason)
        except (Misconfiguration, ValueError) as error:
            raise PeerViolation(
                f"the worker at {self._address} reports: {error}"
            ) from error

    def _end(self, error: PrecadError) -> None:
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()


def _take_orders(taken: Taken, *, same_disk: bool) -> Generator[pb.WorkOrder]:
    """One submission: where its body lies if the worker can read it there, else all of it."""
    body = taken.submission.body
    header = header_to_wire(taken.submission)
    take = pb.WorkTake(
        submission=header,
        counted=taken.counted,
        batch=taken.batch,
    )
    if same_disk and isinstance(body, SpooledBody):
        spooled = pb.SpooledFile(
            path=str(body.path),
            key=body.key.reveal(),
            number=body.number,
            length=body.length,
            prefix=body.prefix.reveal(),
        )
        take.spooled.CopyFrom(spooled)
        body = None
    yield pb.WorkOrder(take=take)
    if body is None:
        return
    yield pb.WorkOrder(body=body.prefix.reveal())
    for words in body.pieces():
        view = memoryview(words)
        for start in range(0, len(view), MESSAGE_BYTES):
            yield pb.WorkOrder(body=bytes(view[start : start + MESSAGE_BYTES]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWorkers:
    """One server's workers, and how they reach the other's."""

    pool: WorkerPool
    identity: Identity
    other_host: str = ""
    """At A: server B's, for those of its workers that are on its own machine."""
    own_host: str = "127.0.0.1"
    """Where this server reaches those workers of its own that name no host."""
    clock: Clock = CLOCK


class WorkerPairs:
    """As ``Validator``; to be used in a ``with`` block.

    As many ``pairs`` at both servers.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        opened: Opened,
        own: OwnWorkers,
        pairs: int,
    ) -> None:
        self._aggregator = aggregator
        self._opened = opened
        self._own = own
        self._numbers = range(pairs)
        self._links: dict[int, WorkerLink] = {}
        self._loads = dict.fromkeys(self._numbers, 0)
        """Submissions that each pair has taken, the same at both servers."""
        self._recorded: dict[int, int] = {}
        """Each pair's newest batch."""
        self._batches = 0
        """How many are recorded."""
        self._waiting: deque[AnySubmission] = deque()
        """Nobody is there to take them."""

    def __enter__(self) -> Self:
        # Pairs link up while uploads come in.
        self._linked()
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links.values():
            link.close()

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """As ``Validator.take``; returns when all are handed over."""
        if submissions:
            self._waiting += submissions
            self._hand_over()

    def ready(self) -> None:
        """As ``Validator.ready``; returns when a pair is there and has what waited."""
        clock = self._own.clock
        patience_s = self._aggregator.task.deadlines.peer
        deadline = clock.now() + patience_s
        # Both count the same turns, up to the length of a wait: whoever gives up first
        # ends it.
        while not self._hand_over():
            if clock.now() >= deadline:
                raise PeerUnavailable(
                    f"no pair of workers was there within {patience_s:g} s; look at"
                    " both servers' logs for why they don't start, or can't reach each"
                    " other"
                )
            clock.sleep(_LOOK_S)

    def decide(self) -> Verdicts:
        """As ``Validator.decide``."""
        if self._waiting:
            self.ready()
        busy = [self._links[number] for number in self._numbers if self._loads[number]]
        for link in busy:
            link.decide()
        task = self._aggregator.task
        total = np.zeros(task.dimension, dtype=np.int64)
        group = group_of(task)
        rejections: dict[ClientId, Rejection] = {}
        for link in busy:
            while (outcome := link.wait(_LOOK_S)) is None:
                self._aggregator.link.require_alive()
            verdicts, sent = outcome
            rejections |= verdicts.rejections
            group.add(total, verdicts.share_sum)
            self._aggregator.link.bytes_sent += sent
        return Verdicts(rejections, total)

    def _hand_over(self) -> bool:
        """Give what waits to the pairs that are there, if any, each to the least loaded."""
        ready = self._linked()
        while self._waiting and ready:
            number = min(ready, key=lambda n: (self._loads[n], n))
            submission = self._waiting.popleft()
            link = self._links[number]
            if self._loads[number] % MAX_BATCH_CLIENTS == 0:
                self._aggregator.store.attempts.spend(
                    self._opened.attempt, self._batches
                )
                self._recorded[number] = self._batches
                self._batches += 1
            self._loads[number] += 1
            counted = submission.context.client in self._opened.counted
            link.take(Taken(submission, counted, self._recorded[number]))
        return bool(ready)

    def _linked(self) -> list[int]:
        """The pairs that both servers know to be linked; those that aren't are linked up."""
        self._drop_the_lost()
        if self._aggregator.role is Role.SERVER_B:
            for number in self._numbers:
                self._open(number, "")
        own = Workers(workers=tuple(self._state(number) for number in self._numbers))
        answer = self._aggregator.link.exchange("workers", own.to_bytes())
        theirs = Workers.from_bytes(answer).workers
        if self._aggregator.role is Role.SERVER_A:
            for number, state in zip(self._numbers, theirs, strict=False):
                if state.address:
                    self._open(number, state.address)
        both = enumerate(zip(own.workers, theirs, strict=False))
        return [number for number, (mine, other) in both if mine.ready and other.ready]

    def _state(self, number: int) -> WorkerState:
        placed = self._own.pool.worker(number)
        link = self._links.get(number)
        told = placed is not None and self._aggregator.role is Role.SERVER_B
        address = placed.address if placed is not None and told else ""
        return WorkerState(address=address, ready=link is not None and link.ready)

    def _drop_the_lost(self) -> None:
        """Forget links that have taken nothing. Raises the error of one that has."""
        for number, link in list(self._links.items()):
            error = link.error
            if error is None:
                continue
            if self._loads[number]:
                raise error
            log.warning("pair %d of workers is linked up anew: %s", number, error)
            link.close()
            del self._links[number]

    def _open(self, number: int, peer: str) -> None:
        placed = self._own.pool.worker(number)
        if placed is None or number in self._links:
            return
        aggregator = self._aggregator
        own = self._own

        def at(host: str, address: str) -> str:
            return f"{host}{address}" if address.startswith(":") else address

        begin = pb.WorkBegin(
            task_digest=aggregator.task.digest.value,
            attempt=self._opened.attempt,
            pair=number,
            peer=at(own.other_host, peer),
            dealer_key=aggregator.dealer_key.reveal(),
            epoch=aggregator.dealing.epoch,
            nonces=aggregator.nonces,
        )
        address = at(own.own_host, placed.address)
        whose = (aggregator.task, aggregator.role)
        same_disk = own.pool.place.same_disk
        self._links[number] = WorkerLink(
            address,
            *whose,
            own.identity,
            begin,
            same_disk=same_disk,
        )


def pairs_of(aggregator: Aggregator, own: int) -> int:
    """How many pairs there can be, of so many workers here and those of the other server."""
    answer = aggregator.link.exchange("pairs", WorkerCount(count=own).to_bytes())
    return min(own, WorkerCount.from_bytes(answer).count)


_EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 -- compared with, not bound


class ValidationWorkers:
    """What a training asks for a validator, attempt by attempt; A names the ``other_server``.

    Raises Misconfiguration: the ports aren't there, or Ray isn't installed or would
    show a secret; PeerUnavailable: Ray's cluster isn't there.
    """

    def __init__(
        self, session: Session, settings: ServerSettings, other_server: str = ""
    ) -> None:
        self._count = settings.workers
        self._own: OwnWorkers | None = None
        if not self._count:
            return
        host, _ = _split(settings.worker_listen)
        other_host = _split(other_server)[0] if other_server else ""
        own_host = "127.0.0.1" if host in _EVERYWHERE else host
        starts = _starts(session, settings)
        place = (
            RayCluster(settings.ray) if settings.workers_on == "ray" else ThisMachine()
        )
        pool = WorkerPool(place, starts, partial(setattr, session.progress, "workers"))
        self._own = OwnWorkers(
            pool=pool,
            identity=session.identity,
            other_host=other_host,
            own_host=own_host,
            clock=session.clock,
        )

    def validation(self, aggregator: Aggregator, opened: Opened) -> Validation:
        """A validator for one attempt: pairs of workers where both servers have some."""
        pairs = pairs_of(aggregator, self._count)
        if self._own is None or not pairs:
            return aggregator.in_process(opened)
        return WorkerPairs(aggregator, opened, self._own, pairs)

    def close(self) -> None:
        """End all workers."""
        if self._own is not None:
            self._own.pool.close()


def _starts(session: Session, settings: ServerSettings) -> list[WorkerStart]:
    host, port = _split(settings.worker_listen)
    secret = (
        settings.proxy is not None and HttpProxy.parse(settings.proxy).authorization
    )
    if secret and settings.workers_on == "ray":
        why = (
            "Ray would keep its password: give workers on Ray a proxy that asks for"
            " none"
        )
        raise Misconfiguration("proxy", "…", why)
    if port and port + settings.workers > 1 << 16:
        raise Misconfiguration(
            "worker_listen", settings.worker_listen, "too few ports follow it"
        )
    return [
        WorkerStart(
            role=session.role.value,
            task=settings.task.resolve(),
            identity=settings.identity.resolve(),
            dealer=settings.dealer,
            listen=f"{host}:{port + number if port else 0}",
            proxy=settings.proxy,
        )
        for number in range(settings.workers)
    ]


def _split(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)
