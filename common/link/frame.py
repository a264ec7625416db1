"""What crosses between the servers, and the small object that carries it."""

from dataclasses import dataclass
from typing import Protocol

from precad.common.identifiers import Digest

SETUP_ATTEMPT = -1
"""The attempt of frames before the first one."""


@dataclass(frozen=True, slots=True)
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
            f"Frame(attempt={self.attempt}, step={self.step!r}, sequence={self.sequence}, "
            f"{len(self.payload)} bytes, last={self.last})"
        )


class FrameTransport(Protocol):
    """Moves frames to the other server, in order, or fails."""

    def put(self, frame: Frame) -> None:
        """Send one frame. Raises PeerUnavailable."""

    def get(self, timeout_s: float) -> Frame:
        """The next frame. Raises PeerUnavailable when none came in time or the peer is gone."""

    def require_alive(self) -> None:
        """Raise PeerUnavailable when the peer is known to be gone; for long waits on others."""
