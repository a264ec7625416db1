"""Whether a round costs the servers more, the longer a training lasts: the real round and stores.

Writes results/long_training.json beside itself, after each tenth of the rounds; a size
whose rounds are all there isn't played again (`--fresh` plays all). Both servers run in
one process, each in a thread of its own, over a link in memory, with their stores,
journals and models on this disk and real signatures between them. Each owner is signed
its opening and its statement of every round at both servers. Simulated: the owners'
uploads and their validation, which know nothing of earlier rounds; what the owners'
side takes isn't counted. The noise is drawn from a seed.

Processor time suffers from what else a machine does. Beside it stand the same figures
of a new training as long as a tenth, played right after the last one, and what no load
changes: how many steps SQLite's machine takes for each tenth of a shorter training.
"""

import argparse
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NoReturn, cast

import numpy as np
from tests.rig.memory_link import memory_pair

from benchmarks.coordinator import SERVERS, Pen
from benchmarks.crowd.resident import open_files, resident_mib
from benchmarks.long_processes import words_of
from benchmarks.rounds.hardware import hardware
from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.enrol.admission import window_of
from precad.aggregator.enrol.register import Register
from precad.aggregator.peer_link import FrameTransport
from precad.aggregator.rounds.aggregator import Aggregator, CoinKey
from precad.aggregator.rpc.notices import opening_of, statement_of
from precad.aggregator.store import open_store
from precad.aggregator.training.connected_clients import ConnectedClients
from precad.aggregator.training.model_store import ModelStore
from precad.aggregator.training.session import (
    Event,
    EventLog,
    RoundDone,
    RoundOpened,
    Session,
)
from precad.aggregator.training.training_loop import Dealer, Peers, train
from precad.aggregator.validate.validation import Validation, Verdicts
from precad.common.clock import CLOCK
from precad.common.files import write_file
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.process import PEOPLE
from precad.common.ring import RingVector
from precad.common.roster import Enrolment
from precad.common.submission import Submission, SubmissionContext, shard
from precad.common.task import Task
from precad.server_a.process import Leader
from precad.server_b.process import Helper

RESULT = Path(__file__).parent / "results" / "long_training.json"
ROUNDS = {3: 3_000, 100: 600}
"""By clients."""
COUNTED_ROUNDS = {3: 400, 100: 50}
"""By clients, of the training whose steps are counted."""
WARM_UP = 20
"""Rounds that are played before the first that counts: statements are compiled in them.
"""
SEED = 32


def task_of(clients: int, rounds: int) -> Task:
    """D = 4 and a limit of ε, so that every round asks for everybody's charges."""
    return Task.parse(
        {
            "name": "long-training",
            "model": {"parameters": [{"name": "w", "shape": [4]}]},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 4.0,
                "noise_multiplier": 8.0,
                "record_rate": 0.01,
                "client_rate": 1.0,
                "epsilon_limit": 8.0,
            },
            "training": {"learning_rate": 1.0, "rounds": rounds},
            "enrolment": {"clients": clients, "max_expected_records": 1000.0},
            "fractional_bits": 16,
        }
    )


class Valid:
    """Stands in for validation: everybody is valid, and the sum is zero."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension

    def take(self, submissions: Sequence[Submission]) -> None:
        """Look at none of them."""

    def ready(self) -> None:
        """Nobody is waited for."""

    def decide(self) -> Verdicts:
        """No rejection."""
        return Verdicts({}, np.zeros(self._dimension, dtype=np.int64))


def valid(aggregator: Aggregator, _: Opened) -> Validation:
    """One attempt's validation."""
    return nullcontext(Valid(aggregator.task.dimension))


class Noise:
    """Small integers from a seed."""

    def __init__(self, role: Role) -> None:
        self._generator = np.random.default_rng([SEED, SERVERS.index(role)])

    def draw(self, dimension: int) -> RingVector:
        """``[d] int64``."""
        return self._generator.integers(-1000, 1000, dimension, dtype=np.int64)


