"""What a server asks of the dealer, wherever that is, and what it hears from it.

Which binary triples a batch of comparisons demands is known before the comparisons. So
the dealer can deal before a round needs it, and a server's provider of triples can
refuse any demand that isn't the expected one. This module doesn't import CrypTen, as
the dealer's process loads it too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, TypeVar

import numpy as np

from precad.common import (
    ATTEMPTS,
    CLOCK,
    KEY_BYTES,
    Clock,
    Digest,
    Integers,
    Keystream,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    RingVector,
    Role,
    Secret,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)

Shape = tuple[int, ...]
"""Of an array of words."""


def program(clients: int, comparisons: int) -> tuple[Shape, ...]:
    """Return the shapes of all ANDs of a batch of comparisons, in their order.

    Both operands and the result of an AND have the same shape. First come the ANDs with
    which CrypTen 0.4.1 takes all sign bits: one AND of the words, then one for each
    level of the carry tree (log2 of 64), in which the pair (set, propagate) is stacked.
    Then come those that make one bit of each client's ``comparisons // clients`` signs,
    in a tree: at each level the first half of a client's values meets the second half,
    and an odd value waits for the next level.
    """
    shapes = [(comparisons,), *[(2, comparisons)] * 6]
    width = comparisons // clients
    while width > 1:
        shapes.append((clients, width // 2))
        width -= width // 2
    return tuple(shapes)


NONCES_BYTES = 64
"""Of both servers' nonces together."""
_LIMITS = {
    "attempt": (0, ATTEMPTS - 1),
    "batch": (0, 2**31 - 1),
    "clients": (1, 100_000),
    "comparisons": (1, 2**28),
}
"""By field of a ``DealRequest``: its least and its largest value."""


@frozen_kw_only_dataclass
class DealRequest:
    """What a server asks for: the binary triples of one batch of an attempt.

    Each client has one conjunction, of as many of the comparisons' sign bits as any
    other client. The nonces are those of server A and server B for their link: where
    both databases were put back, the servers have other nonces, so no triple comes
    twice. Raises Misconfiguration: a field is out of range.
    """

    task: Digest
    attempt: int
    batch: int
    clients: int
    comparisons: int
    nonces: bytes

    def __post_init__(self) -> None:
        if len(self.nonces) != NONCES_BYTES:
            raise Misconfiguration(
                "nonces", len(self.nonces), f"must have {NONCES_BYTES} bytes"
            )
        for name, (smallest, largest) in _LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not smallest <= value <= largest:
                raise Misconfiguration(
                    name, value, f"must be an integer in [{smallest}, {largest}]"
                )
        if self.comparisons % self.clients:
            raise Misconfiguration(
                "comparisons", self.comparisons, "as many for each client"
            )

    @property
    def sizes(self) -> list[int]:
        """Return how many words each part of each binary triple has, in order."""
        return [prod(shape) for shape in program(self.clients, self.comparisons)]

    @property
    def correction_words(self) -> int:
        """Return how many words the dealer sends to server B: one for each AND."""
        return sum(self.sizes)

    def stream(self, key: Secret, number: int) -> Keystream:
        """Return the keystream of one server's words of triple ``number``.

        First come those of a, then those of b, then, for server A, those of c. Dealer
        and server expand it alike. Server B's c isn't expanded but sent, as a
        correction: c_B = (a & b) ⊕ c_A. ``key`` is the server's own key for this
        dealer.
        """
        return Keystream(
            key,
            "deal/binary-triple",
            self.task.value,
            self.attempt,
            self.batch,
            self.clients,
            self.comparisons,
            self.nonces,
            number,
        )


