"""The servers' link: messages in order, over a transport that can be replaced.

A message travels as frames. Both ends know which step comes next: a frame of another
step, attempt or place in the order is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from precad.common import (
    MESSAGE_BYTES,
    Digest,
    PeerViolation,
    TaskMismatch,
    frozen_kw_only_dataclass,
)

SETUP_ATTEMPT = -1
"""The attempt number of frames that come before the first attempt."""
PIECES_AHEAD = 8
"""Pieces of an exchanged message that are sent before the other's first one is read: as
many as are on their way at 100 Mbit/s in a sixth of a second."""


@frozen_kw_only_dataclass
class Frame:
    """A piece of one message, as it travels."""

    task: Digest
    attempt: int
    step: str
    """The protocol step that the message belongs to."""
    sequence: int
    """How many frames the sender sent on this link before."""
    payload: bytes | memoryview
    last: bool
    """Whether this is the last piece of its message."""

    def __repr__(self) -> str:
        # The payload may be a share's opening: never in a log.
        return (
            f"Frame(attempt={self.attempt}, step={self.step!r},"
            f" sequence={self.sequence}, {len(self.payload)} bytes, last={self.last})"
        )


class FrameTransport(Protocol):
    """What moves frames to the other server and back, in order, or fails."""

    def put(self, frame: Frame) -> None:
        """Send one frame. Raises PeerUnavailable: the other server is gone."""

    def get(self, timeout_s: float) -> Frame:
        """Return the next frame.

        Raises PeerUnavailable: none came in time, or the other server is gone.
        """

    def require_alive(self) -> None:
        """Check the other server during a long wait for somebody else.

        Raises PeerUnavailable: it is known to be gone.
        """


@dataclass(eq=False, repr=False, kw_only=True)
class PeerLink:
    """One server's end of the link. Not thread-safe: one thread plays the protocol."""

    transport: FrameTransport
    """Moves the frames."""
    task: Digest
    """Frames of another task are refused."""
    max_message_bytes: int
    """The longest message that ``receive`` takes."""
    timeout_s: float
    """How long a frame is waited for, unless ``receive`` says otherwise."""
    bytes_sent: int = 0
    _attempt: int = SETUP_ATTEMPT
    _sent: int = 0
    _received: int = 0

    def begin_attempt(self, attempt: int) -> None:
        """Make all frames from now on belong to ``attempt``."""
        self._attempt = attempt

    def send(self, step: str, payload: bytes | memoryview) -> None:
        """Send one message of protocol step ``step``. Raises PeerUnavailable."""
        for piece, last in _pieces_of(payload):
            self.send_piece(step, piece, last=last)

    def send_piece(self, step: str, piece: bytes | memoryview, *, last: bool) -> None:
        """Send the next piece of a message that is never whole in memory.

        Server B takes ``MESSAGE_BYTES`` a piece at most. Raises PeerUnavailable.
        """
        frame = Frame(
            task=self.task,
            attempt=self._attempt,
            step=step,
            sequence=self._sent,
            payload=bytes(piece),
            last=last,
        )
        self._sent += 1
        self.bytes_sent += len(piece)
        self.transport.put(frame)

    def receive(self, step: str, *, timeout_s: float | None = None) -> bytes:
        """Return the other server's next message, which must be of ``step``.

        Raises PeerUnavailable: nothing came in time; TaskMismatch: it is of another
        task; PeerViolation: it is out of order, of another step or attempt, or too
        long.
        """
        return b"".join(self._pieces(step, timeout_s))

    def _pieces(
        self, step: str, timeout_s: float | None = None
    ) -> Iterator[bytes | memoryview]:
        """Yield the pieces of the next message; raises as ``receive``."""
        length = 0
        last = False
        while not last:
            piece, last = self.receive_piece(step, timeout_s=timeout_s)
            length += len(piece)
            if length > self.max_message_bytes:
                raise PeerViolation(
                    f"message of step {step!r} has more than"
                    f" {self.max_message_bytes} bytes"
                )
            yield piece

    def receive_piece(
        self, step: str, *, timeout_s: float | None = None
    ) -> tuple[bytes | memoryview, bool]:
        """Return the next piece of a message, and whether it is the last one.

        The caller counts the message's bytes. Raises as ``receive``.
        """
        frame = self.transport.get(self.timeout_s if timeout_s is None else timeout_s)
        if frame.task != self.task:
            raise TaskMismatch(str(self.task), str(frame.task))
        expected = (self._attempt, step, self._received)
        received = (frame.attempt, frame.step, frame.sequence)
        if received != expected:
            raise PeerViolation(
                "the servers are out of step: expected attempt, step, sequence"
                f" {expected}, got {received}"
            )
        self._received += 1
        return frame.payload, frame.last

    def exchange(self, step: str, payload: bytes | memoryview) -> bytes:
        """Send a message; return the other server's message of the same step.

        What comes is read while a long message goes out: else it would fill its room,
        and the line from the other server would be idle.
        """
        if len(payload) <= PIECES_AHEAD * MESSAGE_BYTES:
            self.send(step, payload)
            return self.receive(step)
        incoming = self._pieces(step)
        received: list[bytes | memoryview] = []
        for number, (piece, last) in enumerate(_pieces_of(payload)):
            if number >= PIECES_AHEAD:
                received += islice(incoming, 1)
            self.send_piece(step, piece, last=last)
        return b"".join([*received, *incoming])

    def require_alive(self) -> None:
        """Check the other server. Raises PeerUnavailable: it is known to be gone."""
        self.transport.require_alive()


def _pieces_of(payload: bytes | memoryview) -> Iterator[tuple[memoryview, bool]]:
    """Yield a message's pieces, each with whether it is the last one."""
    view = memoryview(payload)
    # An empty message has one piece, which is empty.
    for start in range(0, len(view), MESSAGE_BYTES) or range(1):
        end = start + MESSAGE_BYTES
        yield view[start:end], end >= len(view)
