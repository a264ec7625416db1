"""A whole training in one process, on the real code of all parts, with faults.

Real: lead and follow, recovery, the round, validation, the stores (SQLite files),
models, inbox, register, the client's `Participant`, its account and its kept pair.
Simulated: gRPC (the links, the dealer's service, the clients' calls), time, threads
(`turns.py`) and the noise (recorded, so that sums can be checked). The coin keys come
from the seed.

Every step of a party has a name. Whether a fault strikes there is decided by the seed,
the party, the step's name and how often the party has come to it, never by time.
"""

import hashlib
import math
import shutil
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from typing import cast

from tests.faults.simulated_owner import Calls, Stranger
from tests.faults.simulated_server import (
    MODEL,
    SERVERS,
    Cable,
    DealerCalls,
    Server,
    Transport,
)
from tests.faults.turns import Killed, Life, Turns, TurnsClock
from tests.rig.keys import identity
from tests.rig.stores import charges, rows

from precad.aggregator.attempt_states import Opened
from precad.aggregator.peer_link import FrameTransport
from precad.aggregator.rounds.aggregator import Aggregator, CoinKey
from precad.aggregator.training.session import Event, Phase, RoundDone, RoundOpened
from precad.aggregator.training.training_loop import Dealer, run_to_end
from precad.aggregator.validate.validation import Validation
from precad.client.connection import Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import Participant
from precad.client.participation import Participation
from precad.client.pending_update import Pending
from precad.client.server_statements import ServerStatements
from precad.common.errors import PeerUnavailable, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.identity.party_certificate import (
    Principal,
    read_certificates,
    validity_fault,
)
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import NoDealer


class Fault(Enum):
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CUT = "cut"  # The servers' link breaks, and both notice
    SILENCE = "silence"  # The servers' link swallows everything from now on
    DEALER = "dealer restarts"
    DISK = (  # A write to a server's database fails: it stops, and is started again
        "disk fails"
    )
    DELAY = "delay"
    JUMP = (  # This party's monotonic clock leaps, as after a suspended machine
        "clock jump"
    )


class Orders:
    """Lines of faults, ``server-a crash after: store.attempts.prepare, …``, one by one.

    A party's strikes fall in their order, those of different parties independently.
    Once all have fallen, and a version was opened after that, the next line is in
    force. Where a version is opened before all have fallen, what they wait for didn't
    come of it this time (the other server was quicker, say): then the whole line is in
    force again, ``MOST_TRIES`` times.
    """

    MOST_TRIES = 12

    def __init__(self, lines: Sequence[str]) -> None:
        self._waiting = deque(line.split(", ") for line in lines)
        self._line: list[str] = []
        self._begin_next()

    @property
    def open(self) -> list[str]:
        return [strike for line in (self._line, *self._waiting) for strike in line]

    def version_opened(self) -> None:
        if not self._line:
            self._begin_next()
        elif self._tries < self.MOST_TRIES:
            self._tries += len(self._line) < len(self._whole)
            self._line = list(self._whole)

    def _begin_next(self) -> None:
        self._tries = 0
        self._whole = self._waiting.popleft() if self._waiting else []
        self._line = list(self._whole)

    def due(self, party: str, step: str) -> Fault | None:
        """The fault that is ordered here, if any; it is struck off."""
        strike = next((each for each in self._line if each.startswith(f"{party} ")), "")
        if not strike.endswith(f": {step}"):
            return None
        self._line.remove(strike)
        return Fault(strike.removeprefix(f"{party} ").removesuffix(f": {step}"))


def by_chance(of: str) -> float:
    return int.from_bytes(hashlib.blake2b(of.encode(), digest_size=6).digest()) / 2**48


LIMIT_S = 250.0  # Below the deadline for an outage: nobody may wait for one to run out
QUIET_S = 20.0
"""After the newest fault every owner is back: a restart takes 8 s, an owner tries
within 5 s."""