class NoDealer:
    """Stands in for the dealer's connection: validation is simulated, and asks for nothing."""

    epoch = b""
    bytes_received = 0
    newest_attempt = -1

    def join(self) -> Secret:
        """A key that nobody uses."""
        return Secret(bytes(32))

    def deal(self, _: object) -> NoReturn:
        """Nobody asks."""
        raise AssertionError("validation is simulated")

    squares = deal


class Owners:
    """All owners' part of a training, and the clocks of both servers' rounds.

    Stands in for each server's log of events, in the server's own thread.
    """

    def __init__(
        self, task: Task, clients: Sequence[ClientId], tenth: Callable[[], None]
    ) -> None:
        self._task = task
        self._clients = clients
        self._tenth = tenth
        self.sessions: dict[Role, Session] = {}
        self.cpu_s: dict[Role, list[float]] = {role: [0.0] for role in SERVERS}
        """Each server's thread's, after each round, without the owners' part."""
        self.steps: dict[Role, list[int]] = {role: [0] for role in SERVERS}
        """Of each server's database, after each round, where they are counted; newest
        running."""
        self.wall_s = [0.0]
        """After each round of A's."""
        self._not_counted_cpu_s, self._not_counted_s = 0.0, 0.0

    def log_of(self, role: Role) -> EventLog:
        """What server ``role`` publishes to."""
        owners = self

        class Log:
            def publish(self, event: Event) -> None:
                owners.hear(role, event)

        return cast("EventLog", Log())

    def hear(self, role: Role, event: Event) -> None:
        """All owners do what they do then."""
        session = self.sessions[role]
        if isinstance(event, RoundOpened):
            if role is Role.SERVER_A:
                self._upload(event.opened)
            for client in self._clients:
                opening_of(session, client, event.opened.attempt)
        elif isinstance(event, RoundDone):
            assert event.valid == set(self._clients)
            for client in self._clients:
                statement_of(session, client, shown=None)
            self.steps[role].append(self.steps[role][-1])
            a = role is Role.SERVER_A
            self.cpu_s[role].append(
                time.thread_time() - (self._not_counted_cpu_s if a else 0.0)
            )
            if a:
                self.wall_s.append(time.perf_counter() - self._not_counted_s)
                self._tenth()

    def count_steps(self, role: Role) -> None:
        """Count what this server's database does from now on; that takes time of its own."""
        counts = self.steps[role]

        def step() -> int:
            counts[-1] += 1
            return 0

        with self.sessions[role].store.transaction.read() as connection:
            driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(step, 1)

    def _upload(self, opened: Opened) -> None:
        began = time.thread_time(), time.perf_counter()
        x = np.zeros(self._task.dimension, dtype=np.int64)
        for client in self._clients:
            halves = shard(
                x,
                SubmissionContext(
                    task=self._task.digest,
                    version=opened.version,
                    attempt=opened.attempt,
                    client=client,
                    model=opened.model,
                ),
                Pen(),
            )
            for half in halves:
                self.sessions[half.role].inbox._accept(half)  # noqa: SLF001
        self._not_counted_cpu_s += time.thread_time() - began[0]
        self._not_counted_s += time.perf_counter() - began[1]


def session_of(task: Task, role: Role, folder: Path, log: EventLog) -> Session:
    """A server's session as its process makes it, but for the log."""
    state = folder / "state" / role.value
    state.mkdir(parents=True)
    identity = Identity.load(folder / "keys" / Principal.service(role).name)
    store = open_store(f"sqlite:///{state / 'state.db'}", task, role, state / "journal")
    verifier = CertificateVerifier(identity)
    return Session(
        role=role,
        task=task,
        identity=identity,
        store=store,
        signer=CertificateSigner(identity),
        verifier=verifier,
        coin_key=CoinKey(Secret(hashlib.sha256(f"{SEED} {role}".encode()).digest())),
        inbox=Inbox(role, task, verifier, state / "spool"),
        register=Register(task, store),
        connected_clients=ConnectedClients(task.deadlines.rejoin, CLOCK),
        model_store=ModelStore(task, state / "model.safetensors"),
        event_log=log,
        enrolling=window_of(task),
    )


