"""The servers' link: messages in order over a replaceable transport; a desync is an error."""

import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from precad.common.errors import PeerUnavailable, PeerViolation, TaskMismatch
from precad.common.identifiers import Digest
from precad.common.submission import MESSAGE_BYTES

SETUP_ATTEMPT = -1
"""The attempt of frames before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A piece of one message. ``last`` marks the message's final piece."""

    task: Digest
    attempt: int
    step: str
    sequence: int
    payload: bytes | memoryview
    last: bool

    def __repr__(self) -> str:
        # The payload may be a share's opening: never in a log.
        return (
            f"Frame(attempt={self.attempt}, step={self.step!r},"
            f" sequence={self.sequence}, {len(self.payload)} bytes, last={self.last})"
        )


class FrameTransport(Protocol):
    """Moves frames to the other server, in order, or fails."""

    def put(self, frame: Frame) -> None:
        """Send one frame. Raises PeerUnavailable."""

    def get(self, timeout_s: float) -> Frame:
        """The next frame.

        Raises PeerUnavailable when none came in time or the peer is gone.
        """

    def require_alive(self) -> None:
        """Raise PeerUnavailable when the peer is known to be gone; for long waits on others."""


@dataclass(eq=False, repr=False)
class MemoryTransport:
    """One end of a pair of queues; the other end is in this process."""

    _outgoing: "queue.SimpleQueue[Frame]"
    _incoming: "queue.SimpleQueue[Frame]"

    def put(self, frame: Frame) -> None:
        """Send one frame."""
        self._outgoing.put(frame)

    def get(self, timeout_s: float) -> Frame:
        """The next frame. Raises PeerUnavailable after ``timeout_s``."""
        try:
            return self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerUnavailable(
                f"the other server sent nothing for {timeout_s:g} s"
            ) from None

    def require_alive(self) -> None:
        """It is."""


def memory_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """Two connected ends."""
    forth: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    back: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    return MemoryTransport(forth, back), MemoryTransport(back, forth)


class PeerLink:
    """One server's end of the link. Not thread-safe: one thread plays the protocol."""

    def __init__(
        self,
        transport: FrameTransport,
        task: Digest,
        *,
        max_message_bytes: int,
        timeout_s: float,
    ) -> None:
        self._transport = transport
        self._task = task
        self._attempt = SETUP_ATTEMPT
        self._sent = 0
        self._received = 0
        self._max_message_bytes = max_message_bytes
        self._timeout_s = timeout_s
        self.bytes_sent = 0
        self.bytes_received = 0

    def begin_attempt(self, attempt: int) -> None:
        """Frames from here on belong to ``attempt``."""
        self._attempt = attempt

    def send(self, step: str, payload: bytes | memoryview) -> None:
        """Send one message of protocol step ``step``. Raises PeerUnavailable."""
        view = memoryview(payload)
        for start in range(0, len(view), MESSAGE_BYTES) or range(1):
            last = start + MESSAGE_BYTES >= len(view)
            self.send_piece(step, view[start : start + MESSAGE_BYTES], last=last)

    def send_piece(self, step: str, piece: bytes | memoryview, *, last: bool) -> None:
        """Send the next piece, to B ``MESSAGE_BYTES`` at most, of a message never whole here."""
        frame = Frame(
            task=self._task,
            attempt=self._attempt,
            step=step,
            sequence=self._sent,
            payload=bytes(piece),
            last=last,
        )
        self._sent += 1
        self.bytes_sent += len(piece)
        self._transport.put(frame)

    def receive(self, step: str, *, timeout_s: float | None = None) -> bytes:
        """The other server's next message, which must be of ``step``.

        Raises PeerUnavailable: nothing came in time; TaskMismatch; PeerViolation: out
        of order, of another step or attempt, or too long.
        """
        return b"".join(self._pieces(step, self._max_message_bytes, timeout_s))

    def receive_into(self, step: str, out: memoryview) -> None:
        """As ``receive``, for a message of as many bytes as ``out``."""
        filled = 0
        for piece in self._pieces(step, len(out)):
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
        if filled < len(out):
            why = f"message of step {step!r} has {filled} bytes instead of {len(out)}"
            raise PeerViolation(why)

    def _pieces(
        self, step: str, most: int, timeout_s: float | None = None
    ) -> Iterator[bytes | memoryview]:
        length = 0
        last = False
        while not last:
            piece, last = self.receive_piece(step, timeout_s=timeout_s)
            length += len(piece)
            if length > most:
                raise PeerViolation(
                    f"message of step {step!r} has more than {most} bytes"
                )
            yield piece

    def receive_piece(
        self, step: str, *, timeout_s: float | None = None
    ) -> tuple[bytes | memoryview, bool]:
        """The next piece of a message, whose bytes the caller counts, and whether it's the last."""
        frame = self._transport.get(self._timeout_s if timeout_s is None else timeout_s)
        if frame.task != self._task:
            raise TaskMismatch(str(self._task), str(frame.task))
        expected = (self._attempt, step, self._received)
        if (frame.attempt, frame.step, frame.sequence) != expected:
            raise PeerViolation(
                "the servers are out of step: expected attempt, step, sequence"
                f" {expected}, got {(frame.attempt, frame.step, frame.sequence)}"
            )
        self._received += 1
        self.bytes_received += len(frame.payload)
        return frame.payload, frame.last

    def exchange(self, step: str, payload: bytes | memoryview) -> bytes:
        """Send, then receive the other server's message of the same step."""
        self.send(step, payload)
        return self.receive(step)

    def require_alive(self) -> None:
        """Raise PeerUnavailable when the other server is known to be gone."""
        self._transport.require_alive()