class Recorded:
    """What an observer of every process and wire has seen, through all crashes."""

    def __init__(self) -> None:
        self.trace, self.faults = list[str](), list[str]()
        self.shares = defaultdict[Role, dict[int, bytes]](
            dict
        )  # Prepared noisy ones, by attempt
        self.left = defaultdict[Role, set[bytes]](
            set
        )  # Noisy shares that were put on the wire
        self.noise = defaultdict[Role, list[RingVector]](list)
        self.models = defaultdict[int, set[tuple[Role, Digest]]](set)
        self.spent = defaultdict[Role, Counter[tuple[int, int]]](Counter)
        # What a client's first submission for a round number holds, and all its
        # commitments.
        self.updates: dict[tuple[ClientId, int], RingVector] = {}
        self.pairs = defaultdict[tuple[ClientId, int], set[bytes]](set)
        self.given = defaultdict[int, set[Digest]](
            set
        )  # Models that owners got or were stated
        self.fetched: set[int] = set()  # Versions whose model an owner has
        self.stepped: set[int] = set()  # Versions that an owner made by a step
        self.words: list[str] = []  # What the operators were asked
        self.drawn = defaultdict[int, set[frozenset[ClientId]]](
            set
        )  # A version's cohorts
        # Attempts whose comparisons were opened, by version.
        self.opened = {role: defaultdict[int, set[int]](set) for role in SERVERS}
        self.results: dict[ClientId, Participation] = {}
        self.lost: set[ClientId] = set()  # Owners whose disk lost a kept update
        self.wasted: list[int] = []  # Came to nothing, long after the newest fault
        self.early: list[int] = []  # Models announced before both servers had them
        self.crossed: list[
            tuple[ClientId, str]
        ] = []  # What callers read of servers' errors
        self.misdeeds = Counter[str]()  # What strangers tried in vain, by kind
        # Versions tried once, long after the newest fault: which honest were drawn; who
        # counted.
        self.quiet: list[tuple[int, frozenset[ClientId], frozenset[ClientId]]] = []


def copy_model(source: Path, target: Path) -> None:
    for name in (MODEL, "model.seal"):
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy(source / name, target / name)