def tenths(owners: Owners, rounds: int) -> list[dict[str, Any]]:
    """What each tenth that is over took."""
    size, rows = rounds // 10, []
    cpu = [np.diff(owners.cpu_s[role]) for role in SERVERS]
    over = min(map(len, cpu)) - WARM_UP
    for start in range(WARM_UP, WARM_UP + over - size + 1, size):
        part = slice(start, start + size)
        both = cpu[0][part] + cpu[1][part]
        rows.append(
            {
                "cpu_s": {
                    role.value: round(float(each[part].sum()), 3)
                    for role, each in zip(SERVERS, cpu, strict=True)
                },
                "cpu_s_of_both": round(float(both.sum()), 3),
                "median_round_cpu_ms_of_both": round(1000 * float(median(both)), 3),
                "wall_s": round(owners.wall_s[start + size] - owners.wall_s[start], 3),
                "median_round_wall_ms": round(
                    1000 * float(median(np.diff(owners.wall_s)[part])), 3
                ),
            }
        )
    return rows


class Said(logging.Handler):
    """Keeps each line that the servers log, as a process writes it for people."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(PEOPLE))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(f"{self.format(record)}\n")


def stored_by(folder: Path) -> int:
    """Bytes of both servers' databases, journals and models."""
    files = (
        path for role in SERVERS for path in (folder / "state" / role.value).rglob("*")
    )
    return sum(path.stat().st_size for path in files if path.is_file())


