"""Both servers of an attempt in two threads, over a link in memory."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from tests.rig.aggregators import MODEL, PATIENCE_S, SERVERS
from tests.rig.memory_link import memory_pair

from precad.aggregator.attempt_states import Opened
from precad.aggregator.peer_link import Frame, FrameTransport, PeerLink
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Digest, Role

HUNG_UP = cast("Frame", None)  # What comes last from a server that has stopped


class Breaking:
    """A transport that breaks before the ``left``-th frame that it would send."""

    def __init__(
        self,
        end: FrameTransport,
        left: int | None = None,
        seen: list[Frame] | None = None,
    ) -> None:
        self._end, self._left, self._seen = end, left, seen

    def put(self, frame: Frame) -> None:
        if self._left is not None:
            if self._left == 0:
                raise PeerUnavailable("cut")
            self._left -= 1
        if self._seen is not None:
            self._seen.append(frame)
        self._end.put(frame)

    def get(self, timeout_s: float) -> Frame:
        frame = self._end.get(timeout_s)
        if frame is HUNG_UP:
            raise PeerUnavailable("the other server hung up")
        return frame

    def hang_up(self) -> None:
        self._end.put(HUNG_UP)

    def require_alive(self) -> None:
        self._end.require_alive()


T = TypeVar("T")
Play = Callable[[Role, PeerLink], T]
TASK = Digest.of(b"test")


def play_both(
    play: Play[T], *, task: Digest = TASK, timeout_s: float = PATIENCE_S
) -> tuple[T, T]:
    """What ``play`` returns at A and at B. The more telling of two errors is raised."""

    def at(role: Role, end: Breaking) -> T:
        link = PeerLink(
            transport=end, task=task, max_message_bytes=1 << 26, timeout_s=timeout_s
        )
        try:
            return play(role, link)
        finally:
            end.hang_up()

    ends = zip(SERVERS, map(Breaking, memory_pair()), strict=True)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(at, role, end) for role, end in ends]
    errors = filter(None, (each.exception() for each in running))
    for error in sorted(errors, key=lambda each: isinstance(each, PeerUnavailable)):
        raise error
    return running[0].result(), running[1].result()


def opened(
    attempt: int,
    held: Collection[ClientId],
    counted: Collection[ClientId] | None = None,
) -> Opened:
    clients = tuple(held)
    return Opened(
        attempt=attempt,
        version=0,
        cohort=clients,
        model=MODEL,
        counted=frozenset(clients if counted is None else counted),
    )


def at_both(*calls: Callable[[], object]) -> list[Any]:
    """What each returns in a thread of its own, or the error that it raises."""
    with ThreadPoolExecutor(len(calls)) as threads:
        running = [threads.submit(call) for call in calls]
    return [each.exception() or each.result() for each in running]
