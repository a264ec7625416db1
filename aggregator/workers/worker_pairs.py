"""Validation by pairs of workers, one of server A's with one of server B's.

The results are those of one process, bit for bit.

Both servers go through the same steps in the same order. So they give every submission
to the same pair and the same batch without a word about it; they only tell each other
which pairs are there.

Both servers record a batch as used, durably, before its first submission goes to a
worker, and so before anything of it is dealt. A pair that is lost before has no part in
the attempt. A pair that is lost after ends the attempt, as a lost server does, and in
the next attempt owners share X afresh.
"""

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Self

import grpc
import numpy as np

from precad.aggregator import (
    Opened,
    ServerSettings,
    WorkerCount,
    Workers,
    WorkerState,
    exchange,
)
from precad.aggregator.collect import SpooledBody
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.training import Session
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
from precad.common import (
    CLOCK,
    WORD_BYTES,
    BodyUnreadable,
    ClientId,
    Clock,
    HttpProxy,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Rejection,
    Role,
    Task,
    frozen_kw_only_dataclass,
    log,
    start_thread,
)
from precad.common.identity import (
    Identity,
    check_version,
    greeted_version,
    open_channel,
)
from precad.common.ring import from_bytes
from precad.common.wire import error_of
from precad.norm_check import AnySubmission, body_messages, group_of, header_to_wire
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import WorkingStub

_LOOK_S = 0.2
"""Seconds between looks at a pair's verdicts, or at whether a pair is there."""


