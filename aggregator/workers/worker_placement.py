"""Where a server's workers run, how each is started, and how all of them are kept up.

They run on the server's own machine (``ThisMachine``) or on the nodes of a Ray cluster
(``RayCluster``); ``WorkerPool`` starts those anew that end.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, Field

from precad.common import (
    Address,
    ListenAddress,
    Misconfiguration,
    PeerUnavailable,
    PrecadError,
    RetryPolicy,
    log,
    start_thread,
)

_RayObject = Any
"""Ray's module, or the handle of an actor: half of Ray's functions have no types."""


class WorkerStart(BaseModel, frozen=True, extra="forbid"):
    """What a worker is told when it starts.

    It says where the worker finds what its server has on the disk, and whom it calls.
    """

    role: Literal["server-a", "server-b"]
    """Which server's worker it is."""
    task: Path
    """The task's file."""
    identity: Path
    """The server's own folder: on this machine, or the same folder on the worker's."""
    key_passphrase_file: Path | None = None
    """As in the server's settings, and like the folder."""
    dealer: Address | None
    """None for a task without a dealer."""
    listen: ListenAddress
    """Where the worker takes calls; port 0 takes a free one."""
    proxy: Annotated[str | None, Field(repr=False)] = None
    """Leads to the dealer and the other server's workers, as in the server's settings.
    """


class RunningWorker(Protocol):
    """A worker that was started."""

    address: str
    """Where it listens; without a host on its server's own machine."""

    def wait(self) -> None:
        """Wait until the worker has ended, for whatever reason."""

    def stop(self) -> None:
        """End the worker."""


class WorkerHost(Protocol):
    """Starts workers on machines of one kind."""

    same_disk: bool
    """Whether workers can open the server's files."""

    def start(self, worker: WorkerStart) -> RunningWorker:
        """Return a worker that listens. Raises PeerUnavailable: it didn't come up."""


class WorkerProcess:
    """One worker's process on this machine.

    Raises PeerUnavailable: it didn't come up.
    """

    def __init__(self, worker: WorkerStart) -> None:
        """Start the process, tell it what to do, and wait until it says its port."""
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
        answer = ""
        with self._process.stdout as output, contextlib.suppress(OSError):
            self._input.write(worker.model_dump_json() + "\n")
            self._input.flush()
            answer = output.readline()
        if not answer:
            self.stop()
            raise PeerUnavailable(
                "a worker ended before it listened; its reason is in the log"
            )
        self.address = f":{json.loads(answer)['port']}"
        """Where it listens, without a host."""

    def wait(self) -> None:
        """Wait until the process has ended, for whatever reason."""
        self._process.wait()
        with contextlib.suppress(OSError):
            self._input.close()

    def stop(self) -> None:
        """End the process.

        It ends by itself when its input does; after 5 s it is killed.
        """
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ThisMachine:
    """Starts workers as the server's own processes, which end with it."""

    same_disk = True

    def start(self, worker: WorkerStart) -> WorkerProcess:
        """Return a worker that listens. Raises PeerUnavailable: it didn't come up."""
        return WorkerProcess(worker)


class RayCluster:
    """Starts workers on the nodes of a Ray cluster, which places and watches them.

    Each actor starts the same process that a server starts on its own machine. The
    actor is told names of files and addresses alone (``WorkerStart``). Seeds, bodies
    and verdicts travel over the servers' own links, with the server's identity at both
    ends, from the same folder on every node.

    Whoever may submit to the cluster runs programs there, and so reads that identity's
    key: Ray must ask for a token, which it doesn't by itself.

    Raises Misconfiguration: Ray isn't installed, or lets in whoever reaches its ports;
    PeerUnavailable: the cluster isn't there, or doesn't let this server in.
    """

    same_disk = False

    def __init__(self, address: str) -> None:
        """Connect to the cluster, if this process isn't connected yet."""
        mode = os.environ.get("RAY_AUTH_MODE", "")
        if mode != "token":
            raise Misconfiguration(
                "RAY_AUTH_MODE",
                mode,
                "whoever reaches Ray's ports could read this server's key: set it to"
                " token for this server and for all nodes, with one token (ray"
                " get-auth-token --generate)",
            )
        ray = _ray()
        if not ray.is_initialized():
            try:
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                )
            except (ConnectionError, ray.exceptions.RayError) as error:
                raise PeerUnavailable(
                    f"Ray's cluster at {address} isn't there, or has another token:"
                    f" {error}"
                ) from None

    def start(self, worker: WorkerStart) -> "RayWorker":
        """Return a worker that listens. Raises PeerUnavailable: it didn't come up."""
        # Never restarted by Ray: the pool restarts it, and so knows of it.
        options = {"max_restarts": 0, "scheduling_strategy": "SPREAD", "num_cpus": 1}
        actor = _ray().remote(_Node).options(**options)
        return RayWorker(actor.remote(worker.model_dump_json()))


