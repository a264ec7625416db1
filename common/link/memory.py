"""A link inside one process, for the readable protocol and for tests."""

import queue

from precad.common.errors import PeerUnavailable
from precad.common.link.frame import Frame


class MemoryTransport:
    """One end of a pair of queues."""

    def __init__(
        self, outgoing: "queue.SimpleQueue[Frame]", incoming: "queue.SimpleQueue[Frame]"
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    def put(self, frame: Frame) -> None:
        """Send one frame."""
        self._outgoing.put(frame)

    def get(self, timeout_s: float) -> Frame:
        """The next frame. Raises PeerUnavailable after ``timeout_s``."""
        try:
            return self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerUnavailable(f"the other server sent nothing for {timeout_s:g} s") from None

    def require_alive(self) -> None:
        """The other end is in this process."""


def memory_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """Two connected ends."""
    forth: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    back: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    return MemoryTransport(forth, back), MemoryTransport(back, forth)