class WorkerLink:
    """A server's conversation with one of its workers about one attempt.

    The worker listens at ``address``; one on the ``same_disk`` can open this server's
    files. gRPC's threads take orders from a queue, and a thread of this link reads the
    worker's reports.
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
        """Call the worker; ``begin`` is the first order."""
        self._address = address
        self._dimension = task.dimension
        self._same_disk = same_disk
        self._orders: queue.SimpleQueue[Taken | pb.WorkOrder | None] = (
            queue.SimpleQueue()
        )
        """Submissions to hand over and other orders; None ends the call."""
        self._orders.put(pb.WorkOrder(begin=begin))
        self._changed = threading.Condition()
        """Notified at each report, and at the end."""
        self._linked = False
        self._ended: PrecadError | None = None
        """Why nothing more comes from the worker; also set once it is done."""
        self._rejections: dict[ClientId, Rejection] = {}
        self._sum = bytearray()
        """What has come so far of this server's share of the sum."""
        self._done: pb.WorkDone | None = None
        self._channel = open_channel(address, identity, role)
        self._call = WorkingStub(self._channel).Validate(self._messages())
        self._reader = start_thread("worker-reports", self._read)

    @property
    def ready(self) -> bool:
        """Whether the worker is linked with the other server's, as far as is known."""
        return self._linked and self._ended is None

    @property
    def error(self) -> PrecadError | None:
        """Why the worker can't go on; None while it can, or once it is done."""
        return None if self._done is not None else self._ended

    def take(self, taken: Taken) -> None:
        """Hand one submission over; doesn't wait."""
        self._orders.put(taken)

    def decide(self) -> None:
        """Order the worker to decide on all that it took; ``wait`` has the verdicts."""
        self._orders.put(pb.WorkOrder(decide=pb.WorkDecide()))

    def wait(self, seconds: float) -> tuple[Verdicts, int] | None:
        """Return the worker's verdicts, and how many bytes it sent to the other worker.

        None if they don't come within so many seconds.

        Raises PeerUnavailable: the worker is gone; PeerViolation: its sum is too short,
        or it departs from the protocol otherwise.
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
        """Break the conversation off; the worker forgets what it had."""
        self._orders.put(None)
        self._call.cancel()
        self._channel.close()
        self._reader.join(timeout=1)

    def _messages(self) -> Iterator[pb.WorkOrder]:
        """Yield the orders to gRPC, with bodies that the worker can't open itself.

        A body is read as the worker takes it: it isn't in memory before.
        """
        orders: Iterator[Taken | pb.WorkOrder] = iter(self._orders.get, None)
        for order in orders:
            if isinstance(order, pb.WorkOrder):
                yield order
                continue
            try:
                messages = _take_orders(order, same_disk=self._same_disk)
                with closing(messages):
                    yield from messages
            except BodyUnreadable as error:
                self._end(
                    PeerUnavailable(f"a body for a worker can't be read: {error}")
                )
                return
            del order

    def _read(self) -> None:
        """Read the worker's reports until they end; runs in a thread of its own."""
        try:
            for number, report in enumerate(self._call):
                if number == 0:
                    version = greeted_version(self._call.initial_metadata())
                    check_version(f"the worker at {self._address}", version)
                self._note(report)
            self._end(PeerUnavailable(f"the worker at {self._address} ended its part"))
        except grpc.RpcError as error:
            self._end(error_of("a worker", self._address, error))
        except PrecadError as error:
            self._end(error)

    def _note(self, report: pb.WorkReport) -> None:
        """Take one report of the worker, and wake whoever waits.

        Raises PeerUnavailable, PeerViolation: the worker reports so, or its report
        can't be.
        """
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
                    text = f"the worker at {self._address}: {report.failure.text}"
                    if report.failure.violation:
                        raise PeerViolation(text)
                    raise PeerUnavailable(text)
                case _:
                    raise PeerViolation("a worker's report holds nothing")
            self._changed.notify_all()

    def _reject(self, reported: pb.WorkRejection) -> None:
        """Take one reported rejection.

        Raises PeerViolation: there is no such client's name, or no such reason.
        """
        try:
            self._rejections[ClientId(reported.client)] = Rejection(reported.reason)
        except (Misconfiguration, ValueError) as error:
            raise PeerViolation(
                f"the worker at {self._address} reports: {error}"
            ) from error

    def _end(self, error: PrecadError) -> None:
        """Note that nothing more comes, and why, unless another reason came before."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()


def _take_orders(taken: Taken, *, same_disk: bool) -> Generator[pb.WorkOrder]:
    """Yield the orders that hand one submission over to a worker.

    A worker on the same disk is told where the body lies, if it lies in a file; to any
    other the body follows.

    Raises BodyUnreadable.
    """
    body = taken.submission.body
    take = pb.WorkTake(
        submission=header_to_wire(taken.submission),
        counted=taken.counted,
        batch=taken.batch,
        bound=taken.bound,
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
    for piece in body_messages(body):
        yield pb.WorkOrder(body=piece)


@frozen_kw_only_dataclass
class OwnWorkers:
    """One server's workers, and how they reach the other server's."""

    pool: WorkerPool
    identity: Identity
    other_host: str = ""
    """At A: server B's host, for those of its workers that are on its own machine."""
    own_host: str = "127.0.0.1"
    """The host where this server reaches those of its workers that name none."""
    clock: Clock = CLOCK


