"""Both servers' workers as processes, with a dealer's; the servers themselves are two threads."""

import itertools
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.rig.keys import signer
from tests.rig.spent import MemorySpentTriples

import precad
from precad.common.aggregator.collect.spool import Spool
from precad.common.aggregator.release.aggregate import aggregate
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.states import Matched, Opened, Summed
from precad.common.aggregator.service.dealing import RemoteDealer
from precad.common.aggregator.work.pairs import Crew, Pairs, pairs_of
from precad.common.aggregator.work.place import Place
from precad.common.aggregator.work.pool import Pool
from precad.common.aggregator.work.start import WorkerStart
from precad.common.deal.dealer import DealerRole
from precad.common.deal.dealing import Dealing
from precad.common.deal.local import LocalDealing
from precad.common.errors import PrecadError
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.channel import open_channel
from precad.common.identity.credentials import Identity
from precad.common.link import PeerLink, memory_pair
from precad.common.retry import Waits
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.share.submission import Submission, shard
from precad.experiments.local import LocalDeployment

SERVERS = (Role.SERVER_A, Role.SERVER_B)
MODEL = Digest.of(b"model")
UP_S = 120.0
"""Longest wait for workers: each loads CrypTen."""

Halves = Mapping[Role, Mapping[ClientId, Submission]]
Disturb = Callable[[Role, Pairs], None]


@pytest.fixture(scope="session", autouse=True)
def _sources_for_processes() -> Iterator[None]:
    """Processes that tests start find precad, installed or not."""
    patch = pytest.MonkeyPatch()
    sources, root = str(Path(precad.__file__).parents[1]), str(Path(__file__).parents[3])
    patch.setenv("PYTHONPATH", os.pathsep.join([sources, root, os.environ.get("PYTHONPATH", "")]))
    yield
    patch.undo()


