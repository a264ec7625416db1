"""The dealer's part of the protocol, without its gRPC service.

It shares a key with each server, and sends correction words that make the servers'
streams correlated. Of the sum a of the masks that a client chose it deals shares of
r = a·a: a fresh share to each server, once per context, when both servers have named
the context alike.
"""

import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np

from precad.common import (
    CACHED_WORDS,
    KEY_BYTES,
    SERVERS,
    Digest,
    Keystream,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    RingVector,
    Role,
    Secret,
    Task,
    TaskMismatch,
    frozen_dataclass,
    mask_stream,
)
from precad.common.ring import dot, opens, signed
from precad.norm_check import Answer, DealRequest, SquareRequest

Deliver = Callable[[bytes, Answer], None]
"""Takes a context and the answer about it to one server, without waiting. It stands for
the server's conversation."""
Work = Callable[[], None]
"""A computation to be called in any thread; its answers go to both servers."""


@frozen_dataclass
class _Half:
    """One server's request about a submission, and where its answers go."""

    role: Role
    request: SquareRequest
    deliver: Deliver

    def opens(self) -> bool:
        """Return whether the server's seed and salt open its commitment."""
        ctx, commitment_a, commitment_b = self.request.names
        return opens(
            commitment=commitment_a if self.role is Role.SERVER_A else commitment_b,
            role=self.role,
            ctx=ctx,
            salt=self.request.salt,
            seed=self.request.seed,
        )

    def mask(self) -> Keystream:
        """Return the stream of the server's mask, from the seed that it handed in."""
        ctx, commitment_a, commitment_b = self.request.names
        return mask_stream(
            self.request.seed,
            self.role,
            ctx=ctx,
            commitment_a=commitment_a,
            commitment_b=commitment_b,
        )