class WorkerPairs:
    """Validates one attempt's submissions by pairs of workers, as a ``Validator`` does.

    To be used in a ``with`` block. ``pairs`` is their number, the same at both servers.
    """

    def __init__(
        self, aggregator: Aggregator, opened: Opened, own: OwnWorkers, pairs: int
    ) -> None:
        """Keep what is given; the pairs link up when the block begins."""
        self._aggregator = aggregator
        self._opened = opened
        self._own = own
        self._numbers = range(pairs)
        """The pairs' numbers, the same at both servers."""
        self._links: dict[int, WorkerLink] = {}
        """This server's links to its workers, by pair."""
        self._loads = dict.fromkeys(self._numbers, 0)
        """Submissions that each pair has taken, the same at both servers."""
        self._recorded: dict[int, int] = {}
        """Each pair's newest batch."""
        self._batches = 0
        """How many batches are recorded as used."""
        self._waiting: deque[AnySubmission] = deque()
        """Submissions that no pair was there to take."""
        self._peers: dict[int, str] = {}
        """Where the other server's workers were last said to listen, by pair."""

    def __enter__(self) -> Self:
        # Pairs link up while uploads come in.
        self._linked()
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links.values():
            link.close()

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """Hand submissions over to the pairs that are there, as ``Validator.take``.

        Where no pair is there they wait. Without a submission pairs are only linked up,
        without a word: another release's server says none then.
        """
        self._waiting += submissions
        if submissions:
            self._hand_over()
        else:
            self._link_up()

    def ready(self) -> None:
        """Return when a pair is there and has what waited, as ``Validator.ready``.

        Raises PeerUnavailable: none was there within the task's deadline for peers.
        """
        clock = self._own.clock
        patience_s = self._aggregator.task.deadlines.peer
        deadline = clock.now() + patience_s
        # Both servers count the same turns, up to the length of a wait: the one that
        # gives up first ends the attempt.
        while not self._hand_over():
            if clock.now() >= deadline:
                raise PeerUnavailable(
                    f"no pair of workers was there within {patience_s:g} s; look at"
                    " both servers' logs for why they don't start, or can't reach each"
                    " other"
                )
            clock.sleep(_LOOK_S)

    def decide(self) -> Verdicts:
        """Return all pairs' verdicts, and the sum of their shares.

        As ``Validator.decide``.
        """
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
            verdicts, bytes_sent = outcome
            rejections |= verdicts.rejections
            group.add(total, verdicts.share_sum)
            self._aggregator.link.bytes_sent += bytes_sent
        return Verdicts(rejections, total)

    def _hand_over(self) -> bool:
        """Give what waits to the pairs that are there; return whether one is there.

        Each submission goes to the pair that has taken the fewest. A pair's batch is
        recorded as used, durably, before its first submission is handed over.
        """
        ready = self._linked()
        while self._waiting and ready:
            number = min(ready, key=lambda pair: (self._loads[pair], pair))
            submission = self._waiting.popleft()
            link = self._links[number]
            if self._loads[number] % MAX_BATCH_CLIENTS == 0:
                self._aggregator.store.attempts.spend(
                    self._opened.attempt, self._batches
                )
                self._recorded[number] = self._batches
                self._batches += 1
            self._loads[number] += 1
            client = submission.context.client
            taken = Taken(
                submission=submission,
                counted=client in self._opened.counted,
                batch=self._recorded[number],
                bound=self._aggregator.bound_of(client),
            )
            link.take(taken)
        return bool(ready)

    def _linked(self) -> list[int]:
        """Return the pairs that both servers know to be linked; link up the others."""
        self._link_up()
        states = tuple(self._state(number) for number in self._numbers)
        link = self._aggregator.link
        theirs = exchange(link, "workers", Workers(workers=states)).workers
        if self._aggregator.role is Role.SERVER_A:
            for number, state in zip(self._numbers, theirs, strict=False):
                if state.address:
                    self._peers[number] = state.address
            self._link_up()
        return [
            number
            for number, state in zip(self._numbers, theirs, strict=False)
            if states[number].ready and state.ready
        ]

    def _link_up(self) -> None:
        """Link up the pairs that aren't linked, where it is known with whom."""
        self._drop_the_lost()
        if self._aggregator.role is Role.SERVER_B:  # Its workers wait to be called.
            self._peers = dict.fromkeys(self._numbers, "")
        for number, peer in self._peers.items():
            self._open(number, peer)

    def _state(self, number: int) -> WorkerState:
        """Return what the other server is told of a worker; B says where it listens."""
        worker = self._own.pool.worker(number)
        link = self._links.get(number)
        address = ""
        if worker is not None and self._aggregator.role is Role.SERVER_B:
            address = worker.address
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
        """Begin the attempt with one of this server's workers, once it is up.

        Does nothing where it has begun.

        At A ``peer`` is where the other server's worker of the pair listens; at B it is
        empty.
        """
        worker = self._own.pool.worker(number)
        if worker is None or number in self._links:
            return
        aggregator = self._aggregator
        own = self._own
        begin = pb.WorkBegin(
            task_digest=aggregator.task.digest.value,
            attempt=self._opened.attempt,
            pair=number,
            peer=_at_host(own.other_host, peer),
            dealer_key=aggregator.dealer_key.reveal(),
            epoch=aggregator.dealing.epoch,
            nonces=aggregator.nonces,
        )
        self._links[number] = WorkerLink(
            _at_host(own.own_host, worker.address),
            aggregator.task,
            aggregator.role,
            own.identity,
            begin,
            same_disk=own.pool.place.same_disk,
        )


