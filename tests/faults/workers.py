"""Pairs of workers in a simulated training: real attempts, links in memory."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, cast

from tests.faults.simulated_server import Cable, DealerCalls, Transport
from tests.faults.turns import Life, Turns, TurnsCondition
from tests.faults.world import World

from precad.aggregator.attempt_states import Opened
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rpc.peer_transport import DialledTransport, ServedTransport
from precad.aggregator.validate.validation import Validator
from precad.aggregator.workers import worker_pairs
from precad.aggregator.workers.worker_attempt import Attempt, Begin, Order, Taken
from precad.aggregator.workers.worker_pairs import OwnWorkers, WorkerLink, WorkerPairs
from precad.aggregator.workers.worker_placement import WorkerPool
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.task import Task
from precad.norm_check.dealing import NoDealer
from precad.protos import precad_pb2 as pb

Orders = queue.SimpleQueue[Order | BaseException]
Reach = Callable[[], AbstractContextManager[DialledTransport | ServedTransport]]


def orders(turns: Turns) -> Orders:
    """As ``queue.Queue``, where whoever waits gives its turn away."""
    held = deque[object]()

    def get(timeout: float) -> object:
        if not turns.wait(lambda: bool(held), timeout):
            raise queue.Empty
        return held.popleft()

    own = SimpleNamespace(put=held.append, empty=lambda: not held, get=get)
    return cast("Orders", own)


class SimulatedWorkerLink(WorkerLink):
    """To a worker that is a thread of its own; ``identity`` is a ``ByPairs``."""

    def __init__(
        self,
        address: str,
        task: Task,
        role: Role,
        identity: "ByPairs",
        begin: pb.WorkBegin,
        **_: object,
    ) -> None:
        world, cables = identity.world, identity.cables
        self._turns, self._dimension, self._address = (
            world.turns,
            task.dimension,
            address,
        )
        self._changed = cast("threading.Condition", TurnsCondition(world.turns))
        self._linked, self._ended, self._done = False, None, None
        self._rejections, self._sum = {}, bytearray()
        self._worker = Life(f"{role.value} worker {begin.pair}")
        world.servers[role].life.at_death.append(self.close)
        self._worker.at_death.append(lambda: self._gone("the worker died"))

        reached: list[Cable] = []

        @contextmanager
        def reach() -> Iterator[Transport]:
            if reached:
                # A's worker connects once an attempt: whoever passed its link over
                # waits in vain.
                world.turns.sleep(task.deadlines.peer)
                raise PeerUnavailable("server A's worker didn't connect")
            cable = cables.setdefault((begin.attempt, begin.pair), Cable(world))
            reached.append(cable)
            self._worker.at_death.append(cable.break_at_death)
            yield Transport(world, cable, role)

        def report(**what: Any) -> None:
            self._note(pb.WorkReport(**what))

        dealing = DealerCalls(world, role) if world.task.has_dealer else NoDealer()
        if isinstance(dealing, DealerCalls):
            dealing._epoch = int.from_bytes(begin.epoch, "big")
        said = Begin(
            attempt=begin.attempt,
            pair=begin.pair,
            dealer_key=Secret(begin.dealer_key),
            nonces=begin.nonces,
        )
        self._part = Attempt(
            _task=task,
            _role=role,
            _begin=said,
            _dealing=dealing,
            _reach=cast("Reach", reach),
            _report=report,
        )
        self._part._orders = orders(world.turns)
        world.turns.spawn(
            f"{self._worker.party}: attempt", self._worker, self._part.run
        )

    def take(self, taken: Taken) -> None:
        self._part.put(taken)

    def decide(self) -> None:
        self._part.put(None)

    def close(self) -> None:
        self._turns.kill(self._worker)

    def _note(self, report: pb.WorkReport) -> None:
        try:
            super()._note(report)
        except PeerUnavailable as error:
            self._gone(str(error))

    def _gone(self, why: str) -> None:
        self._ended = self._ended or PeerUnavailable(why)


class ByPairs:
    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self._count = count
        self.cables: dict[tuple[int, int], Cable] = {}  # By attempt and pair

    @contextmanager
    def __call__(self, aggregator: Aggregator, opened: Opened) -> Iterator[Validator]:
        pool = SimpleNamespace(
            worker=lambda number: SimpleNamespace(address=f"worker {number}"),
            place=SimpleNamespace(same_disk=False),
        )
        own = OwnWorkers(
            pool=cast("WorkerPool", pool),
            identity=cast("Identity", self),
            clock=self.world.clock,
        )
        module: Any = worker_pairs
        module.WorkerLink = SimulatedWorkerLink
        try:
            with WorkerPairs(aggregator, opened, own, self._count) as validator:
                yield validator
        finally:
            module.WorkerLink = WorkerLink
