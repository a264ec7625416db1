"""A server's workers: started, watched, and started again."""

import logging
import threading
from collections.abc import Callable

from precad.aggregator.workers.place import Place, Placed
from precad.aggregator.workers.start import WorkerStart
from precad.common.clock import RetryPolicy
from precad.common.errors import PrecadError

log = logging.getLogger("precad")

WAITS = RetryPolicy(0.5, 30.0)
"""Between starts of a worker that doesn't stay up."""


class Pool:
    """Keeps so many workers up until it is closed.

    Args:
        place: starts them.
        starts: what each is told.
        changed: hears how many are up.
        waits: between starts of a worker that ended.
    """

    def __init__(
        self,
        place: Place,
        starts: list[WorkerStart],
        changed: Callable[[int], None] = lambda _up: None,
        waits: RetryPolicy = WAITS,
    ) -> None:
        self.place = place
        self._starts = starts
        self._changed = changed
        self._waits = waits
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._placed: dict[int, Placed] = {}
        self._watchers = [
            threading.Thread(
                target=self._keep, args=(number,), name=f"worker-{number}", daemon=True
            )
            for number in range(len(starts))
        ]
        for watcher in self._watchers:
            watcher.start()

    def __len__(self) -> int:
        """How many there are to be."""
        return len(self._starts)

    def worker(self, number: int) -> Placed | None:
        """That worker, while it is up."""
        with self._lock:
            return self._placed.get(number)

    def close(self) -> None:
        """End them all."""
        self._closed.set()
        with self._lock:
            placed = list(self._placed.values())
        for each in placed:
            each.stop()
        for watcher in self._watchers:
            watcher.join(timeout=10)

    def _keep(self, number: int) -> None:
        wait_s = self._waits.first_s
        while not self._closed.is_set():
            try:
                placed = self.place.start(self._starts[number])
            except PrecadError as error:
                log.warning("worker %d didn't start: %s", number, error)
                self._closed.wait(wait_s)
                wait_s = min(2 * wait_s, self._waits.longest_s)
                continue
            wait_s = self._waits.first_s
            self._note(number, placed)
            if self._closed.is_set():
                placed.stop()
            placed.wait()
            self._note(number, None)
            if not self._closed.is_set():
                log.warning("worker %d ended; it is started again", number)
                self._closed.wait(wait_s)

    def _note(self, number: int, placed: Placed | None) -> None:
        with self._lock:
            if placed is None:
                self._placed.pop(number, None)
            else:
                self._placed[number] = placed
            up = len(self._placed)
        log.info("%d of %d workers are up", up, len(self))
        self._changed(up)