def _at_host(host: str, address: str) -> str:
    """Return the address, on ``host`` if it names none."""
    return f"{host}{address}" if address.startswith(":") else address


def pairs_of(aggregator: Aggregator, own: int) -> int:
    """Return how many pairs of workers there can be, with ``own`` workers here.

    Both servers tell each other how many they have.
    """
    return min(own, exchange(aggregator.link, "pairs", WorkerCount(count=own)).count)


_EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 -- compared with, not bound
"""Hosts that mean all of a machine's addresses: nobody can be called there."""


class ValidationWorkers:
    """A server's workers for a whole training, which asks for a validator each attempt.

    Server A names the ``other_server``'s address.

    Raises Misconfiguration: the ports aren't there, or Ray isn't installed or would
    show a secret; PeerUnavailable: Ray's cluster isn't there.
    """

    def __init__(
        self, session: Session, settings: ServerSettings, other_server: str = ""
    ) -> None:
        """Start the workers that the settings ask for; without any nothing happens."""
        self._count = settings.workers
        self._own: OwnWorkers | None = None
        if not self._count:
            return
        host = settings.worker_listen.rpartition(":")[0]
        other_host = other_server.rpartition(":")[0]
        own_host = "127.0.0.1" if host in _EVERYWHERE else host
        starts = _starts(session, settings)
        place = (
            RayCluster(settings.ray) if settings.workers_on == "ray" else ThisMachine()
        )

        def note_how_many(up: int) -> None:
            session.progress.workers = up

        self._own = OwnWorkers(
            pool=WorkerPool(place, starts, note_how_many),
            identity=session.identity,
            other_host=other_host,
            own_host=own_host,
            clock=session.clock,
        )

    def validation(self, aggregator: Aggregator, opened: Opened) -> Validation:
        """Return a validator for one attempt: pairs of workers, or this process.

        Pairs where both servers have workers.
        """
        pairs = pairs_of(aggregator, self._count)
        if self._own is None or not pairs:
            return aggregator.in_process(opened)
        return WorkerPairs(aggregator, opened, self._own, pairs)

    def close(self) -> None:
        """End all workers."""
        if self._own is not None:
            self._own.pool.close()


def _starts(session: Session, settings: ServerSettings) -> list[WorkerStart]:
    """Return what each of a server's workers is told when it starts.

    They listen on ports that follow each other, or on free ones.

    Raises Misconfiguration: the ports aren't there, or Ray would show a password.
    """
    host, _, last = settings.worker_listen.rpartition(":")
    port = int(last)
    password = None
    if settings.proxy is not None:
        password = HttpProxy.parse(settings.proxy).authorization
    if password and settings.workers_on == "ray":
        raise Misconfiguration(
            "proxy",
            "…",
            "Ray would keep its password: give its workers one that asks for none",
        )
    if port and port + settings.workers > 1 << 16:
        raise Misconfiguration(
            "worker_listen", settings.worker_listen, "too few ports follow it"
        )
    passphrase_file = settings.key_passphrase_file
    return [
        WorkerStart(
            role=session.role.value,
            task=settings.task.resolve(),
            identity=settings.identity.resolve(),
            key_passphrase_file=passphrase_file and passphrase_file.resolve(),
            dealer=settings.dealer,
            listen=f"{host}:{port + number if port else 0}",
            proxy=settings.proxy,
        )
        for number in range(settings.workers)
    ]
