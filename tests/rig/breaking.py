"""One end of a link in memory that breaks where a test wants it, and says when it has stopped."""

from typing import Any

from precad.common.errors import PeerUnavailable

HUNG_UP = None
"""What comes last from a server that has stopped."""


class Breaking:
    """A transport that breaks before the ``left``-th frame that it would send."""

    def __init__(self, end: Any, left: int | None = None, seen: list[Any] | None = None) -> None:
        self._end, self._left, self._seen = end, left, seen

    def put(self, frame: Any) -> None:
        if self._left is not None:
            if self._left == 0:
                raise PeerUnavailable("cut")
            self._left -= 1
        if self._seen is not None:
            self._seen.append(frame)
        self._end.put(frame)

    def get(self, timeout_s: float) -> Any:
        frame = self._end.get(timeout_s)
        if frame is HUNG_UP:
            raise PeerUnavailable("the other server hung up")
        return frame

    def hang_up(self) -> None:
        """Who stops waits for nobody, and nobody for it."""
        self._end.put(HUNG_UP)

    def require_alive(self) -> None:
        self._end.require_alive()