@frozen_kw_only_dataclass
class SquareRequest:
    """One server's half of a request to square the mask of one submission.

    The mask is the sum of both servers' masks, which are bound to ctx, c_A and c_B.
    This server's seed and salt open its own commitment. Raises Misconfiguration: ctx or
    a commitment is no digest, or the attempt is out of range.
    """

    task: Digest
    attempt: int
    context: bytes
    commitment_a: bytes
    commitment_b: bytes
    seed: Secret = field(compare=False)
    salt: Secret = field(compare=False)

    @property
    def names(self) -> tuple[Digest, Digest, Digest]:
        """Return ctx, c_A and c_B. Raises Misconfiguration: one is no digest."""
        return (
            Digest(self.context),
            Digest(self.commitment_a),
            Digest(self.commitment_b),
        )

    def __post_init__(self) -> None:
        _ = self.names  # raises if one of them is no digest
        if self.attempt not in range(ATTEMPTS):
            raise Misconfiguration(
                "attempt", self.attempt, f"must be in [0, {ATTEMPTS})"
            )


class SpentTriples(Protocol):
    """Remembers which of a task's dealt randomness was used.

    None may be used twice: where x − a and x' − a are opened, they give x − x'.
    """

    def spend(self, attempt: int, batch: int) -> None:
        """Mark a batch's randomness as used, before anything masked with it is opened.

        The mark is durable. Raises PeerViolation: this attempt's batch was used before,
        whatever its shape.
        """


@frozen_dataclass
class BinaryTriple:
    """One server's shares, by xor, of random a and b and of c = a & b.

    Arrays of one shape, ``int64``.
    """

    a: Integers = field(repr=False)
    b: Integers = field(repr=False)
    c: Integers = field(repr=False)


class DealtRandomness:
    """The binary triples of one batch, expanded as they are needed, and once.

    ``key`` is this server's own; ``corrections`` are what the dealer sent for the
    request: ``[request.correction_words] int64`` to server B, empty to server A. Raises
    PeerViolation: the dealer sent another number of words.
    """

    def __init__(
        self,
        role: Role,
        key: Secret,
        request: DealRequest,
        corrections: RingVector,
    ) -> None:
        expected = request.correction_words if role is Role.SERVER_B else 0
        if corrections.dtype != np.int64 or corrections.shape != (expected,):
            sent = f"the dealer sent correction words of shape {corrections.shape}"
            raise PeerViolation(f"{sent} to {role.value}, expected ({expected},)")
        self.role = role
        self.request = request
        self._key = key
        self._corrections = corrections
        self._binary_used = False

    def binary_triples(self) -> Iterator[BinaryTriple]:
        """Yield the batch's binary triples in the order of ``program``.

        Raises RuntimeError: they were asked for before.
        """
        if self._binary_used:
            raise RuntimeError("the binary triples of this batch are used already")
        self._binary_used = True
        request = self.request
        corrected = 0
        shapes = program(request.clients, request.comparisons)
        for number, (shape, size) in enumerate(zip(shapes, request.sizes, strict=True)):
            stream = request.stream(self._key, number)
            a = stream.words(size)
            b = stream.words(size)
            if self.role is Role.SERVER_A:
                c = stream.words(size)
            else:
                c = self._corrections[corrected : corrected + size].copy()
                corrected += size
            yield BinaryTriple(a.reshape(shape), b.reshape(shape), c.reshape(shape))


_Dealt = TypeVar("_Dealt", Secret, int)
"""What the dealer gives: a row key, or a share of r."""
Answer = Secret | int | PrecadError
"""What the dealer answers about a context: first the row key, then this server's share
of r; or the error that says why there is none."""