class DealerRole:
    """Deals to one task's two servers.

    It sees the seeds of clients' masks, and never what they mask. It is safe to call
    from several threads. ``keys`` are 32 secret bytes shared with each server, and with
    it alone: fresh ones from the operating system's CSPRNG but in tests.
    """

    def __init__(
        self, task: Digest, dimension: int, keys: Mapping[Role, Secret] | None = None
    ) -> None:
        self._task = task
        self._keys = keys or {role: Secret.random(KEY_BYTES) for role in SERVERS}
        self._dealt: dict[int, tuple[DealRequest, set[Role]]] = {}
        """By batch of the newest attempt: its first request, and the servers that were
        dealt to. An older attempt is never dealt for again."""
        self.newest_attempt = -1
        """The newest attempt that is dealt for; −1: none."""
        self._dimension = dimension
        self._waiting: dict[bytes, _Half] = {}
        """By context: the half of the one server that has asked so far."""
        self._closed: dict[bytes, PrecadError] = {}
        """By context that was dealt or refused: what a later request is answered."""
        self._lock = threading.Lock()

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return a task's dealer, with fresh keys.

        Raises Misconfiguration: the task has no dealer.
        """
        if not task.has_dealer:
            raise Misconfiguration(
                "task",
                task.name,
                'nobody deals: a task with validation = "proof" has no dealer',
            )
        return cls(task.digest, task.dimension)

    @property
    def waiting(self) -> int:
        """Return the number of submissions that only one server has asked for."""
        return len(self._waiting)

    def key_for(self, role: Role) -> Secret:
        """Return the key shared with one server.

        Raises PeerViolation: the role isn't a server's.
        """
        if role not in self._keys:
            raise PeerViolation(f"{role.value} asked the dealer; only servers may")
        return self._keys[role]

    def corrections(self, role: Role, request: DealRequest) -> RingVector:
        """Return the correction words of a request, once to each server.

        ``[request.correction_words] int64`` for server B: for each binary triple (a &
        b) ⊕ c_A. Empty for server A, whose part is all expanded from its key.

        Raises PeerViolation: the role isn't a server's, or this batch was asked for
        with another shape; PeerUnavailable: it was dealt to this server before, or
        a newer attempt has begun; TaskMismatch: the request is of another task.
        """
        self.key_for(role)
        with self._lock:
            self._begin(request)
            first, served = self._dealt.setdefault(request.batch, (request, set()))
            dealt_before = role in served
            served.add(role)
        if dealt_before:
            raise PeerUnavailable(
                f"attempt {request.attempt} is dealt for once; take a new one"
            )
        if first != request:
            batch = f"attempt {request.attempt}, batch {request.batch}"
            raise PeerViolation(
                f"{batch} was asked for before with another shape or other nonces"
            )
        if role is Role.SERVER_A:
            return np.empty(0, np.int64)
        corrections = [
            self._correction(request, number, size)
            for number, size in enumerate(request.sizes)
        ]
        return np.concatenate(corrections)

    def ask(self, role: Role, request: SquareRequest, deliver: Deliver) -> Work | None:
        """Take one server's half of a submission's mask.

        Once both halves are here, the squaring is returned for the caller to run, else
        None. ``deliver`` is given the row key then, and later this server's share of
        r = a·a; or PeerViolation where the halves don't fit together, PeerUnavailable
        where the context was dealt before.

        Raises PeerViolation: the role isn't a server's; PeerUnavailable: a newer
        attempt has begun; TaskMismatch: the request is of another task.
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
                return partial(_deal_square, first, half, self._dimension)
        return None

    def forget(self, deliver: Deliver) -> None:
        """Drop the halves, with their seeds, that wait for the other server's.

        Called at the end of the conversation that ``deliver`` stands for.
        """
        with self._lock:
            for ctx, half in list(self._waiting.items()):
                if half.deliver == deliver:
                    del self._waiting[ctx]

    def _begin(self, request: DealRequest | SquareRequest) -> None:
        """Check a request's task and attempt; a newer attempt ends the one before.

        Raises TaskMismatch: another task; PeerUnavailable: a newer attempt has begun.
        """
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
        """Answer a half, and the one that waits for it, that nothing is dealt.

        The dealer can't know which server broke the protocol: neither waits in vain.
        """
        ctx = half.request.context
        refusal = PeerViolation(f"nothing is dealt for {ctx.hex()}: {why}")
        self._closed[ctx] = refusal
        for deliver in {half.deliver, self._waiting.pop(ctx, half).deliver}:
            deliver(ctx, refusal)

    def _correction(self, request: DealRequest, number: int, size: int) -> RingVector:
        """Return (a & b) ⊕ c_A of a request's binary triple, ``[size] int64``."""
        stream_a = request.stream(self._keys[Role.SERVER_A], number)
        stream_b = request.stream(self._keys[Role.SERVER_B], number)
        a = stream_a.words(size) ^ stream_b.words(size)
        b = stream_a.words(size) ^ stream_b.words(size)
        c_a = stream_a.words(size)
        return (a & b) ^ c_a


def _deal_square(first: _Half, second: _Half, dimension: int) -> None:
    """Deliver shares of r = a·a mod 2^64 to the servers of both halves."""
    ctx = first.request.context
    first_mask = first.mask()
    second_mask = second.mask()
    # Two buffers for all pieces: the system would have to fetch a MiB anew for each
    # submission.
    first_words = np.empty(min(CACHED_WORDS, dimension), np.int64)
    second_words = np.empty_like(first_words)
    r = 0
    for start in range(0, dimension, CACHED_WORDS):
        size = min(CACHED_WORDS, dimension - start)
        a = first_mask.words_into(first_words[:size])
        a += second_mask.words_into(second_words[:size])
        r += dot(a, a)
    # Which server gets the drawn share, and which the rest, doesn't matter: either
    # alone is uniform.
    drawn = secrets.randbits(64)
    first.deliver(ctx, signed(drawn))
    second.deliver(ctx, signed(r - drawn))
