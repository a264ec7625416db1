"""A server's side of the dealer: what it asks for, and what it hears, wherever the dealer is."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from precad.common.clock import CLOCK, Clock
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.keystream import KEY_BYTES
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.norm_check.dealt_triples import DealRequest, SquareRequest

Answer = Secret | int | PrecadError
"""The row key, then this server's share of r; or why there is none."""


class DealerConversation:
    """A server's conversation with the dealer about one attempt's submissions.

    Safe between threads: whoever waits for an answer is woken.

    Args:
        send: tells the dealer; doesn't wait.
    """

    def __init__(
        self,
        attempt: int,
        send: Callable[[SquareRequest], None],
        timeout_s: float,
        clock: Clock = CLOCK,
    ) -> None:
        self._attempt = attempt
        self._send = send
        self._timeout_s = timeout_s
        self._clock = clock
        self._changed = clock.condition()
        self._asked: set[bytes] = set()
        self._found: dict[tuple[type, bytes], Any] = {}
        """By kind and context."""
        self._ended: PrecadError | None = None

    def ask(self, request: SquareRequest) -> None:
        """Tell the dealer; doesn't wait. Raises ValueError: it is of another attempt."""
        if request.attempt != self._attempt:
            raise ValueError(f"a request of attempt {request.attempt} in {self._attempt}")
        with self._changed:
            self._asked.add(request.context)
        self._send(request)

    def row_key(self, context: bytes) -> Secret:
        """32 bytes, the same for both servers, once both have asked; waits for it.

        Raises:
            PeerUnavailable: the dealer or the other server's half wasn't there in time, or the
                context was dealt before.
            PeerViolation: the servers' halves don't fit together, or the dealer broke the protocol.
        """
        key: Secret = self._wait(Secret, context)
        return key

    def share(self, context: bytes) -> int:
        """This server's share of r = a·a, a signed int64; waits for it. Raises as ``row_key``."""
        share: int = self._wait(int, context)
        return share

    def put(self, context: bytes, answer: Answer) -> None:
        """One answer of the dealer's, in whatever order they come.

        Raises PeerViolation: nobody asked, it was answered before, or it isn't a key.
        """
        kind = PrecadError if isinstance(answer, PrecadError) else type(answer)
        if isinstance(answer, Secret) and len(answer) != KEY_BYTES:
            raise PeerViolation(f"the dealer sent a row key of {len(answer)} bytes")
        with self._changed:
            if context not in self._asked:
                raise PeerViolation("the dealer answers what isn't asked")
            if (kind, context) in self._found:
                raise PeerViolation("the dealer answers twice")
            self._found[kind, context] = answer
            self._changed.notify_all()

    def end(self, error: PrecadError) -> None:
        """Nothing more comes; what has come can still be read."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()

    def _wait(self, kind: type, context: bytes) -> Any:
        deadline = self._clock.now() + self._timeout_s
        with self._changed:
            if context not in self._asked:
                raise ValueError(f"nothing was asked about {context.hex()}")
            while (found := self._found.get((kind, context))) is None:
                error = self._found.get((PrecadError, context), self._ended)
                if error is not None:
                    raise error
                left = deadline - self._clock.now()
                if left <= 0:
                    raise PeerUnavailable(
                        f"the dealer dealt nothing for {context.hex()} in {self._timeout_s:g} s; "
                        "check that the other server has asked too"
                    )
                self._changed.wait(left)
            return found


class Dealing(Protocol):
    """Deals this server's part, and no other's."""

    @property
    def epoch(self) -> bytes:
        """Which start of the dealer this server joined; its keys last as long."""

    def deal(self, request: DealRequest) -> RingVector:
        """This server's correction words. Raises PeerUnavailable, PeerViolation."""

    def squares(self, attempt: int) -> AbstractContextManager[DealerConversation]:
        """A conversation for one attempt."""


class NoDealer:
    """The dealer of a task that has none: nobody asks it for anything."""

    epoch = b""
    bytes_received = 0
    newest_attempt = -1

    def join(self) -> Secret:
        """No key."""
        return Secret(b"")

    def deal(self, request: DealRequest) -> RingVector:
        """Nothing is dealt: a caller's mistake."""
        raise AssertionError(f"{request.task} has no dealer")

    def squares(self, attempt: int) -> AbstractContextManager[DealerConversation]:
        """Nothing is dealt: a caller's mistake."""
        raise AssertionError(f"attempt {attempt} has no dealer")
