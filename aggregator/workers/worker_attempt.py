"""One attempt as a worker plays it: its part of the submissions, in a thread of its own."""

import logging
import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from precad.aggregator.peer_link import FrameTransport, PeerLink
from precad.aggregator.rpc.peer_transport import DialledTransport, ServedTransport
from precad.aggregator.validate import in_process, longest_opening
from precad.aggregator.validate.validation import Server
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.ring import to_bytes
from precad.common.task import Task
from precad.common.wire.serving import STREAMED_BYTES
from precad.norm_check.dealing import Dealing
from precad.norm_check.proof_submission import AnySubmission

log = logging.getLogger("precad")

Report = Callable[..., None]
"""Takes one field of a WorkReport (protos/precad.proto) by its name, messages as
mappings."""
_LOOK_S = 0.5
_AT_ONCE = 64
"""Submissions that the dealer is asked about together."""


@dataclass(eq=False)
class Recorded:
    """Batches that this worker's server has recorded as used; each may be spent here once."""

    _open: deque[int] = field(default_factory=deque)
    _newest: int = -1
    _spendable: set[int] = field(default_factory=set)

    def add(self, batch: int) -> None:
        """Its server has recorded it, durably."""
        if batch > self._newest:
            self._newest = batch
            self._open.append(batch)
            self._spendable.add(batch)

    def __iter__(self) -> Iterator[int]:
        while self._open:
            yield self._open.popleft()

    def spend(self, attempt: int, batch: int) -> None:
        """As ``SpentTriples.spend``."""
        if batch not in self._spendable:
            raise PeerViolation(
                f"batch {batch} of attempt {attempt} isn't this worker's to spend"
            )
        self._spendable.discard(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """What the server says first."""

    attempt: int
    pair: int
    dealer_key: Secret = field(repr=False)
    nonces: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """One submission for this worker."""

    submission: AnySubmission
    counted: bool
    batch: int


Order = Taken | None
"""None: decide on all."""


@dataclass(eq=False, repr=False, kw_only=True)
class Attempt:
    """From the link's first word to the verdicts."""

    _task: Task
    _role: Role
    _begin: Begin
    _dealing: Dealing
    _reach: Callable[[], AbstractContextManager[DialledTransport | ServedTransport]]
    """The other server's worker; tried until one is in the same attempt."""
    _report: Report
    _orders: "queue.SimpleQueue[Order | BaseException]" = field(
        default_factory=queue.SimpleQueue
    )
    _transport: DialledTransport | ServedTransport | None = None
    _broken_off: bool = False

    def put(self, order: Order) -> None:
        """The server's next order."""
        self._orders.put(order)

    def end(self) -> None:
        """No order follows."""
        self._orders.put(EOFError())

    def break_off(self) -> None:
        """The server wants nothing more of it: whoever waits on the link hears so too."""
        self.end()
        self._broken_off = True
        if self._transport is not None:
            self._transport.close()

    def run(self) -> None:
        """All of it; says what went wrong in a report."""
        try:
            while not self._tried():
                pass
        except EOFError:
            pass
        except PrecadError as error:
            violation = isinstance(error, PeerViolation)
            self._report(failure={"violation": violation, "text": str(error)})
        except Exception:
            log.exception("a bug stopped a worker's attempt")
            self._report(failure={"text": "internal error of a worker; see its log"})

    def _tried(self) -> bool:
        """Whether the link was of this attempt: at B an older one may still lie around."""
        with self._reach() as transport:
            self._transport = transport
            if self._broken_off:
                raise PeerUnavailable("the server has broken the attempt off")
            try:
                link = self._linked(transport)
            except (PeerUnavailable, PeerViolation) as error:
                if self._role is Role.SERVER_A:
                    raise
                log.info("a link of another attempt was passed over: %s", error)
                return False
            self._play(link)
            return True

    def _linked(self, transport: FrameTransport) -> PeerLink:
        most = longest_opening(self._task) + 4096
        patience_s = self._task.deadlines.peer
        link = PeerLink(
            transport, self._task.digest, max_message_bytes=most, timeout_s=patience_s
        )
        link.begin_attempt(self._begin.attempt)
        if (
            link.exchange(f"workers/{self._begin.pair}", self._begin.nonces)
            != self._begin.nonces
        ):
            raise PeerViolation("the other server's worker is of another link")
        self._report(linked=True)
        return link

    def _play(self, link: PeerLink) -> None:
        begin = self._begin
        recorded = Recorded()
        counted = set[ClientId]()
        worker = Server(
            task=self._task,
            role=self._role,
            link=link,
            dealing=self._dealing,
            dealer_key=begin.dealer_key,
            nonces=begin.nonces,
            spent=recorded,
        )
        with in_process(worker, begin.attempt, counted, iter(recorded)) as validator:
            while (orders := self._next(link))[-1] is not None:
                validator.take(self._note(orders, counted, recorded))
            validator.take(self._note(orders, counted, recorded))
            verdicts = validator.decide()
        for client, reason in verdicts.rejections.items():
            self._report(rejection={"client": client.name, "reason": reason.value})
        data = memoryview(to_bytes(verdicts.share_sum))
        for start in range(0, len(data), STREAMED_BYTES):
            self._report(share_sum=bytes(data[start : start + STREAMED_BYTES]))
        self._report(done={"bytes_sent": link.bytes_sent})

    def _next(self, link: PeerLink) -> list[Order]:
        """What comes next.

        A batch of proofs has one coin: A's worker says how many it has.
        """
        if self._task.proof is None or self._role is Role.SERVER_A:
            orders = self._waiting(link, 1, _AT_ONCE)
            if self._task.proof is not None:
                link.send("batch", len(orders).to_bytes(2, "big"))
            return orders
        deadlines = self._task.deadlines
        said = link.receive("batch", timeout_s=deadlines.collect + deadlines.peer)
        number = int.from_bytes(said, "big")
        if not 1 <= number <= _AT_ONCE:
            raise PeerViolation(
                f"the other server's worker takes {number} orders at once"
            )
        return self._waiting(link, number, number)

    def _waiting(self, link: PeerLink, least: int, most: int) -> list[Order]:
        """What waits.

        Raises EOFError: the server broke the attempt off; PeerUnavailable.
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

    def _note(
        self, orders: list[Order], counted: set[ClientId], recorded: Recorded
    ) -> list[AnySubmission]:
        taken = [order for order in orders if order is not None]
        for order in taken:
            recorded.add(order.batch)
        counted.update(each.submission.context.client for each in taken if each.counted)
        return [order.submission for order in taken]
