"""Where workers run (this machine, Ray), how each is started, and that all of them stay up."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from precad.common.clock import RetryPolicy
from precad.common.errors import Misconfiguration, PeerUnavailable, PrecadError
from precad.common.process_settings import Address, ListenAddress

log = logging.getLogger("precad")


class WorkerStart(BaseModel):
    """Where a worker finds what its server has on the disk, and whom it calls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["server-a", "server-b"]
    """Whose worker it is."""
    task: Path
    identity: Path
    """The server's own: on this machine, or the same folder on the worker's."""
    dealer: Address | None
    listen: ListenAddress
    proxy: Annotated[str | None, Field(repr=False)] = None
    """Leads to the dealer and the other server's workers, as in the server's settings.
    """


class RunningWorker(Protocol):
    """A worker that was started."""

    @property
    def address(self) -> str:
        """Where it listens; without a host on its server's own machine."""

    def wait(self) -> None:
        """Wait until it has ended, for whatever reason."""

    def stop(self) -> None:
        """End it."""


class WorkerHost(Protocol):
    """Starts workers."""

    @property
    def same_disk(self) -> bool:
        """Whether workers can open the server's files."""

    def start(self, worker: WorkerStart) -> RunningWorker:
        """Return a worker that listens. Raises PeerUnavailable: it didn't come up."""


class WorkerProcess:
    """One worker's process on this machine.

    Raises PeerUnavailable: it didn't come up.
    """

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
        self._input = self._process.stdin
        said = ""
        with self._process.stdout as output, contextlib.suppress(OSError):
            self._input.write(worker.model_dump_json() + "\n")
            self._input.flush()
            said = output.readline()
        if not said:
            self.stop()
            raise PeerUnavailable(
                "a worker ended before it listened; its reason is in the log"
            )
        self.address = f":{json.loads(said)['port']}"

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


class ThisMachine:
    """Workers are processes of the server's own, and end with it."""

    same_disk = True

    def start(self, worker: WorkerStart) -> WorkerProcess:
        """As ``WorkerHost.start``."""
        return WorkerProcess(worker)


class RayCluster:
    """Workers are processes on the nodes of a Ray cluster, which places and watches them.

    Each actor starts the same process that a server starts on its own machine. What it
    is told (``WorkerStart``) are names of files and addresses: seeds, bodies and
    verdicts travel over the servers' own links, with the server's identity at both
    ends, from the same folder on every node. Whoever may submit to the cluster runs
    programs there, and so reads that identity's key: Ray must ask for a token, which it
    doesn't by itself.

    Raises Misconfiguration: Ray isn't installed, or lets in whoever reaches its ports;
    PeerUnavailable: the cluster isn't there, or doesn't let this server in.
    """

    same_disk = False

    def __init__(self, address: str) -> None:
        mode = os.environ.get("RAY_AUTH_MODE", "")
        if mode != "token":
            why = (
                "whoever reaches Ray's ports could read this server's key: set it to"
                " token for "
            )
            why += (
                "this server and for all nodes, with one token (ray get-auth-token"
                " --generate)"
            )
            raise Misconfiguration("RAY_AUTH_MODE", mode, why)
        ray = _ray()
        if not ray.is_initialized():
            try:
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                )
            except (ConnectionError, ray.exceptions.RayError) as error:
                why = (
                    f"Ray's cluster at {address} isn't there, or has another token:"
                    f" {error}"
                )
                raise PeerUnavailable(why) from None

    def start(self, worker: WorkerStart) -> "RayWorker":
        """As ``WorkerHost.start``."""
        # Never restarted by Ray: the pool does it, and knows then.
        options = {"max_restarts": 0, "scheduling_strategy": "SPREAD", "num_cpus": 1}
        actor = _ray().remote(_Node).options(**options)
        return RayWorker(actor.remote(worker.model_dump_json()))


_START_S = 120.0
"""The longest wait for a worker on Ray to listen."""


class RayWorker:
    """A worker behind an actor. Raises PeerUnavailable: it didn't come up."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        ray = _ray()
        try:
            self.address: str = ray.get(actor.address.remote(), timeout=_START_S)
        except ray.exceptions.RayError as error:
            self.stop()
            raise PeerUnavailable(
                f"Ray placed no worker in {_START_S:g} s: {error}"
            ) from None

    def wait(self) -> None:
        """As ``RunningWorker.wait``: ends with the process, the actor and the node alike."""
        ray = _ray()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.wait.remote())

    def stop(self) -> None:
        """As ``RunningWorker.stop``."""
        _ray().kill(self._actor)


class _Node:
    """On a node: one worker's process, which ends with this actor's."""

    def __init__(self, start: str) -> None:
        self._process = WorkerProcess(WorkerStart.model_validate_json(start))

    def address(self) -> str:
        """Where the worker listens, for other machines."""
        return f"{_ray().util.get_node_ip_address()}{self._process.address}"

    def wait(self) -> None:
        self._process.wait()


def _ray() -> Any:
    """Ray, loaded where workers run on it alone.

    Raises Misconfiguration: it isn't installed.
    """
    try:
        import ray  # noqa: PLC0415
    except ImportError:
        why = 'Ray is not installed; run pip install "precad[ray]"'
        raise Misconfiguration("workers_on", "ray", why) from None
    return ray


WAITS = RetryPolicy(0.5, 30.0)
"""Between starts of a worker that doesn't stay up."""


class WorkerPool:
    """Keeps so many workers up until it is closed."""

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
                target=self._keep,
                args=(n,),
                name=f"worker-{n}",
                daemon=True,
            )
            for n in range(len(starts))
        ]
        for watcher in self._watchers:
            watcher.start()

    def __len__(self) -> int:
        return len(self._starts)

    def worker(self, number: int) -> RunningWorker | None:
        """That worker, while it is up."""
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
