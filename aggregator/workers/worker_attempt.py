"""One attempt as a worker plays it: it validates its part of the submissions.

``Attempt.run`` runs in a thread of its own; the server's orders come through a queue.
"""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from precad.aggregator import FrameTransport, PeerLink
from precad.aggregator.rpc import DialledTransport, ServedTransport
from precad.aggregator.validate import in_process, longest_opening
from precad.aggregator.validate.validation import Server
from precad.common import (
    ClientId,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Role,
    Secret,
    Task,
    frozen_kw_only_dataclass,
    in_pieces,
    log,
)
from precad.common.ring import to_bytes
from precad.common.wire import STREAMED_BYTES
from precad.norm_check import AnySubmission, Dealing

Report = Callable[..., None]
"""Takes one field of a WorkReport (protos/precad.proto) by its name, messages as
mappings."""
_LOOK_S = 0.5
"""Seconds between looks at the link, while no order comes."""
_AT_ONCE = 64
"""Submissions that the dealer is asked about together."""
_SPARE_BYTES = 4096
"""Bytes by which a message may be longer than the longest opening."""


@dataclass(eq=False)
class Recorded:
    """Batches that this worker's server has recorded as used.

    Iterating yields each batch once, in order; each may be spent here once.
    """

    _open: deque[int] = field(default_factory=deque)
    _newest: int = -1
    _spendable: set[int] = field(default_factory=set)

    def add(self, batch: int) -> None:
        """Take up a batch that the server has recorded, durably; again does nothing."""
        if batch > self._newest:
            self._newest = batch
            self._open.append(batch)
            self._spendable.add(batch)

    def __iter__(self) -> Iterator[int]:
        while self._open:
            yield self._open.popleft()

    def spend(self, attempt: int, batch: int) -> None:
        """Spend a batch, as ``SpentTriples.spend``.

        Raises PeerViolation: the server hasn't recorded it, or it was spent here.
        """
        if batch not in self._spendable:
            raise PeerViolation(
                f"batch {batch} of attempt {attempt} isn't this worker's to spend"
            )
        self._spendable.discard(batch)


@frozen_kw_only_dataclass
class Begin:
    """What the server says first about an attempt."""

    attempt: int
    pair: int
    """The number of this worker's pair."""
    dealer_key: Secret
    nonces: bytes


@frozen_kw_only_dataclass
class Taken:
    """One submission for this worker."""

    submission: AnySubmission
    counted: bool
    """Whether its share is summed."""
    batch: int
    """The batch of comparisons that it belongs to."""
    bound: int
    """β_i, the bound on its norm."""


Order = Taken | None
"""What the server orders: to take a submission, or (None) to decide on all."""


