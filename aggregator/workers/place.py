"""Where workers run: as processes of this machine, or wherever somebody else places them."""

import contextlib
import json
import subprocess
import sys
from typing import Protocol

from precad.aggregator.workers.start import WorkerStart
from precad.common.errors import PeerUnavailable


class Placed(Protocol):
    """A worker that was started."""

    @property
    def address(self) -> str:
        """Where it listens; without a host on its server's own machine."""

    def wait(self) -> None:
        """Until it has ended, for whatever reason."""

    def stop(self) -> None:
        """End it."""


class Place(Protocol):
    """Starts workers."""

    @property
    def same_disk(self) -> bool:
        """Whether workers can open the server's files."""

    def start(self, worker: WorkerStart) -> Placed:
        """A worker that listens. Raises PeerUnavailable: it didn't come up."""


class ThisMachine:
    """Workers are processes of the server's own, and end with it."""

    same_disk = True

    def start(self, worker: WorkerStart) -> "WorkerProcess":
        """As ``Place.start``."""
        return WorkerProcess(worker)


class WorkerProcess:
    """One worker's process. Raises PeerUnavailable: it didn't come up."""

    def __init__(self, worker: WorkerStart) -> None:
        # Nothing of what it is told stands on its command line or in its environment.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "precad.aggregator.workers.worker"],
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
        """As ``Placed.wait``."""
        self._process.wait()
        with contextlib.suppress(OSError):
            self._input.close()

    def stop(self) -> None:
        """As ``Placed.stop``."""
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
