"""Pairs of workers do what one process does; one that is lost costs little, as
processes too."""

import ast
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock, Mock

import grpc
import numpy as np
import pytest
from examples.demo.local_processes import LocalDeployment
from tests.conftest import small_task
from tests.integration.validation.conftest import aggregate_both, summed_up
from tests.rig import corpus, crew, leftovers, stops
from tests.rig.aggregators import (
    SERVERS,
    Halves,
    MemorySpentTriples,
    aggregating,
    submissions_of,
)
from tests.rig.keys import signer
from tests.rig.loop import Here, LoopThread
from tests.rig.loop import dealer as dealer_on
from tests.rig.parties import opened, play_both
from tests.rig.task_files import task_to_toml
from tests.rig.waiting import until

from precad.aggregator.attempt_states import Matched, Summed
from precad.aggregator.collect.upload import Spool
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.release import aggregate
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rpc.dealer_client import RemoteDealer
from precad.aggregator.settings import ServerSettings
from precad.aggregator.training.session import Session
from precad.aggregator.workers import worker_pairs as by_pairs
from precad.aggregator.workers import worker_placement as placement
from precad.aggregator.workers import worker_process
from precad.common import ring
from precad.common.clock import RetryPolicy
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    Rejection,
)
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import GREETING, WIRE_VERSION, open_channel
from precad.common.task import Task
from precad.common.wire.connections import SILENT
from precad.norm_check.dealing import NoDealer
from precad.norm_check.proof_submission import AnySubmission
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import PeerStub, WorkingStub

A, B = SERVERS
Code = grpc.StatusCode
TOO_LONG = (3, 7)  # Whose norm is above the bound
UNCOUNTED = 5
CLIENTS = 11
COUNTED = [
    ClientId(f"ward-{number:04d}") for number in range(CLIENTS) if number != UNCOUNTED
]


Disturb = Callable[[Role, by_pairs.WorkerPairs], None]


