"""A whole training in one process, on the servers' and the client's real code, with faults.

Real: lead and follow, recovery, the round, validation, the stores (SQLite files), models, inbox,
register, the client's `take_part`, its account and its kept pair. Simulated: gRPC (the links, the
dealer's service, the clients' calls), time, threads (`turns.py`) and the noise (recorded, so that
sums can be checked). The coin keys come from the seed.

Every step of a party has a name. Whether a fault strikes there is decided by the seed, the party,
the step's name and how often the party has come to it, never by time.
"""

import hashlib
import math
import shutil
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

from tests.faults.misdeeds import Stranger
from tests.faults.orders import WEIGHTS, Fault, Orders, by_chance
from tests.faults.simulated_links import SERVERS, Cable, DealerCalls, Transport
from tests.faults.simulated_owner import RECORDS, Calls
from tests.faults.simulated_server import MODEL, Server
from tests.faults.turns import Killed, Life, Turns, TurnsClock
from tests.rig.keys import identity

from precad.aggregator.peer_link import FrameTransport
from precad.aggregator.rounds.aggregator import Aggregator, CoinKey
from precad.aggregator.rounds.states import Opened
from precad.aggregator.training.session import Event, Phase, RoundDone, RoundOpened
from precad.aggregator.training.training_loop import Dealer, run_to_end
from precad.aggregator.validate.validation import Validation
from precad.client.connection import Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import take_part
from precad.client.participation import Participation
from precad.client.pending_update import Pending
from precad.client.server_statements import ServerStatements
from precad.common.errors import PeerUnavailable, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.identity.party_certificate import Principal, read_certificates, validity_fault
from precad.common.ring import RingVector
from precad.common.roster import Enrolment
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import NoDealer

MODEL_FILES = (MODEL, "model.seal")
LIMIT_S = 250.0
"""Below the tests' deadline for an outage: nobody may need to wait for one to run out."""
QUIET_S = 20.0
"""After the newest fault every owner is back: a restart takes 8 s, an owner tries within 5 s."""


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
    fetched: set[int] = field(default_factory=set)
    """Versions of which an owner has the model itself."""
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
        # With proofs nobody deals, and nothing asks.
        self._dealer = DealerRole.of(task) if task.has_dealer else None
        self.epoch = 0
        self.cables: list[Cable] = []
        self.orders = Orders(orders)
        self.validation: Callable[[Aggregator, Opened], Validation] = Aggregator.in_process
        self.clock_is_off: Callable[[str], timedelta] | None = None
        """By how much, of the party of that name."""
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

    @property
    def dealer(self) -> DealerRole:
        """The one that runs now."""
        assert self._dealer is not None
        return self._dealer

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
            self.seen.drawn[event.opened.version].add(frozenset(event.opened.counted))
            honest = event.opened.counted - self.bad
            self._opened[event.opened.attempt] = self.turns.now, faults, honest
            return
        if isinstance(event, RoundDone) and not self.put_back_roles:
            held = [each.session.model_store.current.version for each in self.servers.values()]
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
        elif fault is Fault.DEALER and self._dealer is not None:
            self._dealer = DealerRole.of(self.task)
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
                        self.seen.words.append(
                            f"{role.value}: {needs.permission.value} {needs.version}"
                        )
                        for each in self.servers.values():
                            if each.life.alive:
                                with self.turns.acting(each.life):
                                    each.session.store.versions.allow(
                                        needs.permission, needs.version, until
                                    )

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
                statements=ServerStatements(self.task, client, state),
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
            yield transport, DealerCalls(self, role) if self.task.has_dealer else NoDealer()
        finally:
            transport.close()

    def handshake(self, *parties: str) -> None:
        """As mutual TLS and each call: both look at a certificate, each by its own clock.

        Raises PeerUnavailable.
        """
        if self.clock_is_off is not None:
            shown = identity(Principal.service(Role.DEALER)).cert
            certificate = read_certificates(shown, source="the other side")[0]
            for party in parties:
                if fault := validity_fault(
                    certificate, datetime.now(UTC) + self.clock_is_off(party)
                ):
                    raise PeerUnavailable(f"{fault}, says {party}")

    def dial(self, timeout_s: float) -> "Transport":
        """A's link to B, once B serves."""
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
        """Whether this server's port answers."""
        return role in self.servers and self.servers[role].life.alive