@dataclass(slots=True)
class Site:
    """A dealer, and for each server its crew."""

    deployment: LocalDeployment
    dealers: dict[Role, RemoteDealer]
    keys: dict[Role, Secret]
    crews: dict[Role, Crew]
    spent: dict[Role, list[tuple[int, int]]] = field(default_factory=dict)

    def halves(self, vectors: Collection[RingVector], attempt: int) -> Halves:
        """Submissions of these vectors, in memory."""
        task = self.deployment.task
        made: dict[Role, dict[ClientId, Submission]] = {role: {} for role in SERVERS}
        for number, x in enumerate(vectors):
            client = ClientId(f"ward-{number:02d}")
            pair = shard(
                x,
                task=task.digest,
                version=0,
                attempt=attempt,
                client=client,
                model=MODEL,
                signer=signer(client),
                words=task.words_in_headers,
            )
            for role, half in zip(SERVERS, pair, strict=True):
                made[role][client] = half
        return made

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

        B's bodies are in its spool, as its inbox keeps them.

        Raises:
            PrecadError: server A's, or else server B's.
        """
        self.all_up()
        folder = self.deployment.folder / f"spool-{attempt}"
        folder.mkdir()
        spool = Spool(folder)
        at_b = {client: spooled(half, spool) for client, half in halves[Role.SERVER_B].items()}
        held = {Role.SERVER_A: halves[Role.SERVER_A], Role.SERVER_B: at_b}

        def at(role: Role, aggregator: Aggregator, opened: Opened) -> Summed:
            first = frozenset(opened.cohort[: len(opened.cohort) // 2] if early else ())
            crew = self.crews[role]
            pairs, epoch = pairs_of(aggregator, len(crew.pool)), self.dealers[role].epoch
            with Pairs(aggregator, opened, crew, epoch, pairs) as validator:
                lanes = validator._lanes.values()
                wait_for(lambda: all(lane.ready for lane in lanes))
                validator.take([held[role][client] for client in sorted(first)])
                disturb(role, validator)
                return aggregate(aggregator, Matched(opened, held[role], {}, first), validator)

        return self._both(at, held, attempt, counted, self.dealers)

    def in_process(
        self, halves: Halves, attempt: int, counted: Collection[ClientId]
    ) -> tuple[Summed, Summed]:
        """The same without a worker, and with a dealer in this process."""
        task = self.deployment.task
        gates = task.projections if task.validation == "fss" else None
        dealer = DealerRole(task.digest, task.dimension, self.keys, projections=gates)
        dealings = {role: LocalDealing(dealer, role) for role in SERVERS}

        def at(role: Role, aggregator: Aggregator, opened: Opened) -> Summed:
            return aggregate(aggregator, Matched(opened, halves[role], {}))

        return self._both(at, halves, attempt, counted, dealings)

    def _both(
        self,
        at: Callable[[Role, Aggregator, Opened], Summed],
        halves: Halves,
        attempt: int,
        counted: Collection[ClientId] | None,
        dealings: Mapping[Role, Dealing],
    ) -> tuple[Summed, Summed]:
        task, ends = self.deployment.task, dict(zip(SERVERS, memory_pair(), strict=True))

        def play(role: Role) -> Summed | PrecadError:
            link = PeerLink(
                ends[role],
                task.digest,
                max_message_bytes=1 << 26,
                timeout_s=task.deadlines.peer,
            )
            link.begin_attempt(attempt)
            clients = tuple(halves[role])
            drawn = frozenset(clients if counted is None else counted)
            opened = Opened(attempt, 0, clients, MODEL, drawn)
            try:
                return at(role, self.aggregator(role, link, dealings[role]), opened)
            except PrecadError as error:
                return error

        with ThreadPoolExecutor(2) as threads:
            outcomes = list(threads.map(play, SERVERS))
        for outcome in outcomes:
            if isinstance(outcome, PrecadError):
                raise outcome
        return cast("tuple[Summed, Summed]", tuple(outcomes))

    def aggregator(self, role: Role, link: PeerLink, dealing: Dealing) -> Aggregator:
        """A server that can aggregate, and nothing else."""
        nothing = cast("Any", None)
        return Aggregator(
            task=self.deployment.task,
            role=role,
            roster=nothing,
            link=link,
            dealing=dealing,
            dealer_key=self.keys[role],
            set_secret=Secret(bytes(32)),
            nonces=bytes(64),
            seals=nothing,
            coin_key=nothing,
            noise=nothing,
            journal=cast("Any", _Journal(self.spent.setdefault(role, []))),
        )

    def all_up(self) -> None:
        """Wait until every worker is up."""
        wait_for(
            lambda: all(
                crew.pool.worker(number) is not None
                for crew in self.crews.values()
                for number in range(len(crew.pool))
            )
        )


class _Journal:
    """Spends, and notes it."""

    def __init__(self, notes: list[tuple[int, int]]) -> None:
        self._spent = MemorySpentTriples()
        self._notes = notes

    def spend(self, attempt: int, batch: int) -> None:
        self._spent.spend(attempt, batch)
        self._notes.append((attempt, batch))


def spooled(submission: Submission, spool: Spool) -> Submission:
    """As the inbox keeps it."""
    assert submission.body is not None
    file = spool.begin(submission.context.client)
    for piece in submission.body.pieces():
        file.add(memoryview(piece))
    return replace(submission, body=file.finish(submission.body.salt))


def wait_for(what: Callable[[], bool], seconds: float = UP_S) -> None:
    """Until it holds, or the test fails."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)


Hire = Callable[..., Site]


@pytest.fixture
def hire(tmp_path: Path, make_task: Callable[..., Any]) -> Iterator[Hire]:
    """``hire(workers, place)``: a dealer and both servers' crews, ended afterwards."""
    numbers = itertools.count()
    with ExitStack() as stack:

        def make(
            workers: int,
            place: Place,
            dimension: int = 64,
            peer_s: float = 60.0,
            validation: str = "crypten",
        ) -> Site:
            changes = {"enrolment.clients": 12, "deadlines.peer": peer_s, "validation": validation}
            task = make_task(dimension, changes)
            nothing = np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)
            data = {ClientId(f"ward-{number:02d}"): nothing for number in range(12)}
            folder = tmp_path / f"site-{next(numbers)}"
            deployment = stack.enter_context(LocalDeployment(folder, task, data))
            deployment.start_server("dealer")
            site = Site(deployment, {}, {}, {})
            dealer = deployment.addresses["dealer"]
            for role in SERVERS:
                folder = deployment.folder / "keys" / role.value
                identity = Identity.load(folder)
                channel = stack.enter_context(open_channel(dealer, identity, Role.DEALER))
                site.dealers[role] = RemoteDealer(channel, dealer, task, role)
                site.keys[role] = site.dealers[role].join()
                start = WorkerStart(
                    role=role.value,
                    task=deployment.folder / "task.toml",
                    identity=folder,
                    dealer=dealer,
                    listen="127.0.0.1:0" if place.same_disk else "0.0.0.0:0",
                )
                pool = Pool(place, [start] * workers, waits=Waits(0.1, 1.0))
                stack.callback(pool.close)
                site.crews[role] = Crew(pool, identity, other_host="127.0.0.1")
            return site

        yield make
