"""Both servers' workers, over TLS, with a dealer or without, beside the test (``rig/parts.py``).

The servers themselves are two threads. Workers as processes: ``test_servers_with_workers.py``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.rig.aggregators import SERVERS, Halves, MemorySpentTriples, aggregating, submissions_of
from tests.rig.keys import signer
from tests.rig.loop import LoopThread
from tests.rig.parties import opened, play_both
from tests.rig.parts import Here
from tests.rig.parts import dealer as dealer_on
from tests.rig.waiting import until

from precad.aggregator.collect.upload import Spool
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.release import aggregate
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.states import Matched, Opened, Summed
from precad.aggregator.rpc.dealer_client import RemoteDealer
from precad.aggregator.workers.worker_pairs import OwnWorkers, WorkerPairs, pairs_of
from precad.aggregator.workers.worker_placement import WorkerHost, WorkerPool, WorkerStart
from precad.cli.local_deployment import task_to_toml
from precad.common.clock import RetryPolicy
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.ring import RingVector
from precad.common.share.proof_submission import AnySubmission
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole, LocalDealing
from precad.norm_check.dealing import Dealing, NoDealer

EitherDealer = RemoteDealer | NoDealer
Disturb = Callable[[Role, WorkerPairs], None]


@dataclass(slots=True)
class Site:
    """A dealer, and for each server its own."""

    folder: Path
    """With ``task.toml`` and everybody's ``keys``."""
    task: Task
    dealers: dict[Role, EitherDealer]
    keys: dict[Role, Secret]
    own_workers: dict[Role, OwnWorkers]
    spent: dict[Role, list[tuple[int, int]]] = field(default_factory=dict)

    def halves(self, vectors: Collection[RingVector], attempt: int) -> Halves:
        return submissions_of(self.task, vectors, attempt, signer)

    def play(
        self,
        halves: Halves,
        attempt: int,
        *,
        counted: Collection[ClientId] | None = None,
        early: bool = True,
        disturb: Disturb = lambda _role, _pairs: None,
    ) -> tuple[Summed, Summed]:
        """What both servers end with; half of it is taken ``early``, then comes a disturbance.

        Bodies are in a spool, as an inbox keeps them. Raises the more telling error.
        """
        self.all_up()
        folder = self.folder / f"spool-{attempt}"
        folder.mkdir()
        spool = Spool(folder)
        held = {
            role: {client: spooled(half, spool) for client, half in halves[role].items()}
            for role in SERVERS
        }

        def at(role: Role, aggregator: Aggregator, attempt: Opened) -> Summed:
            first = frozenset(attempt.cohort[: len(attempt.cohort) // 2] if early else ())
            own = self.own_workers[role]
            pairs = pairs_of(aggregator, len(own.pool))
            with WorkerPairs(aggregator, attempt, own, pairs) as validator:
                links = validator._links.values()
                until(lambda: all(link.ready for link in links), "workers linked up")
                validator.take([held[role][client] for client in sorted(first)])
                disturb(role, validator)
                return aggregate(aggregator, Matched(attempt, held[role], {}, first), validator)

        return self._both(at, held, attempt, counted, self.dealers)

    def in_process(
        self, halves: Halves, attempt: int, counted: Collection[ClientId]
    ) -> tuple[Summed, Summed]:
        """The same without a worker, and with a dealer in this process."""
        dealings: dict[Role, Dealing] = {role: NoDealer() for role in SERVERS}
        if self.task.has_dealer:
            dealer = DealerRole(self.task.digest, self.task.dimension, self.keys)
            dealings = {role: LocalDealing(dealer, role) for role in SERVERS}

        def at(role: Role, aggregator: Aggregator, attempt: Opened) -> Summed:
            return aggregate(aggregator, Matched(attempt, halves[role], {}))

        return self._both(at, halves, attempt, counted, dealings)

    def _both(
        self,
        at: Callable[[Role, Aggregator, Opened], Summed],
        halves: Halves,
        attempt: int,
        counted: Collection[ClientId] | None,
        dealings: Mapping[Role, Dealing],
    ) -> tuple[Summed, Summed]:
        def play(role: Role, link: PeerLink) -> Summed:
            link.begin_attempt(attempt)
            spent = _Spent(self.spent.setdefault(role, []))
            server = aggregating(self.task, role, link, dealings[role], self.keys[role], spent)
            return at(role, server, opened(attempt, halves[role], counted))

        return play_both(play, task=self.task.digest, timeout_s=self.task.deadlines.peer)

    def all_up(self) -> None:
        until(
            lambda: all(
                own.pool.worker(number) is not None
                for own in self.own_workers.values()
                for number in range(len(own.pool))
            ),
            "workers that listen",
        )


class _Spent(MemorySpentTriples):
    def __init__(self, notes: list[tuple[int, int]]) -> None:
        super().__init__()
        self._notes = notes

    def spend(self, attempt: int, batch: int) -> None:
        super().spend(attempt, batch)
        self._notes.append((attempt, batch))


def spooled(submission: AnySubmission, spool: Spool) -> AnySubmission:
    """As the inbox keeps it."""
    if submission.body is None:
        return submission
    file = spool.begin(submission.context.client)
    for piece in submission.body.pieces():
        file.add(memoryview(piece))
    return replace(submission, body=file.finish(submission.body.prefix))


Hire = Callable[..., Site]


@pytest.fixture
def hire(tmp_path: Path, keys: Path, make_task: Callable[..., Task]) -> Iterator[Hire]:
    """``hire(workers, place)``: a dealer and both servers' workers, here unless it says where."""
    with ExitStack() as stack:
        loop = stack.enter_context(LoopThread())

        def make(
            workers: int,
            place: WorkerHost | None = None,
            validation: str = "crypten",
            *,
            same_disk: bool = True,
        ) -> Site:
            changes = {"enrolment.clients": 12, "deadlines.peer": 120.0, "validation": validation}
            task, place = make_task(64, changes), place or Here(loop, same_disk=same_disk)
            folder = tmp_path / f"site-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
            dealer = None
            if task.has_dealer:
                dealer = dealer_on(loop, task, Identity.load(keys / "dealer"))
            site = Site(folder, task, {}, {}, {})
            for role in SERVERS:
                identity = Identity.load(keys / role.value)
                site.dealers[role] = NoDealer()
                if dealer is not None:
                    channel = stack.enter_context(open_channel(dealer, identity, Role.DEALER))
                    site.dealers[role] = RemoteDealer(channel, dealer, task, role)
                site.keys[role] = site.dealers[role].join()
                start = WorkerStart(
                    role=role.value,
                    task=folder / "task.toml",
                    identity=keys / role.value,
                    dealer=dealer,
                    listen="127.0.0.1:0",
                )
                pool = WorkerPool(place, [start] * workers, waits=RetryPolicy(0.1, 1.0))
                stack.callback(pool.close)
                site.own_workers[role] = OwnWorkers(pool, identity, other_host="127.0.0.1")
            return site

        yield make
