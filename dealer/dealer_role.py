"""The dealer: two keys, the words that make the servers' streams correlated, and squares.

Of the masks that clients chose it deals r = a·a: a share to each server, fresh, once
per context, when both servers have named it alike.
"""

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np

from precad.common.clock import CLOCK, Clock
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    TaskMismatch,
)
from precad.common.identifiers import Digest, Role, Secret
from precad.common.ring import (
    CACHED_WORDS,
    KEY_BYTES,
    Keystream,
    RingVector,
    dot,
    mask_stream,
    opens,
    signed,
)
from precad.common.task import Task
from precad.norm_check.dealing import (
    Answer,
    DealerConversation,
    DealRequest,
    SquareRequest,
)

SERVERS = (Role.SERVER_A, Role.SERVER_B)
Deliver = Callable[[bytes, Answer], None]
"""Takes the answer about one context to one server; doesn't wait. It stands for the
server's conversation."""
Work = Callable[[], None]
"""To be called in any thread; its answers go to both servers."""


@dataclass(frozen=True, slots=True)
class _Half:
    role: Role
    request: SquareRequest
    deliver: Deliver

    def opens(self) -> bool:
        ctx, *commitments = self.request.names
        own = commitments[SERVERS.index(self.role)]
        return opens(
            commitment=own,
            role=self.role,
            ctx=ctx,
            salt=self.request.salt,
            seed=self.request.seed,
        )


class DealerRole:
    """Deals to one task's two servers; sees the seeds of clients' masks, never what they mask.

    Safe to call from several threads. ``keys`` are 32 secret bytes shared with each
    server, and with it alone; fresh ones from the operating system's CSPRNG but in
    tests.
    """

    def __init__(
        self, task: Digest, dimension: int, keys: Mapping[Role, Secret] | None = None
    ) -> None:
        self._task = task
        self._keys = keys or {role: Secret.random(KEY_BYTES) for role in SERVERS}
        self._dealt: dict[int, tuple[DealRequest, set[Role]]] = {}
        """By batch, of the newest attempt: an older one is never dealt for again."""
        self.newest_attempt = -1
        self._dimension = dimension
        self._waiting: dict[bytes, _Half] = {}
        self._closed: dict[bytes, PrecadError] = {}
        """Dealt, or refused: what whoever comes with such a context hears."""
        self._lock = threading.Lock()

    @classmethod
    def of(cls, task: Task) -> Self:
        """With fresh keys. Raises Misconfiguration: the task has no dealer."""
        if not task.has_dealer:
            remedy = 'nobody deals: a task with validation = "proof" has no dealer'
            raise Misconfiguration("task", task.name, remedy)
        return cls(task.digest, task.dimension)

    @property
    def waiting(self) -> int:
        """Submissions that only one server has asked for."""
        return len(self._waiting)

    def key_for(self, role: Role) -> Secret:
        """The key shared with one server. Raises PeerViolation for any other role."""
        if role not in self._keys:
            raise PeerViolation(f"{role.value} asked the dealer; only servers may")
        return self._keys[role]

    def corrections(self, role: Role, request: DealRequest) -> RingVector:
        """The correction words of a request, once to each server.

        ``[request.correction_words] int64`` for server B: for each binary triple (a &
        b) ⊕ c_A. Empty for server A, whose part is all expanded from its key.

        Raises PeerViolation: the role isn't a server, or this batch was asked with
        another shape; PeerUnavailable: it was dealt to this server before, or a newer
        attempt has begun; TaskMismatch.
        """
        self.key_for(role)
        with self._lock:
            self._begin(request)
            first, served = self._dealt.setdefault(request.batch, (request, set()))
            again = role in served
            served.add(role)
        if again:
            raise PeerUnavailable(
                f"attempt {request.attempt} is dealt for once; take a new one"
            )
        if first != request:
            what = f"attempt {request.attempt}, batch {request.batch}"
            raise PeerViolation(
                f"{what} was asked for before with another shape or other nonces"
            )
        if role is Role.SERVER_A:
            return np.empty(0, dtype=np.int64)
        binary = [
            self._binary(request, n, size) for n, size in enumerate(request.sizes)
        ]
        return np.concatenate(binary)

    def ask(self, role: Role, request: SquareRequest, deliver: Deliver) -> Work | None:
        """Take one server's half of a submission's mask; of two, return what is left to do.

        ``deliver`` hears the row key once both halves are here, later this server's
        share of r = a·a; PeerViolation where the halves don't fit, PeerUnavailable
        where it was dealt before. Raises as ``corrections``.
        """
        self.key_for(role)
        half = _Half(role, request, deliver)
        ctx = request.context
        once = PeerUnavailable(f"{ctx.hex()} is dealt for once; take a new attempt")
        with self._lock:
            self._begin(request)
            first = self._waiting.get(ctx)
            if ctx in self._closed or (first is not None and first.role is role):
                deliver(ctx, self._closed.get(ctx, once))
            elif not half.opens():
                self._refuse(half, f"{role.value}'s seed doesn't open its commitment")
            elif first is None:
                self._waiting[ctx] = half
            elif first.request != request:
                self._refuse(half, "the two servers name different commitments")
            else:
                del self._waiting[ctx]
                self._closed[ctx] = once
                row_key = Secret.random()
                first.deliver(ctx, row_key)
                deliver(ctx, row_key)
                return partial(_square, first, half, self._dimension)
        return None

    def forget(self, deliver: Deliver) -> None:
        """A server's conversation is over: the seeds of halves without the other one go."""
        with self._lock:
            for ctx, half in list(self._waiting.items()):
                if half.deliver == deliver:
                    del self._waiting[ctx]

    def _begin(self, request: DealRequest | SquareRequest) -> None:
        if request.task != self._task:
            raise TaskMismatch(str(self._task), str(request.task))
        if request.attempt < self.newest_attempt:
            raise PeerUnavailable(
                f"attempt {request.attempt} is dealt for once; take a new one"
            )
        if request.attempt > self.newest_attempt:
            self.newest_attempt = request.attempt
            self._dealt.clear()
            for ctx, half in self._waiting.items():
                half.deliver(
                    ctx, PeerUnavailable("a newer attempt has begun; take that one")
                )
            self._waiting.clear()
            self._closed.clear()

    def _refuse(self, half: _Half, why: str) -> None:
        """Which server broke the protocol, the dealer can't know: neither waits in vain."""
        ctx = half.request.context
        self._closed[ctx] = PeerViolation(f"nothing is dealt for {ctx.hex()}: {why}")
        for deliver in {half.deliver, self._waiting.pop(ctx, half).deliver}:
            deliver(ctx, self._closed[ctx])

    def _binary(self, request: DealRequest, number: int, size: int) -> RingVector:
        of_a, of_b = (request.stream(self._keys[role], number) for role in SERVERS)
        a = of_a.words(size) ^ of_b.words(size)
        b = of_a.words(size) ^ of_b.words(size)
        return (a & b) ^ of_a.words(size)


