"""What the dealer shows a Prometheus: numbers about the two servers' requests, and of no client.

Loaded only where the settings name an address for them. docs/metrics.md says what each is.
"""

import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from weakref import WeakSet

from prometheus_client.core import Metric

from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import of_connection
from precad.common.task import Task
from precad.common.wire.metrics_page import about, counter, gauge
from precad.common.wire.serving import Context
from precad.dealer.dealer_role import SERVERS, DealerRole
from precad.dealer.dealing_service import DealingService, Outbox
from precad.dealer.gate_batches import Deliver, Work
from precad.protos import precad_pb2 as pb


class CountedDealing(DealingService):
    """The service, which counts what it hears and says."""

    def __init__(self, task: Task, dealer: DealerRole, identity: Identity) -> None:
        super().__init__(task, dealer, identity)
        none = {role.value: 0 for role in SERVERS}
        self._joins, self._halves, self._violations = Counter(none), Counter(none), Counter(none)
        self._bytes: Counter[str] = Counter()
        self._conversations = 0
        self._outboxes: dict[str, WeakSet[Outbox]] = {name: WeakSet() for name in none}
        """Of conversations, as long as they last."""
        self._lock = threading.Lock()
        self._working = 0

    def collect(self) -> Iterator[Metric]:
        """The present values; called in any thread."""
        yield about("dealer", self._task.name)
        said = "How often a server came for its key."
        yield counter("joins_total", said, self._joins, "server")
        said = "The newest that is dealt for; -1: none."
        yield gauge("newest_attempt", said, self._dealer.newest_attempt)
        said = "Servers' open ones about an attempt."
        yield gauge("conversations", said, self._conversations)
        said = "Halves of masks that a server named."
        yield counter("halves_total", said, self._halves, "server")
        yield gauge("halves_waiting", "Those that only one has named.", self._dealer.waiting)
        yield gauge("dealing", "Submissions that wait or are dealt.", self._working)
        with self._lock:
            unread = {name: sum(map(len, each)) for name, each in self._outboxes.items()}
        yield gauge("answers_waiting", "Answers that a server hasn't taken yet.", unread, "server")
        said = "Answers that the servers' halves don't fit together."
        yield counter("violations_total", said, self._violations, "server")
        said = "Payloads since this start."
        yield counter("link_bytes_total", said, dict(self._bytes), "link")
        said = "Of this process, since its start."
        yield counter("cpu_seconds_total", said, time.process_time())

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:  # noqa: N802
        """As the service's."""
        reply = await super().Join(request, context)
        self._joins[_caller(context)] += 1
        return reply

    async def Deal(  # noqa: N802
        self, request: pb.DealRequest, context: Context
    ) -> AsyncIterator[pb.DealPiece]:
        """As the service's."""
        async for piece in super().Deal(request, context):
            self._bytes[f"dealer to {_caller(context)}"] += len(piece.words)
            yield piece

    async def Square(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.SquareRequest], context: Context
    ) -> AsyncGenerator[pb.SquareReply, None]:
        """As the service's."""
        self._conversations += 1
        try:
            async with aclosing(super().Square(request_iterator, context)) as replies:
                async for reply in replies:
                    to = _caller(context)
                    self._bytes[f"dealer to {to}"] += reply.ByteSize()
                    refused = sum(each.HasField("violation") for each in reply.answers)
                    self._violations[to] += refused
                    yield reply
        finally:
            self._conversations -= 1

    def _opens(self, role: Role, answers: Outbox) -> None:
        with self._lock:
            self._outboxes[role.value].add(answers)

    async def _take(
        self, requests: AsyncIterator[pb.SquareRequest], context: Context, deliver: Deliver
    ) -> None:
        await super()._take(self._heard(requests, context), context, deliver)

    async def _heard(
        self, requests: AsyncIterator[pb.SquareRequest], context: Context
    ) -> AsyncIterator[pb.SquareRequest]:
        async for message in requests:
            name = _caller(context)
            self._halves[name] += len(message.halves)
            self._bytes[f"{name} to dealer"] += message.ByteSize()
            yield message
            # As in the service: while it waits nothing here holds a seed.
            del message

    def _begin(self, work: Work | None) -> None:
        if work is None:
            return
        self._add(1)

        def counted() -> None:
            try:
                work()
            finally:
                self._add(-1)

        super()._begin(counted)

    def _add(self, change: int) -> None:
        with self._lock:
            self._working += change


def _caller(context: Context) -> str:
    """Which server it is: the service has let it in."""
    _, principal = of_connection(context)
    assert principal is not None
    return principal.role.value