@dataclass(eq=False, repr=False, kw_only=True)
class Attempt:
    """A worker's part of one attempt, from the link's first message to the verdicts."""

    _task: Task
    _role: Role
    _begin: Begin
    _dealing: Dealing
    _reach: Callable[[], AbstractContextManager[DialledTransport | ServedTransport]]
    """Reaches the other server's worker; tried until one is in the same attempt."""
    _report: Report
    _orders: "queue.SimpleQueue[Order | BaseException]" = field(
        default_factory=queue.SimpleQueue
    )
    _transport: DialledTransport | ServedTransport | None = None
    _broken_off: bool = False

    def put(self, order: Order) -> None:
        """Take the server's next order."""
        self._orders.put(order)

    def end(self) -> None:
        """Note that no order follows."""
        self._orders.put(EOFError())

    def break_off(self) -> None:
        """End the attempt: the server wants nothing more of it.

        Whoever waits on the link, at either end, hears so too.
        """
        self.end()
        self._broken_off = True
        if self._transport is not None:
            self._transport.close()

    def run(self) -> None:
        """Play the attempt to its end, and report what went wrong, if something did."""
        try:
            played = False
            while not played:
                played = self._try()
        except EOFError:
            pass
        except PrecadError as error:
            violation = isinstance(error, PeerViolation)
            self._report(failure={"violation": violation, "text": str(error)})
        except Exception:
            log.exception("a bug stopped a worker's attempt")
            self._report(failure={"text": "internal error of a worker; see its log"})

    def _try(self) -> bool:
        """Play the attempt over the next link; return whether the link was of it.

        At B an older attempt's link may still lie around.

        Raises PeerUnavailable, PeerViolation; EOFError: the server broke the attempt
        off.
        """
        with self._reach() as transport:
            self._transport = transport
            if self._broken_off:
                raise PeerUnavailable("the server has broken the attempt off")
            try:
                link = self._link(transport)
            except (PeerUnavailable, PeerViolation) as error:
                if self._role is Role.SERVER_A:
                    raise
                log.info("a link of another attempt was passed over: %s", error)
                return False
            self._play(link)
            return True

    def _link(self, transport: FrameTransport) -> PeerLink:
        """Return the link with the other server's worker, once both are in one attempt.

        Raises PeerUnavailable; PeerViolation: the other end is of another pair, attempt
        or link of the servers.
        """
        link = PeerLink(
            transport=transport,
            task=self._task.digest,
            max_message_bytes=longest_opening(self._task) + _SPARE_BYTES,
            timeout_s=self._task.deadlines.peer,
        )
        link.begin_attempt(self._begin.attempt)
        theirs = link.exchange(f"workers/{self._begin.pair}", self._begin.nonces)
        if theirs != self._begin.nonces:
            raise PeerViolation("the other server's worker is of another link")
        self._report(linked=True)
        return link

    def _play(self, link: PeerLink) -> None:
        """Validate what the server hands over, and report rejections and the share sum.

        The sum is this server's share, in pieces of ``STREAMED_BYTES``.

        Raises as ``_try``.
        """
        begin = self._begin
        recorded = Recorded()
        counted = set[ClientId]()
        bounds = dict[ClientId, int]()
        worker = Server(
            task=self._task,
            role=self._role,
            link=link,
            dealing=self._dealing,
            dealer_key=begin.dealer_key,
            nonces=begin.nonces,
            spent=recorded,
            bound_of=bounds.__getitem__,
        )
        with in_process(worker, begin.attempt, counted, iter(recorded)) as validator:
            deciding = False
            while not deciding:
                orders = self._next(link)
                submissions = []
                for order in orders:
                    if order is not None:
                        client = order.submission.context.client
                        bounds[client] = order.bound
                        if order.counted:
                            counted.add(client)
                        recorded.add(order.batch)
                        submissions.append(order.submission)
                validator.take(submissions)
                deciding = orders[-1] is None
            verdicts = validator.decide()
        for client, reason in verdicts.rejections.items():
            self._report(rejection={"client": client.name, "reason": reason.value})
        for piece in in_pieces(to_bytes(verdicts.share_sum), STREAMED_BYTES):
            self._report(share_sum=bytes(piece))
        self._report(done={"bytes_sent": link.bytes_sent})

    def _next(self, link: PeerLink) -> list[Order]:
        """Return the orders to follow next, the last of which may be to decide.

        A batch of proofs has one coin, so both workers must take as many: A's worker
        says how many it takes.

        Raises EOFError: the server broke the attempt off; PeerUnavailable;
        PeerViolation: A's worker takes none, or too many.
        """
        if self._task.proof is None or self._role is Role.SERVER_A:
            orders = self._waiting(link, least=1, most=_AT_ONCE)
            if self._task.proof is not None:
                link.send("batch", len(orders).to_bytes(2, "big"))
            return orders
        deadlines = self._task.deadlines
        message = link.receive("batch", timeout_s=deadlines.collect + deadlines.peer)
        count = int.from_bytes(message, "big")
        if not 1 <= count <= _AT_ONCE:
            raise PeerViolation(
                f"the other server's worker takes {count} orders at once"
            )
        return self._waiting(link, least=count, most=count)

    def _waiting(self, link: PeerLink, *, least: int, most: int) -> list[Order]:
        """Return orders that wait, up to ``most``; wait until ``least`` are there.

        The order to decide ends the list, however few there are.

        Raises EOFError: the server broke the attempt off; PeerUnavailable: the link is
        lost.
        """
        orders: list[Order] = []
        while len(orders) < least or (len(orders) < most and not self._orders.empty()):
            try:
                order = self._orders.get(timeout=_LOOK_S)
            except queue.Empty:
                link.require_alive()
                continue
            if isinstance(order, BaseException):
                raise order
            orders.append(order)
            if order is None:
                break
        return orders
