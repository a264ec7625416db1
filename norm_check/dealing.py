"""A server's side of the dealer, wherever that is: what it asks for, and what it hears.

Which binary triples a batch of comparisons demands is known ahead of them, so that the
dealer can deal before a round needs it, and the provider can refuse any demand that
isn't the expected one. Kept free of CrypTen: the dealer reads it too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.common.clock import CLOCK, Clock
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
)
from precad.common.identifiers import ATTEMPTS, Digest, Role, Secret
from precad.common.ring import KEY_BYTES, Keystream, RingVector

Shape: TypeAlias = tuple[int, ...]


def program(clients: int, comparisons: int) -> tuple[Shape, ...]:
    """Shapes of all ANDs of a batch in order, of both operands and the result alike.

    First those that CrypTen 0.4.1 computes to take all sign bits: one AND of the words,
    then one a level of the carry tree (log2 of 64), in which the pair (set, propagate)
    is stacked. Then those that make one bit of each client's ``comparisons //
    clients``, in a tree: at each level the first half of a client's values meets the
    second, and an odd one waits.
    """
    shapes: list[Shape] = [(comparisons,), *[(2, comparisons)] * 6]
    width = comparisons // clients
    while width > 1:
        shapes.append((clients, width // 2))
        width -= width // 2
    return tuple(shapes)


NONCES_BYTES = 64
_LIMITS = {
    "attempt": (0, ATTEMPTS - 1),
    "batch": (0, 2**31 - 1),
    "clients": (1, 100_000),
    "comparisons": (1, 2**28),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DealRequest:
    """The binary triples of an attempt's batch.

    Raises Misconfiguration for what can't be.

    One conjunction for each client, of as many of the comparisons, which are sign bits,
    as for any other. The nonces are server A's and B's for their link: two restored
    databases have others.
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
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise Misconfiguration(
                    name, value, f"must be an integer in [{least}, {most}]"
                )
        if self.comparisons % self.clients:
            raise Misconfiguration(
                "comparisons", self.comparisons, "as many for each client"
            )

    @property
    def sizes(self) -> list[int]:
        """Words of each binary triple, in order."""
        return [prod(shape) for shape in program(self.clients, self.comparisons)]

    @property
    def correction_words(self) -> int:
        """Words that travel to server B: one a bit-wise AND of words."""
        return sum(self.sizes)

    def stream(self, key: Secret, number: int) -> Keystream:
        """One server's words of triple ``number``: of a, of b, then (server A) of c.

        Dealer and server expand it alike, but for B's c, which is corrected: (a & b) ⊕
        c_A.
        """
        shape = self.attempt, self.batch, self.clients, self.comparisons
        return Keystream(
            key,
            "deal/binary-triple",
            self.task.value,
            *shape,
            self.nonces,
            number,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareRequest:
    """One server's half of a mask that the dealer squares; Misconfiguration for bad names.

    Both masks are bound to ctx, c_A and c_B; this server's seed and salt open its
    commitment.
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
        """Ctx, c_A and c_B."""
        return (
            Digest(self.context),
            Digest(self.commitment_a),
            Digest(self.commitment_b),
        )

    def __post_init__(self) -> None:
        _ = self.names  # of which each must be a digest
        if self.attempt not in range(ATTEMPTS):
            raise Misconfiguration(
                "attempt", self.attempt, f"must be in [0, {ATTEMPTS})"
            )


class SpentTriples(Protocol):
    """Remembers which of a task's randomness was used: opened, x − a and x' − a give x − x'."""

    def spend(self, attempt: int, batch: int) -> None:
        """Mark as used, durably, before anything masked with it is opened.

        Raises PeerViolation: this attempt's batch was used before, whatever its shape.
        """


@dataclass(frozen=True, slots=True)
class BinaryTriple:
    """Shares by xor of random a, b and of c = a & b; arrays of one shape, int64."""

    a: NDArray[np.int64] = field(repr=False)
    b: NDArray[np.int64] = field(repr=False)
    c: NDArray[np.int64] = field(repr=False)


class DealtRandomness:
    """Expands, once and as needed, what the dealer gave this server for one batch.

    ``corrections`` are ``[request.correction_words] int64`` for B, empty for A.

    Raises PeerViolation: the dealer sent another number of them.
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
        """The batch's binary triples in the order of ``program``, once."""
        if self._binary_used:
            raise RuntimeError("the binary triples of this batch are used already")
        self._binary_used = True
        return self._binary_triples()

    def _binary_triples(self) -> Iterator[BinaryTriple]:
        request = self.request
        start = 0
        shapes = program(request.clients, request.comparisons)
        for number, (shape, size) in enumerate(zip(shapes, request.sizes, strict=True)):
            stream = request.stream(self._key, number)
            a = stream.words(size)
            b = stream.words(size)
            if self.role is Role.SERVER_A:
                c = stream.words(size)
            else:
                c = self._corrections[start : start + size].copy()
                start += size
            yield BinaryTriple(a.reshape(shape), b.reshape(shape), c.reshape(shape))


_Found = TypeVar("_Found", Secret, int)
Answer = Secret | int | PrecadError
"""The row key, then this server's share of r; or why there is none."""


@dataclass(eq=False, repr=False, kw_only=True)
class DealerConversation:
    """A server's conversation with the dealer about one attempt's submissions.

    Safe between threads: whoever waits for an answer is woken. ``send`` doesn't wait.
    """

    attempt: int
    send: Callable[[SquareRequest], None]
    timeout_s: float
    clock: Clock = CLOCK

    def __post_init__(self) -> None:
        self._changed = self.clock.condition()
        self._asked: set[bytes] = set()
        self._found: dict[tuple[type, bytes], Any] = {}
        """By kind and context."""
        self._ended: PrecadError | None = None

    def ask(self, request: SquareRequest) -> None:
        """Tell the dealer; doesn't wait.

        Raises ValueError: it is of another attempt.
        """
        if request.attempt != self.attempt:
            raise ValueError(
                f"a request of attempt {request.attempt} in {self.attempt}"
            )
        with self._changed:
            self._asked.add(request.context)
        self.send(request)

    def row_key(self, context: bytes) -> Secret:
        """32 bytes, the same for both servers, once both have asked; waits for it.

        Raises PeerUnavailable: the dealer or the other server's half wasn't there in
        time, or the context was dealt before; PeerViolation: the servers' halves don't
        fit together, or the dealer broke the protocol.
        """
        return self._wait(Secret, context)

    def share(self, context: bytes) -> int:
        """This server's share of r = a·a, a signed int64; waits for it.

        Raises as ``row_key``.
        """
        return self._wait(int, context)

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

    def _wait(self, kind: type[_Found], context: bytes) -> _Found:
        deadline = self.clock.now() + self.timeout_s
        with self._changed:
            if context not in self._asked:
                raise ValueError(f"nothing was asked about {context.hex()}")
            while (found := self._found.get((kind, context))) is None:
                error = self._found.get((PrecadError, context), self._ended)
                if error is not None:
                    raise error
                left = deadline - self.clock.now()
                if left <= 0:
                    raise PeerUnavailable(
                        f"the dealer dealt nothing for {context.hex()} in"
                        f" {self.timeout_s:g} s; check that the other server has"
                        " asked too"
                    )
                self._changed.wait(left)
            assert isinstance(found, kind)
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
    """The dealer of a task that has none: whoever asks it for anything is wrong."""

    epoch = b""
    bytes_received = 0
    newest_attempt = -1

    def join(self) -> Secret:
        """No key."""
        return Secret(b"")

    def deal(self, request: DealRequest) -> RingVector:
        """Fail."""
        raise AssertionError(f"{request.task} has no dealer")

    def squares(self, attempt: int) -> AbstractContextManager[DealerConversation]:
        """Fail."""
        raise AssertionError(f"attempt {attempt} has no dealer")