@dataclass(eq=False, repr=False, kw_only=True)
class DealerConversation:
    """A server's conversation with the dealer about one attempt's submissions.

    Threads may share it: whoever waits for an answer is woken when it comes. ``send``
    sends a request and doesn't wait. An answer is waited for ``timeout_s`` seconds.
    """

    attempt: int
    send: Callable[[SquareRequest], None]
    timeout_s: float
    clock: Clock = CLOCK

    def __post_init__(self) -> None:
        self._changed = self.clock.condition()
        self._asked: set[bytes] = set()
        self._answers: dict[tuple[type, bytes], Answer] = {}
        """By the answer's type, ``PrecadError`` for any error, and the context."""
        self._ended: PrecadError | None = None

    def ask(self, request: SquareRequest) -> None:
        """Send this server's half of a request to the dealer; don't wait.

        Raises ValueError: the request is of another attempt.
        """
        if request.attempt != self.attempt:
            raise ValueError(
                f"a request of attempt {request.attempt} in {self.attempt}"
            )
        with self._changed:
            self._asked.add(request.context)
        self.send(request)

    def row_key(self, context: bytes) -> Secret:
        """Wait for the row key, and return it: 32 bytes, the same for both servers.

        The dealer gives it once both have asked. Raises PeerUnavailable: the dealer or
        the other server's half wasn't there in time, or the context was dealt before;
        PeerViolation: the servers' halves don't fit together, or the dealer broke the
        protocol; ValueError: this server didn't ask.
        """
        return self._wait(Secret, context)

    def share(self, context: bytes) -> int:
        """Wait for this server's share of r = a·a, and return it: a signed int64.

        Here a is the mask. Raises what ``row_key`` raises.
        """
        return self._wait(int, context)

    def put(self, context: bytes, answer: Answer) -> None:
        """Take one answer of the dealer; answers may come in any order.

        Raises PeerViolation: nobody asked, the same was answered before, or a row key
        has a wrong length.
        """
        kind = PrecadError if isinstance(answer, PrecadError) else type(answer)
        if isinstance(answer, Secret) and len(answer) != KEY_BYTES:
            raise PeerViolation(f"the dealer sent a row key of {len(answer)} bytes")
        with self._changed:
            if context not in self._asked:
                raise PeerViolation("the dealer answers what isn't asked")
            if (kind, context) in self._answers:
                raise PeerViolation("the dealer answers twice")
            self._answers[kind, context] = answer
            self._changed.notify_all()

    def end(self, error: PrecadError) -> None:
        """End it with an error: nothing more comes, what has come can still be read.

        The first error counts.
        """
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()

    def _wait(self, kind: type[_Dealt], context: bytes) -> _Dealt:
        """Wait for an answer of a type about a context; raise the error if one comes.

        For ``row_key`` and ``share``, which say what is raised.
        """
        deadline = self.clock.now() + self.timeout_s
        with self._changed:
            if context not in self._asked:
                raise ValueError(f"nothing was asked about {context.hex()}")
            while True:
                answer = self._answers.get((kind, context))
                if isinstance(answer, kind):
                    return answer
                error = self._answers.get((PrecadError, context), self._ended)
                if isinstance(error, PrecadError):
                    raise error
                left = deadline - self.clock.now()
                if left <= 0:
                    raise PeerUnavailable(
                        f"the dealer dealt nothing for {context.hex()} in"
                        f" {self.timeout_s:g} s; check that the other server has"
                        " asked too"
                    )
                self._changed.wait(left)


class Dealing(Protocol):
    """The dealer as one server reaches it: it deals that server's part and no other."""

    @property
    def epoch(self) -> bytes:
        """Which start of the dealer this server joined; its keys last as long."""

    def deal(self, request: DealRequest) -> RingVector:
        """Return this server's correction words, ``[n] int64``; empty for server A.

        Raises PeerUnavailable: the dealer isn't there, or dealt the batch before;
        PeerViolation: it broke the protocol.
        """

    def squares(self, attempt: int) -> AbstractContextManager[DealerConversation]:
        """Return a conversation about one attempt's submissions, open for its block."""


class NoDealer:
    """The dealer of a task that has none: to ask it for anything is a bug."""

    epoch = b""
    """No start of a dealer."""
    bytes_received = 0
    newest_attempt = -1
    """No attempt was dealt for."""

    def join(self) -> Secret:
        """Return an empty key, which stands for none."""
        return Secret(b"")

    def deal(self, request: DealRequest) -> RingVector:
        """Raise AssertionError."""
        raise AssertionError(f"{request.task} has no dealer")

    def squares(self, attempt: int) -> AbstractContextManager[DealerConversation]:
        """Raise AssertionError."""
        raise AssertionError(f"attempt {attempt} has no dealer")
