"""The servers' link within one process: two ends of a pair of queues."""

import queue
from dataclasses import dataclass

from precad.aggregator.peer_link import Frame
from precad.common.errors import PeerUnavailable


@dataclass(eq=False, repr=False)
class MemoryTransport:
    """A ``FrameTransport`` within one process: one end of a pair of queues."""

    _outgoing: "queue.SimpleQueue[Frame]"
    _incoming: "queue.SimpleQueue[Frame]"

    def put(self, frame: Frame) -> None:
        """Send one frame; it never fails."""
        self._outgoing.put(frame)

    def get(self, timeout_s: float) -> Frame:
        """Return the next frame. Raises PeerUnavailable: none came in time."""
        try:
            return self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerUnavailable(
                f"the other server sent nothing for {timeout_s:g} s"
            ) from None

    def require_alive(self) -> None:
        """Do nothing: the other end is in this process."""


def memory_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """Return two connected ends, for two servers in one process."""
    forth: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    back: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    return MemoryTransport(forth, back), MemoryTransport(back, forth)
