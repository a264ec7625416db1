"""Where workers run, how each is started, and that as many as wanted stay up."""

import contextlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from precad.common.clock import RetryPolicy
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.process_settings import Address

log = logging.getLogger("precad")


class WorkerStart(BaseModel):
    """Where a worker finds what its server has on the disk, and whom it calls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["server-a", "server-b"]
    """Whose worker it is."""
    task: Path
    identity: Path
    """The server's own: on this machine, or the same folder on the worker's."""
    dealer: Address
    listen: Address


class RunningWorker(Protocol):
    """A worker that was started."""

    @property
    def address(self) -> str:
        """Where it listens; without a host on its server's own machine."""

    def wait(self) -> None:
        """Until it has ended, for whatever reason."""

    def stop(self) -> None:
        """End it."""


class WorkerHost(Protocol):
    """Starts workers."""

    @property
    def same_disk(self) -> bool:
        """Whether workers can open the server's files."""

    def start(self, worker: WorkerStart) -> RunningWorker:
        """A worker that listens. Raises PeerUnavailable: it didn't come up."""


class ThisMachine:
    """Workers are processes of the server's own, and end with it."""

    same_disk = True

    def start(self, worker: WorkerStart) -> "WorkerProcess":
        """As ``WorkerHost.start``."""
        return WorkerProcess(worker)


class WorkerProcess:
    """One worker's process. Raises PeerUnavailable: it didn't come up."""

    def __init__(self, worker: WorkerStart) -> None:
        # Nothing of what it is told stands on its command line or in its environment.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "precad.aggregator.workers.worker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, said = self._process.stdin, ""
        with self._process.stdout as output, contextlib.suppress(OSError):
            self._input.write(worker.model_dump_json() + "\n")
            self._input.flush()
            said = output.readline()
        if not said:
            self.stop()
            raise PeerUnavailable("a worker ended before it listened; its reason is in the log")
        self.port = int(json.loads(said)["port"])

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def address(self) -> str:
        """On this machine."""
        return f":{self.port}"

    def wait(self) -> None:
        """As ``RunningWorker.wait``."""
        self._process.wait()
        with contextlib.suppress(OSError):
            self._input.close()

    def stop(self) -> None:
        """As ``RunningWorker.stop``."""
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


WAITS = RetryPolicy(0.5, 30.0)
"""Between starts of a worker that doesn't stay up."""


class WorkerPool:
    """Keeps so many workers up until it is closed.

    Args:
        place: starts them.
        starts: what each is told.
        changed: hears how many are up.
        waits: between starts of a worker that ended.
    """

    def __init__(
        self,
        place: WorkerHost,
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
        self._running: dict[int, RunningWorker] = {}
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

    def worker(self, number: int) -> RunningWorker | None:
        """That worker, while it is up."""
        with self._lock:
            return self._running.get(number)

    def close(self) -> None:
        """End them all."""
        self._closed.set()
        with self._lock:
            placed = list(self._running.values())
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

    def _note(self, number: int, placed: RunningWorker | None) -> None:
        with self._lock:
            if placed is None:
                self._running.pop(number, None)
            else:
                self._running[number] = placed
            up = len(self._running)
        log.info("%d of %d workers are up", up, len(self))
        self._changed(up)