class World:
    calls: type[Calls] = Calls

    def __init__(
        self,
        task: Task,
        folder: Path,
        seed: int,
        *,
        faults: int = 0,
        chance: float = 0.0,
        restores: tuple[Role, ...] = (),
        bad: int = 0,
        strangers: int = 0,
        orders: Sequence[str] = (),
        slowest_start_s: float = 8.0,
    ) -> None:
        self.task, self.folder, self.seed = task, folder, seed
        self.turns = Turns(seed, LIMIT_S)
        self.clock = TurnsClock(self.turns, seed)
        self.seen = Recorded()
        enrolled = task.enrolment.clients - strangers
        self.clients = [ClientId(f"ward-{n}") for n in range(enrolled)]
        self.strangers = [ClientId(f"stranger-{n}") for n in range(strangers)]
        self.bad = set(self.clients[len(self.clients) - bad :])
        self.servers: dict[Role, Server] = {}
        # With proofs nobody deals, and nothing asks.
        self.dealer = cast(
            "DealerRole", DealerRole.of(task) if task.has_dealer else None
        )
        self.epoch = 0
        self.cables: list[Cable] = []
        self.orders = Orders(orders)
        self.validation: Callable[[Aggregator, Opened], Validation] = (
            Aggregator.in_process
        )
        self.clock_is_off: Callable[[str], timedelta] | None = (
            None  # By how much, by party
        )
        self._slowest_start_s, self._restores = slowest_start_s, list(restores)
        self._faults_left, self._chance = faults, chance
        self.cheaters: set[Role] = (
            set()
        )  # Servers whose word on a noisy share is worth nothing
        self.put_back_roles: list[
            Role
        ] = []  # Servers that started again with an older database
        self.times, self._tried = Counter[str](), Counter[int]()
        self._struck_at = -math.inf
        # By attempt: when it opened, after how many faults, with whom.
        self._opened: dict[int, tuple[float, int, frozenset[ClientId]]] = {}
        self._open: int | None = (
            None  # The newest attempt, until its model is announced
        )

    def run(self) -> None:
        for role in SERVERS:
            self._start(role.value, "training", partial(self._serve, role))
        for client in self.clients:
            self._start_client(client)
        for client in self.strangers:
            self._start(client.name, "main", partial(self._haunt, client))
        self.turns.spawn("operators", Life("operators"), self._operate)
        self.turns.run(self._over)

    def _over(self) -> bool:
        return self.servers_are_done() and len(self.seen.results) == len(self.clients)

    def servers_are_done(self) -> bool:
        there = [self.servers[role] for role in SERVERS if self.serving(role)]
        return [each.session.progress.phase for each in there] == [Phase.DONE] * 2

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        life = self.turns.life
        self.turns.check_alive()
        where = f"{life.party}: {name}"
        self.times[where] += 1
        self.seen.trace.append(where)
        which = f"{where} #{self.times[where]}"
        if self._restores and life.party in (role.value for role in SERVERS):
            self._copy(Role(life.party), which)
        fault = self.orders.due(life.party, name) or self._draw(which)
        if fault is not None:
            self._struck_at = self.turns.now
            self.seen.faults.append(f"{which}: {fault.value}")
            self._strike(fault, life)
        yield
        if fault is Fault.CRASH_AFTER:
            self._crash(life)
        self.turns.wait(lambda: True)

    def _draw(self, where: str) -> Fault | None:
        if self._faults_left == 0 or by_chance(f"{self.seed} {where}") >= self._chance:
            return None
        self._faults_left -= 1
        often = {
            Fault.CRASH_BEFORE: 4,
            Fault.CRASH_AFTER: 4,
            Fault.DISK: 12 * (" store." in where),
        }
        weights = dict.fromkeys(Fault, 1) | often
        random = Random(f"{self.seed} {where} fault")
        return random.choices(list(weights), list(weights.values()))[0]

    def _copy(self, role: Role, where: str) -> None:
        source = self.folder / role.value
        if (
            by_chance(f"{self.seed} backup {where}") > 0.02
            or not (source / "state.db").exists()
        ):
            return
        target = self.folder / f"{role.value}.copy"
        target.mkdir(exist_ok=True)
        if rows(source / "state.db", "SELECT COUNT(*) FROM enrolment")[0][0] < len(
            self.clients
        ):
            # Claims that were lost before version 0 are enrolled again, by whoever runs
            # it.
            return
        with (
            closing(sqlite3.connect(source / "state.db")) as database,
            closing(sqlite3.connect(target / "state.db")) as copy,
        ):
            database.backup(copy)
        copy_model(source, target)

    def coin_key(self, role: Role) -> CoinKey:
        return CoinKey(Secret(hashlib.sha256(f"{self.seed} {role}".encode()).digest()))

    def published(self, event: Event) -> None:
        if self.turns.life.party != Role.SERVER_A.value:
            return
        faults = len(self.seen.faults)

        def calm(attempt: int) -> bool:
            at, before, _ = self._opened[attempt]
            return at - self._struck_at > QUIET_S and before == faults

        if isinstance(event, RoundOpened):
            opened = event.opened
            self.orders.version_opened()
            self._tried[opened.version] += 1
            if self._open is not None and calm(self._open):
                self.seen.wasted.append(self._open)
            self._open = opened.attempt
            self.seen.drawn[opened.version].add(frozenset(opened.counted))
            self._opened[opened.attempt] = (
                self.turns.now,
                faults,
                opened.counted - self.bad,
            )
        elif isinstance(event, RoundDone):
            version, attempt = event.opened.version, event.opened.attempt
            held = [
                each.session.model_store.current.version
                for each in self.servers.values()
            ]
            if not self.put_back_roles and min(held) <= version:
                self.seen.early.append(version + 1)
            if attempt in self._opened:
                self._open = None
                if calm(attempt) and self._tried[version] == 1:
                    drawn = frozenset(self._opened[attempt][2])
                    self.seen.quiet.append((version, drawn, frozenset(event.valid)))

    def put_back(self, role: Role) -> None:
        copy, state = self.folder / f"{role.value}.copy", self.folder / role.value
        random = Random(f"{self.seed} restore {role} {len(self.seen.faults)}")
        if (
            role not in self._restores
            or not (copy / "state.db").exists()
            or random.random() < 0.3
        ):
            return
        self._restores.remove(role)
        self.put_back_roles.append(role)
        # New files: a connection that died with the process may still have the old
        # ones.
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (state / name).unlink(missing_ok=True)
        shutil.copy(copy / "state.db", state / "state.db")
        # Not beyond the ledger: who restores a model alone has no ledger that belongs
        # to it.
        how = "with" if random.random() < 0.5 else "without"
        if how == "with":
            copy_model(copy, state)
        self.seen.faults.append(f"{role.value}: restored {how} model")

    def _crash(self, life: Life) -> None:
        self.turns.kill(life)
        raise Killed

    def _strike(self, fault: Fault, life: Life) -> None:
        random = Random(f"{self.seed} {len(self.seen.faults)}")
        match fault:
            case Fault.CRASH_BEFORE:
                self._crash(life)
            case Fault.CUT:
                for cable in self.cables:
                    cable.cut()
            case Fault.SILENCE:
                for cable in self.cables:
                    cable.silent = True
            case Fault.DEALER if self.task.has_dealer:
                self.dealer = DealerRole.of(self.task)
                self.epoch += 1
            case Fault.DISK:
                raise StorageFailure("the disk fails")
            case Fault.DELAY:
                self.turns.sleep(random.uniform(0, 2 * self.task.deadlines.peer))
            case Fault.JUMP:
                life.clock_offset_s += random.uniform(
                    0, 2 * self.task.deadlines.collect
                )

    def _start(self, party: str, name: str, main: Callable[[Life], None]) -> None:
        """Now, and after each crash again a while later."""
        life = Life(party)
        delay = self._slowest_start_s * by_chance(
            f"{self.seed} {party} {len(self.seen.faults)}"
        )
        life.at_death.append(
            lambda: self.turns.at(delay, lambda: self._start(party, name, main))
        )
        self.seen.trace.append(f"{party}: starts")
        self.turns.spawn(f"{party}: {name}", life, partial(main, life))

    def _operate(self) -> None:
        """The operators of both servers let the training go on, whenever it asks."""
        while True:
            self.turns.sleep(1.0)
            for role in filter(self.serving, SERVERS):
                progress = self.servers[role].session.progress
                if (needs := progress.needs) is None:
                    continue
                word, version = needs.permission, needs.version
                self.seen.words.append(f"{role.value}: {word.value} {version}")
                until = progress.next_attempt + 2
                for each in self.servers.values():
                    if each.life.alive:
                        with self.turns.acting(each.life):
                            each.session.store.versions.allow(word, version, until)

    def _serve(self, role: Role, life: Life) -> None:
        server = self.servers[role] = Server(self, role, life)
        run_to_end(server.session, server.conduct)
        if server.session.progress.phase is Phase.STOPPED:
            self.stopped(server)

    def stopped(self, server: "Server") -> None:
        error = server.session.progress.error
        assert "disk" in error, f"{server.role.value} stopped: {error}"
        self._crash(server.life)

    def _start_client(self, client: ClientId) -> None:
        self._start(client.name, "main", partial(self._take_part, client))

    def _take_part(self, client: ClientId, life: Life) -> None:
        state = self.folder / client.name
        state.mkdir(exist_ok=True)
        if Random(f"{self.seed} {client} {len(self.seen.faults)} disk").random() < 0.2:
            # A disk that lost it: the round must be sat out.
            self.seen.lost.add(client)
            (state / "pending.bin").unlink(missing_ok=True)
        log = state / "participations.log"
        account = OwnAccount(self.task, self.task.privacy.record_rate, None, log)
        pending = Pending(self.task, client, state / "pending.bin")
        self.name_steps(account, "account", "charge")
        self.name_steps(pending, "pending", "keep", "drop")
        servers = self.calls(self, client, life)
        servers.enrol()
        statements = ServerStatements(self.task, client, state)
        self.seen.results[client] = Participant(
            servers=cast("Servers", servers),
            budget=account,
            pending=pending,
            compute=servers.compute,
            clock=self.clock,
            statements=statements,
        ).run()

    def _haunt(self, client: ClientId, life: Life) -> None:
        seed = f"{self.seed} {client} {len(self.seen.faults)} misdeeds"
        Stranger(self, client, life).haunt(Random(seed))

    def name_steps(self, target: object, prefix: str, *names: str) -> None:
        for name in names:
            # As a decorator it makes a new step for each call.
            setattr(target, name, self.step(f"{prefix}.{name}")(getattr(target, name)))

    def charges(self, role: Role) -> dict[int, set[str]]:
        return charges(self.folder / role.value / "state.db")

    def rounds(
        self, role: Role
    ) -> dict[int, tuple[str, int, bytes | None, bytes | None]]:
        query = (
            "SELECT attempt, state, version, valid_set, share FROM attempt "
            "LEFT JOIN noisy_share USING (attempt)"
        )
        found = rows(self.folder / role.value / "state.db", query)
        return {number: tuple(rest) for number, *rest in found}

    @contextmanager
    def peers(self, role: Role) -> Iterator[tuple[FrameTransport, Dealer]]:
        link = self.dial if role is Role.SERVER_A else self.servers[role].wait_for_link
        transport = link(self.task.deadlines.peer)
        try:
            yield (
                transport,
                DealerCalls(self, role) if self.task.has_dealer else NoDealer(),
            )
        finally:
            transport.close()

    def handshake(self, *parties: str) -> None:
        if self.clock_is_off is None:
            return
        shown = identity(Principal.service(Role.DEALER)).cert
        certificate = read_certificates(shown, source="the other side")[0]
        for party in parties:
            now = datetime.now(UTC) + self.clock_is_off(party)
            if fault := validity_fault(certificate, now):
                raise PeerUnavailable(f"{fault}, says {party}")

    def dial(self, timeout_s: float) -> "Transport":
        with self.step("dial"):
            pass
        if not self.turns.wait(lambda: self.serving(Role.SERVER_B), timeout_s):
            raise PeerUnavailable("server B isn't there")
        self.handshake(*(role.value for role in SERVERS))
        cable = Cable(self)
        self.cables = [cable]
        for life in (self.turns.life, self.servers[Role.SERVER_B].life):
            life.at_death.append(cable.break_at_death)
        self.servers[Role.SERVER_B].accept(Transport(self, cable, Role.SERVER_B))
        return Transport(self, cable, Role.SERVER_A)

    def serving(self, role: Role) -> bool:
        return role in self.servers and self.servers[role].life.alive
