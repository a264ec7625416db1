"""A whole training in one process, on the servers' and the client's real code, with faults.

Real: lead and follow, recovery, the round, validation, the stores (SQLite files), shelf, inbox,
register, the client's `take_part`, its account and its kept pair. Simulated: gRPC (the links, the
dealer's service, the clients' calls), time, threads (`turns.py`) and the noise (recorded, so that
sums can be checked). The coin keys come from the seed.

Every step of a party has a name. Whether a fault strikes there is decided by the seed, the party,
the step's name and how often the party has come to it, never by time.
"""

import functools
import hashlib
import math
import re
import shutil
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from tests.faults.misdeeds import Stranger
from tests.faults.turns import (
    Killed,
    Life,
    Turns,
    TurnsClock,
)
from tests.rig.keys import identity, signer, verifier
from tests.rig.submissions import body_of, reconstructed

from precad.client.connection import Receipt, Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import Participation, RoundView, take_part
from precad.client.pending import Pair, Pending
from precad.client.witness import Witness
from precad.common.aggregator.collect import Inbox, Upload
from precad.common.aggregator.enrol.register import Register
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.coin import CoinKey
from precad.common.aggregator.round.journal import AttemptState
from precad.common.aggregator.round.states import Opened
from precad.common.aggregator.service.limits import Call, Limits, OpenCalls
from precad.common.aggregator.service.notice import NOTICE_BYTES, notice_of
from precad.common.aggregator.service.statements import opening_of, statement_of
from precad.common.aggregator.store import Store, engine, open_store
from precad.common.aggregator.training.conduct import Dealer, Outside, in_process, run_to_end
from precad.common.aggregator.training.feed import Event, Feed, RoundDone, RoundOpened
from precad.common.aggregator.training.owners import give_back
from precad.common.aggregator.training.presence import Presence
from precad.common.aggregator.training.session import Phase, Session
from precad.common.aggregator.training.shelf import Shelf
from precad.common.aggregator.validate.validator import Validation
from precad.common.deal.dealer import DealerRole
from precad.common.deal.local import LocalDealing
from precad.common.deal.request import DealRequest
from precad.common.deal.squares import Squares
from precad.common.enrolment import Enrolment
from precad.common.errors import (
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    RejectedSubmission,
    Rejection,
    StorageFailure,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.principal import Principal
from precad.common.identity.sign import CertificateSigner
from precad.common.link import Frame, FrameTransport
from precad.common.model import from_bytes as model_from_bytes
from precad.common.model import model_digest
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.share.submission import Submission, shard
from precad.common.task import Task
from precad.common.wire.serving import told
from precad.common.wire.submission import header_from_wire, header_to_wire
from precad.protos import precad_pb2 as pb
from precad.server_a.lead import lead
from precad.server_b.follow import follow

RECORDS = 10
MODEL = "model.safetensors"
MODEL_FILES = (MODEL, "model.seal")
LIMIT_S = 250.0
"""Below the tests' deadline for an outage: nobody may need to wait for one to run out."""
QUIET_S = 20.0
"""After the newest fault every owner is back: a restart takes 8 s, an owner tries within 5 s."""
SERVERS = (Role.SERVER_A, Role.SERVER_B)
STORE_STEPS = (
    "claim",
    "freeze",
    "keep_commitment",
    "keep_opening",
    "begin_attempt",
    "abandon_open",
    "count_opened",
    "raise_opened",
    "spend",
    "prepare",
    "countersign",
    "sent",
    "keep_model_seal",
    "finish_attempt",
    "void",
    "learn",
    "hear",
    "charge_unknown",
)


class Fault(Enum):
    """What can go wrong at a step."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CUT = "cut"
    """The servers' link breaks, and both notice."""
    SILENCE = "silence"
    """The servers' link swallows everything from now on."""
    DEALER = "dealer restarts"
    DISK = "disk fails"
    """A write to a server's database fails: it stops, and is started again."""
    DELAY = "delay"
    JUMP = "clock jump"
    """This party's monotonic clock leaps, as after a suspended machine."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault that is ordered: at the next time that a party comes to a step."""

    party: str
    fault: Fault
    step: str

    @classmethod
    def parse(cls, text: str) -> "Strike":
        """From ``"server-a crash after: store.prepare"``."""
        who, _, step = text.partition(": ")
        party, _, fault = who.partition(" ")
        return cls(party, Fault(fault), step)

    def __str__(self) -> str:
        return f"{self.party} {self.fault.value}: {self.step}"


class Orders:
    """Lines of faults that belong together; a line is in force when the last one is over.

    A party's strikes fall in their order, those of different parties independently. Once all have
    fallen, and a version was opened after that, the next line is in force. Where a version is
    opened before all have fallen, what they wait for didn't come of it this time (the other server
    was quicker, say): then the whole line is in force again, ``MOST_TRIES`` times.
    """

    MOST_TRIES = 12

    def __init__(self, lines: Sequence[str]) -> None:
        self._waiting = deque([Strike.parse(text) for text in line.split(", ")] for line in lines)
        self._whole: list[Strike] = []
        self._line: list[Strike] = []
        self._begin_next()

    @property
    def open(self) -> list[str]:
        """What hasn't fallen yet."""
        return [str(strike) for line in (self._line, *self._waiting) for strike in line]

    def version_opened(self) -> None:
        """A server has opened a version, or the same one again."""
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
        strike = next((each for each in self._line if each.party == party), None)
        if strike is None or strike.step != step:
            return None
        self._line.remove(strike)
        return strike.fault


WEIGHTS = {
    Fault.CRASH_BEFORE: 4,
    Fault.CRASH_AFTER: 4,
    Fault.CUT: 1,
    Fault.SILENCE: 1,
    Fault.DEALER: 1,
    Fault.DISK: 12,
    Fault.DELAY: 1,
    Fault.JUMP: 1,
}


@dataclass(slots=True)
class Recorded:
    """What an observer of every process and wire has seen, through all crashes."""

    trace: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    shares: dict[Role, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """Prepared noisy shares by attempt."""
    left: dict[Role, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """Noisy shares that were put on the wire."""
    noise: dict[Role, list[RingVector]] = field(default_factory=lambda: defaultdict(list))
    models: dict[int, set[tuple[Role, Digest]]] = field(default_factory=lambda: defaultdict(set))
    spent: dict[Role, Counter[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    updates: dict[tuple[ClientId, int], RingVector] = field(default_factory=dict)
    """What a client's first submission for a round number holds."""
    given: dict[int, set[Digest]] = field(default_factory=lambda: defaultdict(set))
    """Models that owners were given, or that a server has stated to them."""
    words: list[str] = field(default_factory=list)
    """What the operators were asked."""
    pairs: dict[tuple[ClientId, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """Commitments of what a client sent for a round number."""
    drawn: dict[int, set[frozenset[ClientId]]] = field(default_factory=lambda: defaultdict(set))
    """Cohorts of a version's attempts."""
    opened: dict[Role, dict[int, set[int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    """Attempts whose comparisons were opened, by version."""
    results: dict[ClientId, Participation] = field(default_factory=dict)
    lost: set[ClientId] = field(default_factory=set)
    """Owners whose disk lost a kept update."""
    wasted: list[int] = field(default_factory=list)
    """Attempts that came to nothing, long after the newest fault."""
    early: list[int] = field(default_factory=list)
    """Models that owners heard of before both servers had them."""
    crossed: list[tuple[ClientId, str]] = field(default_factory=list)
    """What callers read of servers' errors."""
    misdeeds: Counter[str] = field(default_factory=Counter)
    """What strangers tried in vain, by kind."""
    quiet: list[tuple[int, frozenset[ClientId], frozenset[ClientId]]] = field(default_factory=list)
    """Versions tried once, long after the newest fault: which honest owners were drawn, and who
    counted."""


class World:
    """One training under one schedule of faults.

    Args:
        task: small.
        folder: durable state of all parties.
        seed: decides turns and faults.
        faults: most faults in the run.
        chance: of a fault at a step, while there are some left.
        restores: servers whose database is put back from an older copy, each once: the model file
            comes back with it or stays, by the seed. The journal outside stays.
        bad: how many of the task's clients do whatever may harm others.
        strangers: how many others enrol badly and haunt the servers' doors (``misdeeds.py``).
        orders: faults that strike where they are ordered (``Orders``), beside those by chance.
        slowest_start_s: a party that died is back after so many virtual seconds at most.
    """

    def __init__(
        self,
        task: Task,
        folder: Path,
        seed: int,
        *,
        faults: int,
        chance: float,
        restores: tuple[Role, ...] = (),
        bad: int = 0,
        strangers: int = 0,
        orders: Sequence[str] = (),
        slowest_start_s: float = 8.0,
    ) -> None:
        self.task = task
        self.folder = folder
        self.seed = seed
        self.turns = Turns(seed, LIMIT_S)
        self.clock = TurnsClock(self.turns, seed)
        self.seen = Recorded()
        enrolled = task.enrolment.clients - strangers
        self.clients = [ClientId(f"ward-{n}") for n in range(enrolled)]
        self.strangers = [ClientId(f"stranger-{n}") for n in range(strangers)]
        self.bad = set(self.clients[len(self.clients) - bad :])
        self.servers: dict[Role, Server] = {}
        self.dealer = DealerRole.of(task)
        self.epoch = 0
        self.cables: list[Cable] = []
        self.orders = Orders(orders)
        self.validation: Callable[[Aggregator, Opened], Validation] = in_process
        self._slowest_start_s = slowest_start_s
        self._faults_left = faults
        self._restores = list(restores)
        self.cheaters: set[Role] = set()
        """Servers whose word on a noisy share is worth nothing."""
        self.put_back_roles: list[Role] = []
        """Servers that started again with an older database."""
        self._chance = chance
        self.times: Counter[str] = Counter()
        self._lives: dict[str, Life] = {}
        self._struck_at = -math.inf
        self._opened: dict[int, tuple[float, int, frozenset[ClientId]]] = {}
        """By attempt: when it opened, after how many faults, with whom."""
        self._open: int | None = None
        """The newest attempt, until its model is announced."""
        self._tried: Counter[int] = Counter()

    def run(self) -> None:
        """Start every party and play until all have ended well."""
        for role in SERVERS:
            self._start_server(role)
        for client in self.clients:
            self._start_client(client)
        for client in self.strangers:
            self._start_stranger(client)
        self.turns.spawn("operators", Life("operators"), self._operate)
        self.turns.run(self._over)

    def _over(self) -> bool:
        both = all(
            role in self.servers
            and self.servers[role].life.alive
            and self.servers[role].session.progress.phase is Phase.DONE
            for role in SERVERS
        )
        return both and len(self.seen.results) == len(self.clients)

    # --- steps and faults ----------------------------------------------------------------------

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """One named step of the current thread's party."""
        life = self.turns.life
        self.turns.check_alive()
        where = f"{life.party}: {name}"
        self.times[where] += 1
        self.seen.trace.append(where)
        if self._restores and life.party in (role.value for role in SERVERS):
            self._copy(Role(life.party), f"{where} #{self.times[where]}")
        fault = self.orders.due(life.party, name)
        if fault is None:
            fault = self._draw(f"{where} #{self.times[where]}")
        else:
            self._struck_at = self.turns.now
            self.seen.faults.append(f"{where} #{self.times[where]}: {fault.value}")
        if fault is Fault.CRASH_BEFORE:
            self._crash(life)
        if fault is not None:
            self._strike(fault, life)
        yield
        if fault is Fault.CRASH_AFTER:
            self._crash(life)
        self.turns.hand_on()

    def _draw(self, where: str) -> Fault | None:
        if self._faults_left == 0 or by_chance(f"{self.seed} {where}") >= self._chance:
            return None
        random = Random(f"{self.seed} {where} fault")
        self._faults_left -= 1
        self._struck_at = self.turns.now
        weights = WEIGHTS | ({} if " store." in where else {Fault.DISK: 0})
        fault = random.choices(list(weights), list(weights.values()))[0]
        self.seen.faults.append(f"{where}: {fault.value}")
        return fault

    def _copy(self, role: Role, where: str) -> None:
        """Now and then somebody backs a server's state up."""
        source = self.folder / role.value
        if by_chance(f"{self.seed} backup {where}") > 0.02 or not (source / "state.db").exists():
            return
        target = self.folder / f"{role.value}.copy"
        target.mkdir(exist_ok=True)
        with closing(sqlite3.connect(source / "state.db")) as database:
            enrolled = database.execute("SELECT COUNT(*) FROM enrolment").fetchone()[0]
            if enrolled < len(self.clients):
                # Claims that were lost before version 0 are enrolled again, by whoever runs it.
                return
            with closing(sqlite3.connect(target / "state.db")) as copy:
                database.backup(copy)
        for name in MODEL_FILES:
            (target / name).unlink(missing_ok=True)
            if (source / name).exists():
                shutil.copy(source / name, target / name)

    def coin_key(self, role: Role) -> CoinKey:
        """A server's, from the seed."""
        return CoinKey(Secret(hashlib.sha256(f"{self.seed} {role}".encode()).digest()))

    def published(self, event: Event) -> None:
        """A server has told its clients something; a test may act on it."""
        if self.turns.life.party != Role.SERVER_A.value:
            return
        faults = len(self.seen.faults)
        if isinstance(event, RoundOpened):
            self.orders.version_opened()
            self._tried[event.opened.version] += 1
            if (open_one := self._open) is not None:
                at, before, _ = self._opened[open_one]
                if at - self._struck_at > QUIET_S and before == faults:
                    self.seen.wasted.append(open_one)
            self._open = event.opened.attempt
            self.seen.drawn[event.opened.version].add(frozenset(event.cohort))
            honest = event.cohort - self.bad
            self._opened[event.opened.attempt] = self.turns.now, faults, honest
            return
        if isinstance(event, RoundDone) and not self.put_back_roles:
            held = [each.session.shelf.current.version for each in self.servers.values()]
            if min(held) <= event.opened.version:
                self.seen.early.append(event.opened.version + 1)
        if isinstance(event, RoundDone) and event.opened.attempt in self._opened:
            self._open = None
            at, before, drawn = self._opened[event.opened.attempt]
            version = event.opened.version
            calm = at - self._struck_at > QUIET_S and before == faults
            if calm and self._tried[version] == 1:
                self.seen.quiet.append((version, frozenset(drawn), frozenset(event.valid)))

    def put_back(self, role: Role) -> None:
        """A server starts again with an older copy of its database, and maybe of its model."""
        copy, state = self.folder / f"{role.value}.copy", self.folder / role.value
        random = Random(f"{self.seed} restore {role} {len(self.seen.faults)}")
        if role not in self._restores or not (copy / "state.db").exists() or random.random() < 0.3:
            return
        self._restores.remove(role)
        self.put_back_roles.append(role)
        # New files: a connection that died with the process may still have the old ones.
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (state / name).unlink(missing_ok=True)
        shutil.copy(copy / "state.db", state / "state.db")
        # Not beyond the ledger: who restores a model alone has no ledger that belongs to it.
        with_model = random.random() < 0.5
        if with_model:
            for name in MODEL_FILES:
                (state / name).unlink(missing_ok=True)
                if (copy / name).exists():
                    shutil.copy(copy / name, state / name)
        self.seen.faults.append(
            f"{role.value}: restored {'with' if with_model else 'without'} model"
        )

    def _crash(self, life: Life) -> None:
        self.turns.kill(life)
        raise Killed

    def _strike(self, fault: Fault, life: Life) -> None:
        random = Random(f"{self.seed} {len(self.seen.faults)}")
        if fault is Fault.CUT:
            for cable in self.cables:
                cable.cut()
        elif fault is Fault.SILENCE:
            for cable in self.cables:
                cable.silent = True
        elif fault is Fault.DEALER:
            self.dealer = DealerRole.of(self.task)
            self.epoch += 1
        elif fault is Fault.DISK:
            raise StorageFailure("the disk fails")
        elif fault is Fault.DELAY:
            self.turns.sleep(random.uniform(0, 2 * self.task.deadlines.peer))
        elif fault is Fault.JUMP:
            life.clock_offset_s += random.uniform(0, 2 * self.task.deadlines.collect)

    def born(self, party: str, restart: Callable[[], None]) -> Life:
        """A party starts; after a crash it starts again a while later."""
        life = self._lives[party] = Life(party)
        delay = self._slowest_start_s * by_chance(f"{self.seed} {party} {len(self.seen.faults)}")
        life.at_death.append(lambda: self.turns.at(delay, restart))
        self.seen.trace.append(f"{party}: starts")
        return life

    def _operate(self) -> None:
        """The operators of both servers let the training go on, whenever it asks."""
        while True:
            self.turns.sleep(1.0)
            for role in SERVERS:
                if self.serving(role):
                    session = self.servers[role].session
                    if (needs := session.progress.needs) is not None:
                        until = session.progress.next_attempt + 2
                        self.seen.words.append(f"{role.value}: {needs.word.value} {needs.version}")
                        for each in self.servers.values():
                            if each.life.alive:
                                with self.turns.acting(each.life):
                                    each.session.store.allow(needs.word, needs.version, until)

    # --- parties -------------------------------------------------------------------------------

    def _start_server(self, role: Role) -> None:
        life = self.born(role.value, lambda: self._start_server(role))

        def main() -> None:
            server = self.servers[role] = Server(self, role, life)
            run_to_end(server.session, server.conduct)
            if server.session.progress.phase is Phase.STOPPED:
                self.stopped(server)

        self.turns.spawn(f"{role.value}: training", life, main)

    def stopped(self, server: "Server") -> None:
        """A server gave up. Where its disk failed its operator starts it again."""
        error = server.session.progress.error
        assert "disk" in error, f"{server.role.value} stopped: {error}"
        self._crash(server.life)

    def _start_client(self, client: ClientId) -> None:
        life = self.born(client.name, lambda: self._start_client(client))

        def main() -> None:
            state = self.folder / client.name
            state.mkdir(exist_ok=True)
            if Random(f"{self.seed} {client} {len(self.seen.faults)} disk").random() < 0.2:
                # A disk that lost it: the round must be sat out.
                self.seen.lost.add(client)
                (state / "pending.bin").unlink(missing_ok=True)
            rate = self.task.privacy.record_rate
            budget = OwnAccount(self.task, rate, None, state / "participations.log")
            pending = Pending(self.task, client, state / "pending.bin")
            self.name_steps(budget, "account", ("charge",))
            self.name_steps(pending, "pending", ("keep", "drop"))
            servers = self.calls_of(client, life)
            servers.enrol()
            connection = cast("Servers", servers)
            result = take_part(
                connection,
                budget,
                pending,
                servers.compute,
                clock=self.clock,
                witness=Witness(self.task, client, state),
            )
            self.seen.results[client] = result

        self.turns.spawn(f"{client}: main", life, main)

    def calls_of(self, client: ClientId, life: Life) -> "Calls":
        """A client's way to the servers."""
        return Calls(self, client, life)

    def _start_stranger(self, client: ClientId) -> None:
        life = self.born(client.name, lambda: self._start_stranger(client))
        claim = Enrolment(client, RECORDS, self.task.privacy.record_rate)
        random = Random(f"{self.seed} {client} {len(self.seen.faults)} misdeeds")
        stranger = Stranger(Calls(self, client, life), claim, random)
        self.turns.spawn(f"{client}: main", life, stranger.haunt)

    def name_steps(self, target: object, prefix: str, names: tuple[str, ...]) -> None:
        """Let calls of these methods be steps."""
        for name in names:
            setattr(target, name, self._named(f"{prefix}.{name}", getattr(target, name)))

    def _named(self, step: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            with self.step(step):
                return method(*args, **keywords)

        return call

    # --- what tests ask ------------------------------------------------------------------------

    def charges(self, role: Role) -> dict[int, set[str]]:
        """Each attempt's charged clients, from the database file itself; voided ones aren't."""
        charges: dict[int, set[str]] = defaultdict(set)
        query = (
            "SELECT charge.attempt, client FROM charge JOIN attempt "
            "ON attempt.attempt = charge.attempt WHERE state != 'voided'"
        )
        with sqlite3.connect(self.folder / role.value / "state.db") as database:
            for number, client in database.execute(query):
                charges[number].add(client)
        return charges

    def rounds(self, role: Role) -> dict[int, tuple[str, int, bytes | None, bytes | None]]:
        """(state, version, valid set, noisy share) of each attempt, from the database file."""
        with sqlite3.connect(self.folder / role.value / "state.db") as database:
            rows = database.execute(
                "SELECT attempt, state, version, valid_set, share FROM attempt "
                "LEFT JOIN noisy_share USING (attempt)"
            )
            return {number: tuple(rest) for number, *rest in rows}

    @contextmanager
    def peers(self, role: Role) -> Iterator[tuple[FrameTransport, Dealer]]:
        """The other server's link and the dealer."""
        link = self.dial if role is Role.SERVER_A else self.servers[role].wait_for_link
        transport = link(self.task.deadlines.peer)
        try:
            yield transport, DealerCalls(self, role)
        finally:
            transport.close()

    def dial(self, timeout_s: float) -> "Transport":
        """A's link to B, once B serves."""
        with self.step("dial"):
            pass
        if not self.turns.wait(lambda: self.serving(Role.SERVER_B), timeout_s):
            raise PeerUnavailable("server B isn't there")
        cable = Cable(self)
        self.cables = [cable]
        for life in (self.turns.life, self.servers[Role.SERVER_B].life):
            life.at_death.append(cable.break_at_death)
        self.servers[Role.SERVER_B].accept(Transport(self, cable, Role.SERVER_B))
        return Transport(self, cable, Role.SERVER_A)

    def serving(self, role: Role) -> bool:
        """Whether this server's port answers."""
        return role in self.servers and self.servers[role].life.alive


class Server:
    """One start of a server: a session as `process` makes it."""

    def __init__(self, world: World, role: Role, life: Life) -> None:
        self.world = world
        self.role = role
        self.life = life
        folder = world.folder / role.value
        folder.mkdir(exist_ok=True)
        world.put_back(role)
        outside = world.folder / f"{role.value}.journal"
        with compiled_once():
            store = open_store(f"sqlite:///{folder / 'state.db'}", world.task, role, outside)
        life.at_death.append(store.close)
        self._observe(store)
        shelf = Shelf(world.task, folder / MODEL)
        world.name_steps(shelf, "shelf", ("put",))
        world.seen.models[shelf.current.version].add((role, shelf.current.digest))
        box = Inbox(role, world.task, verifier(), folder / "spool", clock=world.clock)
        world.name_steps(box, "inbox", ("open", "close"))
        self.feed = Notices(world)
        self.calls = OpenCalls(Limits(), world.clock)
        self.session = Session(
            role=role,
            task=world.task,
            identity=identity(Principal.service(role)),
            store=store,
            signer=CertificateSigner(identity(Principal.service(role))),
            verifier=verifier(),
            coin_key=world.coin_key(role),
            inbox=box,
            register=Register(world.task, store, clock=world.clock),
            presence=Presence(world.task.deadlines.rejoin, world.clock),
            shelf=shelf,
            feed=cast("Feed", self.feed),
            clock=world.clock,
        )
        self._links: deque[Transport] = deque()
        self._current: Transport | None = None

    def conduct(self, session: Session) -> None:
        """The training, as this server's process conducts it."""
        try:
            world, role = self.world, self.role
            outside = Outside(lambda: world.peers(role), Noise(world), world.validation)
            (lead if role is Role.SERVER_A else follow)(session, outside)
        except PrecadError:
            raise
        except Exception as bug:
            # The process would only log it.
            self.world.turns.failure = bug
            raise

    def accept(self, transport: "Transport") -> None:
        """As `PeerService.Link`: the newest link takes the older one's place."""
        if self._current is not None:
            self._current.cable.cut()
        self._current = transport
        self._links.append(transport)

    def wait_for_link(self, timeout_s: float) -> "Transport":
        """As `PeerService.reach`."""
        if not self.world.turns.wait(lambda: bool(self._links), timeout_s):
            raise PeerUnavailable("server A didn't connect")
        link = self._links.pop()
        self._links.clear()
        return link

    def _observe(self, store: Store) -> None:
        seen, role = self.world.seen, self.role
        spend, prepare, finish = store.spend, store.prepare, store.finish_attempt
        count = store.count_opened

        def observed_count(version: int, attempt: int) -> int:
            counted = count(version, attempt)
            seen.opened[role][version].add(attempt)
            return counted

        def observed_spend(number: int, batch: int) -> None:
            spend(number, batch)
            seen.spent[role][number, batch] += 1

        def observed_prepare(number: int, *args: Any) -> None:
            prepare(number, *args)
            assert number not in seen.shares[role], f"{role.value} prepared {number} twice"
            # A server adds to its own vector later.
            seen.shares[role][number] = bytes(args[-1])

        def observed_finish(number: int, model: Digest) -> None:
            finish(number, model)
            state, version, *_ = self.world.rounds(role)[number]
            if state == AttemptState.DONE.value:
                seen.models[version + 1].add((role, model))

        changed = cast("Any", store)
        changed.spend, changed.prepare = observed_spend, observed_prepare
        changed.finish_attempt, changed.count_opened = observed_finish, observed_count
        self.world.name_steps(store, "store", STORE_STEPS)


_COMPILED: dict[Any, Any] = {}


@contextmanager
def compiled_once() -> Iterator[None]:
    """Engines that are made in the block share their compiled statements.

    A server that starts again has a new engine, and SQLAlchemy compiles all statements anew for
    each: a fifth of a simulated training. Its cache is by dialect, so all of SQLite's are alike.
    """
    made = cast("Any", engine).create_engine
    dialect = cast("Any", SQLiteDialect_pysqlite)
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    dialect.__hash__ = lambda self: hash(type(self))
    shared = functools.partial(made, execution_options={"compiled_cache": _COMPILED})
    try:
        cast("Any", engine).create_engine = shared
        yield
    finally:
        cast("Any", engine).create_engine = made


class Notices:
    """Stands in for the feed: events as A's clients see them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        """Append an event."""
        with self._world.step(f"publish {type(event).__name__}"):
            self.events.append(event)
        self._world.published(event)


class Noise:
    """Small integers, recorded."""

    def __init__(self, world: World) -> None:
        self._world = world

    def draw(self, dimension: int) -> RingVector:
        """Fresh noise, ``[d] int64``."""
        role = Role(self._world.turns.life.party)
        drawn = self._world.seen.noise[role]
        noise = np.random.default_rng([self._world.seed, role is Role.SERVER_A, len(drawn)])
        drawn.append(noise.integers(-(2**20), 2**20, dimension, dtype=np.int64))
        # Whoever draws may change the vector, and does.
        return drawn[-1].copy()


class Cable:
    """One link between A and B."""

    def __init__(self, world: World) -> None:
        self._random = Random(f"{world.seed} cable {len(world.seen.trace)}")
        self.frames: dict[Role, deque[Frame]] = {role: deque() for role in SERVERS}
        """On their way to that role."""
        self.broken = False
        self.silent = False

    def cut(self) -> None:
        """Both ends notice once they have read what had arrived."""
        self.broken = True

    def break_at_death(self) -> None:
        """A process died: what was still on the way may be lost, from some frame on."""
        self.broken = True
        for frames in self.frames.values():
            for _ in range(self._random.randint(0, len(frames))):
                frames.pop()


def by_chance(of: str) -> float:
    """From 0 to 1, the same each time for the same text; a hundred times as quick as ``Random``."""
    return int.from_bytes(hashlib.blake2b(of.encode(), digest_size=6).digest()) / 2**48


def named(frame: Frame) -> str:
    """The frame's step without what is random in it."""
    return re.sub(r"/[0-9a-f]{16}", "", frame.step)


class Transport:
    """One end of a cable."""

    def __init__(self, world: World, cable: Cable, role: Role) -> None:
        self._world = world
        self.cable = cable
        self._role = role
        self._other = Role.SERVER_B if role is Role.SERVER_A else Role.SERVER_A

    def put(self, frame: Frame) -> None:
        """Send one frame."""
        with self._world.step(f"send {named(frame)}"):
            if frame.step == "noisy-share":
                self._check_release(bytes(frame.payload))
            if not (self.cable.broken or self.cable.silent):
                self.cable.frames[self._other].append(frame)

    def get(self, timeout_s: float) -> Frame:
        """The next frame. Raises PeerUnavailable."""
        frames = self.cable.frames[self._role]
        self._world.turns.wait(lambda: bool(frames) or self.cable.broken, timeout_s)
        if frames:
            frame = frames.popleft()
            with self._world.step(f"receive {named(frame)}"):
                return frame
        if self.cable.broken:
            raise PeerUnavailable("the link is broken")
        raise PeerUnavailable("the other server sent nothing in time")

    def require_alive(self) -> None:
        """Raises PeerUnavailable."""
        if self.cable.broken:
            raise PeerUnavailable("the link is broken")

    def close(self) -> None:
        """End the stream."""
        self.cable.cut()

    def _check_release(self, share: bytes | memoryview) -> None:
        """What leaves is what was persisted, and both servers have charged for it."""
        seen = self._world.seen
        seen.left[self._role].add(bytes(share))
        if self._role in self._world.cheaters:
            return
        numbers = [n for n, released in seen.shares[self._role].items() if released == share]
        assert len(numbers) == 1, "bytes left that are no round's persisted share"
        assert numbers[0] in seen.shares[self._other], "a share left before both had charged"


class DealerCalls:
    """A server's way to the dealer."""

    def __init__(self, world: World, role: Role) -> None:
        self._world = world
        self._role = role
        self._epoch = -1
        self.bytes_received = 0

    @property
    def newest_attempt(self) -> int:
        return self._world.dealer.newest_attempt

    @property
    def epoch(self) -> bytes:
        return self._epoch.to_bytes(8, "big")

    def join(self) -> Secret:
        """This server's key."""
        with self._world.step("dealer.join"):
            self._epoch = self._world.epoch
            return self._world.dealer.key_for(self._role)

    def deal(self, request: DealRequest) -> RingVector:
        """Correction words; a dealer that restarted since has no keys for them."""
        with self._world.step("dealer.deal"):
            if self._epoch != self._world.epoch:
                raise PeerUnavailable("the dealer has restarted since; join again")
            return self._world.dealer.corrections(self._role, request)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[Squares]:
        """A conversation with the dealer of the moment."""
        with self._world.step("dealer.squares"):
            if self._epoch != self._world.epoch:
                raise PeerUnavailable("the dealer has restarted since; join again")
            dealer, patience_s = self._world.dealer, self._world.task.deadlines.peer
        local = LocalDealing(dealer, self._role, patience_s, self._world.clock)
        with local.squares(attempt) as conversation:
            yield conversation


class Calls:
    """Stands in for `Servers`: a client's calls, straight to the sessions."""

    def __init__(self, world: World, client: ClientId, life: Life) -> None:
        self.task = world.task
        self.client = client
        self.verifier = verifier()
        self.world = world
        self._world = world
        self._life = life
        self._last: Pair | None = None

    def enrol(self) -> None:
        """At B and then at A, waiting for each."""
        claim = Enrolment(self.client, RECORDS, self.task.privacy.record_rate)
        for role in reversed(SERVERS):
            self._until_answered(role, lambda server: server.session.register.enrol(claim))

    def watch(self) -> Iterator[pb.Notice]:
        """As A's Watch: the newest event, then those that follow."""
        world = self._world
        with world.step("watch"):
            server = self._server(Role.SERVER_A)
        events = server.feed.events
        at = max(0, len(events) - 1)
        caller = Principal.client(self.client.name)
        with server.calls.one_more(caller, Call.WATCH), self._present(server):
            while True:
                self._wait_for(server, at)
                if not server.life.alive:
                    raise PeerUnavailable("server A is gone")
                notice = notice_of(events[at], self.client)
                assert notice.ByteSize() == NOTICE_BYTES
                at += 1
                with world.step(f"notice {notice.WhichOneof('event')}"):
                    pass
                yield notice

    def fetch_model(
        self, version: int, announced: bytes, *, signed: bool = False
    ) -> NDArray[np.float64]:
        """θ_t from A, its digest from both."""
        at_b = announced
        with self._world.step("fetch"), self._hearing():
            if not signed:
                at_b = self._server(Role.SERVER_B).session.shelf.get(version).digest.value
            model = self._server(Role.SERVER_A).session.shelf.get(version)
            theta = model_from_bytes(b"".join(model.pieces(1 << 17)), self.task.dimension)
        digest = model_digest(self.task.digest, version, self.task.model.parameters, theta)
        if not digest.value == announced == at_b:
            raise PeerViolation(f"the servers show different models of version {version}")
        self._world.seen.given[version].add(digest)
        return theta

    def opening(self, role: Role, attempt: int) -> pb.Signed:
        """As the servers' Opening."""
        with self._world.step(f"opening {role.value}"):
            server = self._server(role)
        with self._handled_by(server):
            return opening_of(server.session, self.client, attempt)

    def give_back(self, role: Role, shown: pb.Signed, theta: bytes) -> None:
        """As the servers' GiveBack."""
        with self._world.step(f"give back to {role.value}"):
            server = self._server(role)
        with self._handled_by(server):
            model = model_from_bytes(theta, self.task.dimension)
            give_back(server.session, self.client, shown, model)

    def statement(
        self, role: Role, shown: pb.Signed | None, opening: pb.Signed | None
    ) -> pb.Signed:
        """As the servers' Statement."""
        with self._world.step(f"statement {role.value}"):
            server = self._server(role)
        with self._handled_by(server):
            signed = statement_of(server.session, self.client, shown, opening)
        body = pb.StatementBody.FromString(signed.body)
        self._world.seen.given[body.version].add(Digest(body.model_digest))
        return signed

    def _forged(self, view: RoundView) -> RingVector:
        """Vectors that a careless check takes: squares that wrap, far too long, just too long."""
        d, bound = self.task.dimension, self.task.bound
        random = Random(f"{self._world.seed} {self.client} {view.attempt} forged")
        vector = np.zeros(d, dtype=np.int64)
        vector[: random.randint(1, d)] = random.choice(
            [2**32, -(2**63), 3 * 2**33, bound + 1, 64 * bound, 2 * bound]
        )
        return vector

    def compute(self, view: RoundView) -> RingVector:
        """A fresh random update: another one each time, as a fresh sample of records is."""
        with self._world.step("compute"):
            times = self._world.times[f"{self.client}: compute"]
        if self.client in self._world.bad:
            return self._forged(view)
        name = self._world.clients.index(self.client)
        fresh = np.random.default_rng([self._world.seed, name, view.attempt, times])
        return fresh.integers(-(2**20), 2**20, self.task.dimension, dtype=np.int64)

    def prepare(self, version: int, round_number: int, model: Digest, x: RingVector) -> Pair:
        """As `Servers.prepare`."""
        return shard(
            x,
            task=self.task.digest,
            version=version,
            attempt=round_number,
            client=self.client,
            model=model,
            signer=signer(self.client),
            words=self.task.words_in_headers,
        )

    def submit(self, pair: Pair, timeout_s: float) -> tuple[Receipt, Receipt]:
        """Both uploads in some order; sometimes one twice, sometimes an old one again."""
        context = pair[0].context
        seen, world = self._world.seen, self._world
        random = Random(f"{world.seed} {self.client} {context.attempt}")
        deadline = world.turns.now + timeout_s
        # Recorded before a byte leaves.
        seen.pairs[self.client, context.attempt].add(pair[0].header.whole_digest.value)
        seen.updates[self.client, context.attempt] = reconstructed(pair, self.task.dimension)
        uploads = random.sample(pair, 2)
        if random.random() < 0.2:
            uploads.insert(random.randrange(3), random.choice(pair))
        if self._last is not None and random.random() < 0.2:
            self._replay(random.choice(self._last))
        if self.client in world.bad:
            uploads = self._misdeed(random, pair, uploads)
        receipts = {each.role: self._send(each, deadline) for each in uploads}
        for each in pair:
            receipts.setdefault(each.role, Receipt(each.role, None, ""))
        self._last = pair
        return receipts[Role.SERVER_A], receipts[Role.SERVER_B]

    def _misdeed(self, random: Random, pair: Pair, uploads: list[Submission]) -> list[Submission]:
        """Half a pair, halves of two pairs, the last attempt's, nothing at all; or as it is."""
        kind = random.randrange(6)
        if kind == 0:
            return [random.choice(pair)]
        if kind == 1:
            other = self.prepare(
                pair[0].context.version,
                pair[0].context.attempt,
                pair[0].context.model,
                np.ones(self.task.dimension, np.int64),
            )
            return [pair[0], other[1]]
        if kind == 2:
            return []
        if kind == 3 and self._last is not None:
            return [*self._last, *uploads]
        return uploads

    def _replay(self, old: Submission) -> None:
        try:
            receipt = self._upload(old)
        except PeerUnavailable:
            return
        assert receipt.rejection is Rejection.WRONG_ATTEMPT, "a replay was taken"

    def _send(self, submission: Submission, deadline: float) -> Receipt:
        """As `Servers._send`."""
        world = self._world
        while True:
            with world.step(f"submit {submission.role.value}"):
                pass
            if world.turns.now >= deadline:
                raise PeerUnavailable("no submission was taken before the deadline")
            try:
                return self._upload(submission)
            except PeerUnavailable:
                world.turns.sleep(0.5)

    def _upload(self, submission: Submission) -> Receipt:
        """As the servers' Submit."""
        role = submission.role
        server = self._server(role)
        box = server.session.inbox
        body = body_of(submission)
        half = len(body) // 2
        with self._handled_by(server):
            upload: Upload | None = None
            try:
                upload = box.start(header_from_wire(header_to_wire(submission), role))
                upload.add(body[:half])
                with self._world.turns.acting(self._life), self._world.step("half an upload"):
                    pass
                upload.add(body[half:])
                upload.finish()
            except RejectedSubmission as rejected:
                return Receipt(role, rejected.reason, rejected.detail)
            finally:
                if upload is not None and not upload.complete:
                    upload.abandon()
                    if server.life.alive:
                        box.refuse(upload.context.attempt, self.client, Rejection.TRUNCATED)
        return Receipt(role, None, "")

    def _until_answered(self, role: Role, call: Callable[["Server"], object]) -> None:
        world = self._world
        while True:
            with world.step(f"call {role.value}"):
                pass
            world.turns.wait(lambda: world.serving(role))
            server = self._server(role)
            try:
                with self._handled_by(server):
                    call(server)
            except PeerUnavailable:
                continue
            return

    def _server(self, role: Role) -> Server:
        if not self._world.serving(role):
            raise PeerUnavailable(f"{role.value} isn't there")
        return self._world.servers[role]

    @contextmanager
    def _handled_by(self, server: Server) -> Iterator[None]:
        """The block is the server's handler; it dies with the server, the client doesn't."""
        try:
            with self._world.turns.acting(server.life), self._hearing():
                yield
        except StorageFailure as error:
            # As `Refusing` has it: the caller waits.
            raise PeerUnavailable(str(error)) from None
        except Killed:
            self._world.turns.check_alive()
            raise PeerUnavailable(f"{server.role.value} died during the call") from None

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """What this client reads of an error in the block."""
        try:
            yield
        except PrecadError as error:
            self._world.seen.crossed.append((self.client, told(error)))
            raise

    def _wait_for(self, server: Server, number: int) -> None:
        events = server.feed.events
        self._world.turns.wait(lambda: len(events) > number or not server.life.alive)

    @contextmanager
    def _present(self, server: Server) -> Iterator[None]:
        watch = server.session.presence.watch(self.client)
        with self._world.turns.acting(server.life):
            watch.__enter__()
        try:
            yield
        finally:
            with self._world.turns.acting(server.life):
                watch.__exit__(None, None, None)