_START_S = 120.0
"""The longest wait for a worker on Ray to listen."""


class RayWorker:
    """A worker behind an actor of Ray's. Raises PeerUnavailable: it didn't come up."""

    def __init__(self, actor: _RayObject) -> None:
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
        """Wait until the process, its actor or its node has ended."""
        ray = _ray()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.wait.remote())

    def stop(self) -> None:
        """End the actor, and its process with it."""
        _ray().kill(self._actor)


class _Node:
    """The actor on a node: one worker's process, which ends with the actor's own."""

    def __init__(self, start: str) -> None:
        self._process = WorkerProcess(WorkerStart.model_validate_json(start))

    def address(self) -> str:
        """Return where the worker listens, for other machines."""
        return f"{_ray().util.get_node_ip_address()}{self._process.address}"

    def wait(self) -> None:
        """Wait until the worker's process has ended."""
        self._process.wait()


def _ray() -> _RayObject:
    """Return Ray's module, which is loaded only where workers run on Ray.

    Raises Misconfiguration: it isn't installed.
    """
    try:
        import ray  # noqa: PLC0415
    except ImportError:
        raise Misconfiguration(
            "workers_on", "ray", 'Ray is not installed; run pip install "precad[ray]"'
        ) from None
    return ray


WAITS = RetryPolicy(0.5, 30.0)
"""Between starts of a worker that doesn't stay up."""


class WorkerPool:
    """Keeps workers up until it is closed, each as one of ``starts`` says.

    ``changed`` is told how many are up, whenever that changes. A thread for each worker
    starts it anew when it ends; ``waits`` says how long it waits before.
    """

    def __init__(
        self,
        place: WorkerHost,
        starts: list[WorkerStart],
        changed: Callable[[int], None] = lambda _up: None,
        waits: RetryPolicy = WAITS,
    ) -> None:
        """Begin to start the workers; ``worker`` finds those that are up."""
        self.place = place
        self._starts = starts
        self._changed = changed
        self._waits = waits
        self._closed = threading.Event()
        self._lock = threading.Lock()
        """Guards changes of ``_running``."""
        self._running: dict[int, RunningWorker] = {}
        """The workers that are up, by number."""
        self._watchers = [
            start_thread(f"worker-{number}", partial(self._keep_up, number))
            for number in range(len(starts))
        ]

    def __len__(self) -> int:
        return len(self._starts)

    def worker(self, number: int) -> RunningWorker | None:
        """Return the worker of this number; None while it isn't up."""
        return self._running.get(number)

    def close(self) -> None:
        """End all workers, and start none anew."""
        self._closed.set()
        with self._lock:
            running = list(self._running.values())
        for worker in running:
            worker.stop()
        for watcher in self._watchers:
            watcher.join(timeout=10)

    def _keep_up(self, number: int) -> None:
        """Start one worker again and again, until the pool is closed.

        Runs in a thread of its own. After a failed start it waits twice as long each
        time.
        """
        wait_s = self._waits.first_s
        while not self._closed.is_set():
            try:
                worker = self.place.start(self._starts[number])
            except PrecadError as error:
                log.warning("worker %d didn't start: %s", number, error)
                self._closed.wait(wait_s)
                wait_s = min(2 * wait_s, self._waits.longest_s)
                continue
            wait_s = self._waits.first_s
            self._note(number, worker)
            if self._closed.is_set():
                worker.stop()
            worker.wait()
            self._note(number, None)
            if not self._closed.is_set():
                log.warning("worker %d ended; it is started again", number)
                self._closed.wait(wait_s)

    def _note(self, number: int, worker: RunningWorker | None) -> None:
        """Note that a worker is up, or (None) has ended, and tell how many are up."""
        with self._lock:
            if worker is None:
                self._running.pop(number, None)
            else:
                self._running[number] = worker
            up = len(self._running)
        log.info("%d of %d workers are up", up, len(self))
        self._changed(up)
