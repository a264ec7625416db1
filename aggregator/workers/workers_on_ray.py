"""Workers on the nodes of a Ray cluster: Ray places and watches them, and carries nothing else.

Each actor starts the same process that a server starts on its own machine, on whatever node Ray
gives it. What an actor is told (``WorkerStart``) are names of files and addresses: seeds, bodies
and verdicts travel over the servers' own links, with the server's identity at both ends, which lies
in the same folder on every node. Nothing of a round is ever an argument or an object of Ray's.
"""

import logging
from typing import Any

from precad.aggregator.workers.worker_placement import WorkerProcess, WorkerStart
from precad.common.errors import Misconfiguration, PeerUnavailable

try:
    import ray
    from ray.exceptions import RayError
except ImportError:
    raise Misconfiguration(
        "workers_on", "ray", 'Ray is not installed; run pip install "precad[ray]"'
    ) from None


class RayCluster:
    """Places workers on a cluster.

    Args:
        address: the cluster's, as Ray takes it.
        resources: what each worker asks of its node; one CPU unless given.
        start_s: the longest wait for a worker to listen.
    """

    same_disk = False

    def __init__(
        self, address: str, resources: dict[str, Any] | None = None, start_s: float = 120.0
    ) -> None:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        self._resources = {"num_cpus": 1} if resources is None else resources
        self._start_s = start_s

    def start(self, worker: WorkerStart) -> "RayWorker":
        """As ``WorkerHost.start``."""
        # Never restarted by Ray: the pool does it, and knows then.
        actor = ray.remote(_Node).options(
            max_restarts=0, scheduling_strategy="SPREAD", **self._resources
        )
        return RayWorker(actor.remote(worker.model_dump_json()), self._start_s)


class RayWorker:
    """A worker behind an actor. Raises PeerUnavailable: it didn't come up."""

    def __init__(self, actor: Any, start_s: float) -> None:
        self._actor = actor
        try:
            self.address: str = ray.get(actor.address.remote(), timeout=start_s)
        except RayError as error:
            self.stop()
            raise PeerUnavailable(f"Ray placed no worker in {start_s:g} s: {error}") from None

    def wait(self) -> None:
        """As ``RunningWorker.wait``: ends with the process, the actor and the node alike."""
        try:
            ray.get(self._actor.wait.remote())
        except RayError:
            return

    def stop(self) -> None:
        """As ``RunningWorker.stop``."""
        ray.kill(self._actor)


class _Node:
    """On a node: one worker's process, which ends with this actor's."""

    def __init__(self, start: str) -> None:
        self._process = WorkerProcess(WorkerStart.model_validate_json(start))

    def address(self) -> str:
        """Where the worker listens, for other machines."""
        util: Any = ray.util
        host: str = util.get_node_ip_address()
        return f"{host}:{self._process.port}"

    def wait(self) -> None:
        """Until the process has ended."""
        self._process.wait()