def play(
    clients: int,
    rounds: int,
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    *,
    count: bool = False,
) -> Owners:
    """One training; ``keep`` has what is known of it after each tenth."""
    task = task_of(clients, WARM_UP + rounds)
    names = [ClientId(f"client-{number:03d}") for number in range(clients)]

    def tenth() -> None:
        # B's round is over soon after A's: the one before it is over on both.
        over = len(owners.wall_s) - 2 - WARM_UP
        if over > 0 and over % (rounds // 10) == 0:
            keep(row())

    def row() -> dict[str, Any]:
        each = tenths(owners, rounds)
        found: dict[str, Any] = {"clients": clients, "rounds": rounds, "tenths": each}
        held.append(
            {
                "rounds_over": len(owners.wall_s) - 1,
                "resident_mib": resident_mib(os.getpid()),
                "open_files": open_files(os.getpid()),
                "log_bytes_of_both": sum(map(len, said.lines)),
                "kinds_of_log_lines": len({words_of(line) for line in said.lines}),
                "state_bytes_of_both": stored_by(folder),
            }
        )
        found["held"] = held
        if len(each) == 10:
            found["last_over_first"] = {
                name: round(each[-1][name] / each[0][name], 3)
                for name, value in each[0].items()
                if isinstance(value, float)
            }
        return found

    held: list[dict[str, Any]] = []
    said = Said()
    precad_log = logging.getLogger("precad")
    precad_log.setLevel(logging.INFO)
    precad_log.addHandler(said)
    owners = Owners(task, names, tenth)
    create_local_keys(folder / "keys", ())
    for role in SERVERS:
        owners.sessions[role] = session_of(task, role, folder, owners.log_of(role))
        for name in names:
            owners.sessions[role].register.enrol(
                Enrolment(name, 10, task.privacy.record_rate)
            )
        if count:
            owners.count_steps(role)
    ends = dict(zip(SERVERS, memory_pair(), strict=True))

    def serve(role: Role) -> None:
        @contextmanager
        def peers() -> Iterator[tuple[FrameTransport, Dealer]]:
            yield ends[role], cast("Dealer", NoDealer())

        session = owners.sessions[role]
        part = Leader(session) if role is Role.SERVER_A else Helper(session)
        train(session, part, Peers(peers, Noise(role), valid))

    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(serve, SERVERS):
            pass
    for role in SERVERS:
        store = owners.sessions[role].store
        assert store.ledger.participations() == dict.fromkeys(names, WARM_UP + rounds)
        store.close()
    precad_log.removeHandler(said)
    keep(row() | {"bytes_on_disk_of_both": stored_by(folder)})
    return owners


def young(clients: int, rounds: int) -> dict[str, Any]:
    """As many rounds as a tenth, of a training that has just begun: what the machine gives now."""
    with tempfile.TemporaryDirectory() as folder:
        owners = play(clients, rounds, Path(folder), lambda _: None)
    both = np.sum([np.diff(owners.cpu_s[role])[WARM_UP:] for role in SERVERS], axis=0)
    return {
        "cpu_s_of_both": round(float(both.sum()), 3),
        "median_round_cpu_ms_of_both": round(1000 * float(median(both)), 3),
        "wall_s": round(owners.wall_s[-1] - owners.wall_s[WARM_UP], 3),
        "median_round_wall_ms": round(
            1000 * float(median(np.diff(owners.wall_s)[WARM_UP:])), 3
        ),
    }


def counted(clients: int, rounds: int) -> dict[str, Any]:
    """Steps of both servers' databases, by tenth of the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        owners = play(clients, rounds, Path(folder), lambda _: None, count=True)
    # The list's last one belongs to no round.
    steps = sum(
        np.diff(owners.steps[role][:-1], prepend=0)[WARM_UP:] for role in SERVERS
    )
    return {
        "clients": clients,
        "rounds": rounds,
        "tenths": [int(part.sum()) for part in np.split(steps, 10)],
    }


def one_length(rounds: int, machine: dict[str, Any]) -> None:
    """Play one training of 3 owners, and write what is known of it after each tenth."""
    path = RESULT.with_name(f"long_training_of_{rounds}.json")

    def keep(row: dict[str, Any]) -> None:
        found = {"what": "long_training.py", "hardware": machine, "sizes": [row]}
        write_file(path, (json.dumps(found, indent=2) + "\n").encode())
        print(json.dumps(row["held"][-1]), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        play(3, rounds, Path(folder), keep)


def main() -> None:
    """Play what isn't there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="play again what is there")
    parser.add_argument(
        "--rounds",
        type=int,
        help="so many rounds of 3 owners alone, into results/long_training_of_ROUNDS.json",
    )
    given = parser.parse_args()
    fresh = given.fresh
    machine = hardware()
    if given.rounds:
        one_length(given.rounds, machine)
        return
    known = (
        {} if fresh or not RESULT.exists() else json.loads(RESULT.read_text("utf-8"))
    )
    rows: dict[int, dict[str, Any]] = {}
    steps: list[dict[str, Any]] = []
    if known.get("hardware") == machine:
        whole = [row for row in known["sizes"] if "a_new_training_then" in row]
        rows = {
            row["clients"]: row
            for row in whole
            if row["rounds"] == ROUNDS[row["clients"]]
        }
        steps = known["database_steps"]

    def write() -> None:
        found = {
            "what": "long_training.py",
            "hardware": machine,
            "rounds_of_warm_up": WARM_UP,
            "sizes": [rows[clients] for clients in sorted(rows)],
            "database_steps": steps,
        }
        write_file(RESULT, (json.dumps(found, indent=2) + "\n").encode())

    def keep(row: dict[str, Any]) -> None:
        rows[row["clients"]] = row
        write()
        print(json.dumps([*row["tenths"][-1:], row.get("last_over_first")]), flush=True)

    for clients in [each for each in ROUNDS if each not in rows]:
        with tempfile.TemporaryDirectory() as folder:
            play(clients, ROUNDS[clients], Path(folder), keep)
        keep(
            rows[clients]
            | {"a_new_training_then": young(clients, ROUNDS[clients] // 10)}
        )
    there = {(row["clients"], row["rounds"]) for row in steps}
    for size in [each for each in COUNTED_ROUNDS.items() if each not in there]:
        steps.append(counted(*size))
        write()
        print(json.dumps(steps[-1]), flush=True)


if __name__ == "__main__":
    main()