def _square(one: _Half, other: _Half, dimension: int) -> None:
    ctx = one.request.context
    r = sum(dot(a, a) for a in _masks(one, other, dimension))
    # Whose share is drawn and whose is the rest, is all the same: either alone is
    # uniform.
    drawn = secrets.randbits(64)
    one.deliver(ctx, signed(drawn))
    other.deliver(ctx, signed(r - drawn))


def _mask(half: _Half) -> Keystream:
    """One server's mask of a submission, from the seed that it handed in."""
    ctx, commitment_a, commitment_b = half.request.names
    return mask_stream(
        half.request.seed,
        half.role,
        ctx=ctx,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
    )


def _masks(of_one: _Half, of_other: _Half, dimension: int) -> Iterator[RingVector]:
    """A = a_A + a_B, in pieces; each is good until the next one is asked for."""
    streams = [_mask(half) for half in (of_one, of_other)]
    # Two buffers: one of a MiB would be fetched from the system anew for each
    # submission.
    one, other = (
        np.empty(min(CACHED_WORDS, dimension), dtype=np.int64) for _ in streams
    )
    for start in range(0, dimension, CACHED_WORDS):
        size = min(CACHED_WORDS, dimension - start)
        a = streams[0].words_into(one[:size])
        a += streams[1].words_into(other[:size])
        yield a


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDealing:
    """A server's way to a dealer in its own process, as on the page that plays the protocol."""

    dealer: DealerRole
    role: Role
    timeout_s: float = 60.0
    clock: Clock = CLOCK
    epoch = b""

    def join(self) -> Secret:
        """This server's key."""
        return self.dealer.key_for(self.role)

    def deal(self, request: DealRequest) -> RingVector:
        """As ``Dealing``'s."""
        return self.dealer.corrections(self.role, request)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[DealerConversation]:
        """As ``Dealing``'s: the second of two servers squares in its own thread."""

        def send(request: SquareRequest) -> None:
            try:
                work = self.dealer.ask(self.role, request, conversation.put)
                if work is not None:
                    work()
            except PrecadError as error:
                conversation.end(error)

        conversation = DealerConversation(
            attempt=attempt,
            send=send,
            timeout_s=self.timeout_s,
            clock=self.clock,
        )
        try:
            yield conversation
        finally:
            self.dealer.forget(conversation.put)
            conversation.end(
                PeerUnavailable("this server ended its conversation with the dealer")
            )