@dataclass(slots=True)
class Site:
    """A dealer and both servers' workers on a loop beside the test, and what clients
    share."""

    folder: Path
    task: Task
    dealers: dict[Role, RemoteDealer | NoDealer] = field(default_factory=dict)
    keys: dict[Role, Secret] = field(default_factory=dict)
    own_workers: dict[Role, by_pairs.OwnWorkers] = field(default_factory=dict)
    spent: dict[Role, MemorySpentTriples] = field(
        default_factory=dict
    )  # Of the last play

    @property
    def vectors(self) -> list[ring.RingVector]:
        rng = np.random.default_rng(20261122)
        found = [corpus.honest(self.task, rng) for _ in range(CLIENTS)]
        for number in TOO_LONG:
            found[number][number] = 2 * self.task.mechanism.bound
        return found

    def halves(self, attempt: int = 0) -> Halves:
        return submissions_of(self.task, self.vectors, attempt, signer)

    def play(
        self,
        halves: Halves,
        attempt: int = 0,
        *,
        early: bool = True,
        linked: bool = True,
        disturb: Disturb | None = None,
    ) -> tuple[Summed, Summed]:
        """What both servers end with; half of it is taken ``early``, then comes a
        disturbance.

        Bodies are in a spool, as an inbox keeps them. Raises the more telling error.
        """
        self.all_up()
        folder = self.folder / f"spool-{attempt}"
        folder.mkdir()
        spool = Spool(folder)

        def spooled(half: AnySubmission) -> AnySubmission:
            if half.body is None:
                return half
            file = spool.begin(half.context.client)
            for piece in half.body.pieces():
                file.add(memoryview(piece))
            return replace(half, body=file.finish(half.body.prefix))

        every = {
            role: {c: spooled(half) for c, half in halves[role].items()}
            for role in SERVERS
        }

        def at(role: Role, link: PeerLink) -> Summed:
            link.begin_attempt(attempt)
            self.spent[role], held = MemorySpentTriples(), every[role]
            way = link, self.dealers[role], self.keys[role], self.spent[role]
            server, state = (
                aggregating(self.task, role, *way),
                opened(attempt, held, COUNTED),
            )
            first = frozenset(state.cohort[: len(state.cohort) // 2] if early else ())
            own = self.own_workers[role]
            with by_pairs.WorkerPairs(
                server, state, own, by_pairs.pairs_of(server, len(own.pool))
            ) as validator:
                # Both ask alike; one whose first connection broke off is linked up
                # anew.
                until(
                    lambda: not linked or len(validator._linked()) == len(own.pool),
                    "the pairs",
                )
                validator.take([held[client] for client in sorted(first)])
                if disturb is not None:
                    disturb(role, validator)
                return aggregate(
                    server,
                    Matched(opened=state, submissions=held, rejections={}, early=first),
                    validator,
                )

        return play_both(at, task=self.task.digest, timeout_s=self.task.deadlines.peer)

    def check_sum(self, outcome: tuple[Summed, Summed]) -> None:
        """It is that of all who are counted, but for those whose norm is above the
        bound."""
        a, b = outcome
        bad = {
            ClientId(f"ward-{number:04d}"): Rejection.NORM_EXCEEDED
            for number in TOO_LONG
        }
        assert a.counted.rejections == b.counted.rejections == bad
        good = [
            x for n, x in enumerate(self.vectors) if n not in (*TOO_LONG, UNCOUNTED)
        ]
        assert summed_up(self.task, outcome) == np.sum(good, axis=0).tolist()

    def all_up(self) -> None:
        pools = [own.pool for own in self.own_workers.values()]
        until(
            lambda: all(p.worker(n) for p in pools for n in range(len(p))),
            "workers that listen",
        )


Hire = Callable[..., Site]


@pytest.fixture
def hire(tmp_path: Path, keys: Path) -> Iterator[Hire]:
    """``hire(workers, place)``: a dealer and both servers' workers, here unless it says
    where."""
    with ExitStack() as stack:
        loop = stack.enter_context(LoopThread())

        def make(
            workers: int,
            place: placement.WorkerHost | None = None,
            validation: str = "crypten",
            *,
            same_disk: bool = True,
        ) -> Site:
            changes = {
                "enrolment.clients": 12,
                "deadlines.peer": 120.0,
                "validation": validation,
            }
            task, place = (
                small_task(64, changes),
                place or Here(loop, same_disk=same_disk),
            )
            folder = tmp_path / f"site-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
            dealer = None
            if task.has_dealer:
                dealer = dealer_on(loop, task, Identity.load(keys / "dealer"))
            site = Site(folder, task)
            for role in SERVERS:
                identity = Identity.load(keys / role.value)
                site.dealers[role] = NoDealer()
                if dealer is not None:
                    channel = stack.enter_context(
                        open_channel(dealer, identity, Role.DEALER)
                    )
                    site.dealers[role] = RemoteDealer(channel, dealer, task, role)
                site.keys[role] = site.dealers[role].join()
                start = placement.WorkerStart(
                    role=role.value,
                    identity=keys / role.value,
                    dealer=dealer,
                    task=folder / "task.toml",
                    listen="127.0.0.1:0",
                )
                pool = placement.WorkerPool(
                    place, [start] * workers, waits=RetryPolicy(0.1, 1.0)
                )
                stack.callback(pool.close)
                site.own_workers[role] = by_pairs.OwnWorkers(
                    pool=pool, identity=identity, other_host="127.0.0.1"
                )
            return site

        yield make


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_three_pairs_find_what_one_and_none_find(hire: Hire, validation: str) -> None:
    """The same submissions, invalid and uncounted ones among them: the same set, the
    same share."""
    # The three get bodies over the network, the one opens its server's files.
    sites = {n: hire(n, validation=validation, same_disk=n == 1) for n in (1, 3)}
    halves = sites[1].halves()
    # Without a worker, and with a dealer in this process.
    outcomes = [aggregate_both(sites[1].task, halves, 0, COUNTED)]
    for workers, site in sites.items():
        outcomes.append(site.play(halves))
        assert site.spent[A] == {(0, batch) for batch in range(workers)}
    for outcome in outcomes:
        sites[1].check_sum(outcome)
        for mine, first in zip(outcome, outcomes[0], strict=True):
            assert mine.counted == first.counted
            assert mine.share_sum.tolist() == first.share_sum.tolist()


@pytest.mark.parametrize("role", SERVERS)
def test_a_pair_that_is_lost_costs_an_attempt_once_it_was_recorded(
    hire: Hire, role: Role
) -> None:
    """It is started again, and the next attempt, shared afresh, goes through."""
    site = hire(2)

    def lose_one(at: Role, _: by_pairs.WorkerPairs) -> None:
        """Without a word; its pool has seen it."""
        if at is role:
            pool = site.own_workers[role].pool
            placed = pool.worker(1)
            assert placed is not None
            placed.stop()
            until(lambda: pool.worker(1) is not placed, "the end is seen")

    def lose_one_before(at: Role, pairs: by_pairs.WorkerPairs) -> None:
        lose_one(at, pairs)
        # Both have noticed: nothing else could be asserted of the batches.
        until(lambda: pairs._links[1].error is not None, "the loss is noticed")

    # Nothing of it was recorded: another pair does its part, in the same attempt.
    site.check_sum(site.play(site.halves(), disturb=lose_one_before, early=False))
    assert site.spent[A] == site.spent[B] == {(0, 0)}
    with pytest.raises(PeerUnavailable, match=r"worker|the other server"):
        site.play(site.halves(1), 1, disturb=lose_one)
    site.check_sum(site.play(site.halves(2), 2))


def test_workers_serve_a_server_of_release_0_1_0_which_names_no_bound(
    hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose workers were started after an upgrade beneath it."""
    monkeypatch.setattr(Aggregator, "bound_of", lambda *_: 0)
    site = hire(1)
    site.check_sum(site.play(site.halves()))


def test_a_pair_whose_connection_broke_off_links_up_without_a_submission(
    hire: Hire,
) -> None:
    site = hire(2)
    broke_off = PeerUnavailable("the connection broke off")
    ready = {A: False, B: False}

    def break_off(at: Role, pairs: by_pairs.WorkerPairs) -> None:
        if at is A:
            for link in pairs._links.values():
                link._end(broke_off)

        def all_linked() -> bool:
            # As a turn of the collection in which nothing came; both have as many.
            pairs.take([])
            links = pairs._links.values()
            ready[at] = len(links) == 2 and all(link.ready for link in links)
            return all(ready.values())

        # The servers' last word is that both pairs are there.
        pairs._hand_over()
        said = pairs._aggregator.link.bytes_sent
        until(all_linked, "both pairs are linked again")
        # A server of release 0.1.0 would be out of step.
        assert pairs._aggregator.link.bytes_sent == said

    site.check_sum(site.play(site.halves(), disturb=break_off, early=False))
    assert site.spent[A] == {(0, 0), (0, 1)}


def test_a_worker_obeys_its_server_and_links_with_its_like_alone(
    hire: Hire, keys: Path
) -> None:
    site = hire(1)
    site.all_up()
    placed = site.own_workers[B].pool.worker(0)
    assert placed is not None
    found: dict[tuple[str, str], Code | None] = {}
    parties = ("ward-00", "operator", "dealer", "server-a", "server-b")
    expected: dict[tuple[str, str], Code | None] = dict.fromkeys(
        product(parties, ("Validate", "Link")), Code.PERMISSION_DENIED
    )
    # Another task's: whoever is let in hears of that.
    begin = pb.WorkOrder(begin=pb.WorkBegin(task_digest=bytes(32)))
    expected["server-b", "Validate"] = Code.FAILED_PRECONDITION
    expected["server-a", "Link"] = None
    for caller, call in expected:
        identity = Identity.load(keys / caller)
        with open_channel(f"127.0.0.1{placed.address}", identity, B) as channel:
            stub = (WorkingStub if call == "Validate" else PeerStub)(channel)
            found[caller, call] = None
            try:
                list(getattr(stub, call)(iter([begin] if call == "Validate" else [])))
            except grpc.RpcError as error:
                found[caller, call] = error.code()
    assert found == expected


def test_a_worker_of_another_wire_version_is_refused_in_a_sentence_with_both_numbers(
    hire: Hire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The first version said none.
    monkeypatch.setattr("precad.aggregator.workers.worker_process.GREETING", ())
    site = hire(1, validation="proof")

    def look_again(_role: Role, pairs: by_pairs.WorkerPairs) -> None:
        until(lambda: all(link.error for link in pairs._links.values()), "the refusal")
        assert pairs._linked() == []
        raise PeerUnavailable("enough was seen")

    with pytest.raises(PeerUnavailable, match="enough was seen"):
        site.play(site.halves(), early=False, linked=False, disturb=look_again)
    said = rf"the worker at \S+ speaks wire version 1, this side {WIRE_VERSION}: "
    assert re.search(f"{said}upgrade precad at the worker", caplog.text)


def test_nothing_secret_is_on_a_workers_command_line_or_in_its_environment(
    hire: Hire,
) -> None:
    # With proofs: workers that load no CrypTen are there in a second.
    site = hire(1, placement.ThisMachine(), validation="proof")
    halves = site.halves()
    seen: list[bytes] = []

    def look(at: Role, _pairs: by_pairs.WorkerPairs) -> None:
        placed = cast("placement.WorkerProcess", site.own_workers[at].pool.worker(0))
        process = Path(f"/proc/{placed._process.pid}")
        seen.append(
            (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        )

    site.check_sum(site.play(halves, disturb=look))
    every = [half for at in halves.values() for half in at.values()]
    secrets = [half.seed.reveal() for half in every if half.seed is not None]
    assert (len(seen), len(secrets) > 0) == (len(halves), True)
    for text in seen:
        assert b"workers.worker" in text
        assert not [
            each for each in secrets if each in text or each.hex().encode() in text
        ]


PROGRAM = """
import sys, time
from precad.aggregator.workers.worker_process import own_folder

with own_folder() as folder:
    (folder / "0").write_bytes(b"noise")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_worker_left_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with (
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as killed,
        worker_process.own_folder() as used,
    ):
        assert killed.stdout is not None
        left = Path(killed.stdout.readline().strip())
        assert left.parent == tmp_path
        worker_process.remove_left_over()
        assert left.exists()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        worker_process.remove_left_over()
        assert not left.exists()
        assert used.exists()
    assert not used.exists()


@pytest.mark.parametrize(
    "said", [("ward-1", "never heard of"), ("Ward/1", "norm-exceeded")]
)
def test_nonsense_of_a_worker_ends_the_attempt(
    said: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves nobody waiting."""
    rejection = pb.WorkRejection(client=said[0], reason=said[1])
    # It says so much, and then nothing for as long as it likes.
    call = MagicMock()
    call.__iter__.side_effect = lambda: iter([pb.WorkReport(rejection=rejection)])
    call.initial_metadata.return_value = GREETING
    stub = SimpleNamespace(Validate=lambda _orders: call)
    monkeypatch.setattr(by_pairs, "open_channel", lambda *_given: call)
    monkeypatch.setattr(by_pairs, "WorkingStub", lambda _channel: stub)
    nobody = cast("Identity", None)
    made = by_pairs.WorkerLink(
        "127.0.0.1:1", small_task(), A, nobody, pb.WorkBegin(), same_disk=True
    )
    with closing(made), pytest.raises(PeerViolation, match="reports"):
        made.wait(60.0)


# --- both servers as processes: a training goes on whatever becomes of their workers
# -------------

WORKERS = 2
FLOOD = SILENT + 36  # Connections to each port
Training = tuple[LocalDeployment, crew.Crowd]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """With proofs: such workers load no CrypTen, and are there in a second."""
    task = small_task(64, crew.CHANGES | {"validation": "proof"})
    folder = tmp_path_factory.mktemp("training")
    settings = f'workers = {WORKERS}\nmetrics = "127.0.0.1:0"\n'
    with crew.deployed(folder, task, settings) as (deployment, crowd), crowd.at_work():
        yield deployment, crowd


def workers_of(deployment: LocalDeployment, name: str) -> list[int]:
    return sorted(leftovers.descendants(deployment.processes[name].pid))


@pytest.mark.parametrize("name", crew.SERVERS)
def test_a_worker_dies_in_mid_round_and_the_training_goes_on(
    training: Training, name: str
) -> None:
    deployment, crowd = training
    # One that dies while it starts is no worker yet, and the server says so in other
    # words.
    crew.until(deployment, lambda: crew.up(deployment) == [WORKERS, WORKERS])
    crowd.held_back.clear()
    at = crowd.hold_at = crew.version(deployment) + 2
    crew.until(
        deployment, lambda: sum(v == at for v, _ in crowd.submitted) >= crew.CLIENTS - 1
    )
    os.kill(workers_of(deployment, name)[0], signal.SIGKILL)
    crew.until(deployment, lambda: "ended; it is started again" in deployment.log(name))
    crowd.held_back.set()
    crew.until(deployment, lambda: crew.version(deployment) >= at + 2)
    crew.until(deployment, lambda: crew.up(deployment) == [WORKERS, WORKERS])
    assert "a bug" not in deployment.log(name)


def ports_of(process: int) -> list[int]:
    """Where it listens (state 0A)."""
    own = set()
    for each in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            own.add(str(each.readlink()))
    tables = (
        Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        for name in ("tcp", "tcp6")
    )
    rows = [line.split() for line in itertools.chain(*tables)]
    found = (row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own)
    return sorted({int(address.rpartition(":")[2], 16) for address in found})


def test_a_flood_of_every_port_keeps_no_server_out_and_costs_no_round(
    training: Training,
) -> None:
    """Whoever reaches the ports, without a certificate; server B comes back with new
    workers."""
    deployment, _ = training

    def reached(wanted: int) -> bool:
        with suppress(PeerUnavailable):
            return crew.version(deployment) >= wanted
        return False

    crew.until(deployment, lambda: crew.up(deployment) == [WORKERS, WORKERS])
    parts = [deployment.processes[name].pid for name in crew.SERVERS]
    parts += [pid for name in crew.SERVERS for pid in workers_of(deployment, name)]
    ports = {pid: ports_of(pid) for pid in parts}
    # A server's own and its metrics', and one a worker.
    assert [len(each) for each in ports.values()] == [2, 2, *[1] * 2 * WORKERS]
    with ExitStack() as stack:
        every = [("127.0.0.1", port) for port in itertools.chain(*ports.values())]
        held = [
            [socket.create_connection(each, 60.0) for _ in range(FLOOD)]
            for each in every
        ]
        for connections in held:
            for each in connections:
                stack.enter_context(each)
            for each in connections[:-SILENT]:
                # Ended by the guard, long before a handshake's time is over.
                assert each.recv(1) == b""
        before = crew.version(deployment)
        crew.until(deployment, lambda: crew.version(deployment) >= before + 2)
        workers = workers_of(deployment, "server-b")
        deployment.processes["server-b"].kill()
        deployment.processes["server-b"].wait()
        until(lambda: not any(map(stops.runs, workers)), "the end of its workers")
        deployment.start_server("server-b")
        crew.until(deployment, lambda: reached(before + 4))
    crew.until(deployment, lambda: crew.up(deployment) == [WORKERS, WORKERS])


def test_a_ray_cluster_that_is_open_or_gone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the server's key on each node, and by itself asks nobody who comes."""
    ray = Mock(is_initialized=bool, exceptions=SimpleNamespace(RayError=ValueError))
    ray.init.side_effect = ConnectionError("failed to connect")
    monkeypatch.setattr(placement, "_ray", lambda: ray)
    for mode in ("", "disabled"):
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
        with pytest.raises(
            Misconfiguration, match=r"RAY_AUTH_MODE = .* set it to token"
        ):
            placement.RayCluster("auto")
    assert ray.mock_calls == []
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(PeerUnavailable, match=r"10\.0\.0\.4:6379 isn't there, or has"):
        placement.RayCluster("10.0.0.4:6379")


def test_nothing_of_a_round_and_no_password_of_a_proxy_is_given_to_ray(
    tmp_path: Path,
) -> None:
    """Whoever reads the cluster's state reads what actors were started with.

    An actor is told names of files and addresses; no call of Ray's takes anything else.
    """
    path = Path(__file__).parents[3] / "aggregator/workers/worker_placement.py"
    calls = [
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)
    ]
    given = {
        ast.unparse(argument)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("remote", "put")
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
    }
    assert given == {"_Node", "worker.model_dump_json()"}
    settings = SimpleNamespace(
        workers=1,
        workers_on="ray",
        worker_listen="127.0.0.1:0",
        proxy="http://u:hunter2@proxy:1",
        task=tmp_path,
        identity=tmp_path,
        dealer=None,
        ray="auto",
    )
    session = SimpleNamespace(role=Role.SERVER_A)
    with pytest.raises(
        Misconfiguration, match="Ray would keep its password"
    ) as refused:
        by_pairs.ValidationWorkers(
            cast("Session", session), cast("ServerSettings", settings)
        )
    assert "hunter2" not in str(refused.value)
