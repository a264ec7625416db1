"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default)."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from precad.aggregator.rounds.journal import (
    BOUND,
    PENDING,
    AttemptState,
    Head,
    Journal,
    ReleaseRecord,
    Word,
)
from precad.aggregator.rounds.server_messages import Fact, HeadBody, SealMessage
from precad.aggregator.store import attempts, shown, tables, versions
from precad.aggregator.store.awaited import wait_for_database
from precad.aggregator.store.engine import (
    is_in_memory,
    parse_url,
    storage_errors,
    writing_engine,
)
from precad.aggregator.store.ledger import ledger_start
from precad.aggregator.store.lock import FileLock, lock_database
from precad.aggregator.store.migrate import migrate
from precad.aggregator.store.outside import OutsideJournal, Remembered
from precad.aggregator.store.shown import Shown
from precad.common.errors import (
    AlreadyReleased,
    Misconfiguration,
    PeerViolation,
    Rejection,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task

log = logging.getLogger("precad")

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class OwnerAccount:
    """What a server's ledger says of one client, for the client itself."""

    charged: tuple[int, ...]
    """Versions that it was charged for, by their further releases m = 0, 1, …"""
    opened: int
    """Attempts with it in the cohort whose comparisons were opened."""
    counted: bool
    """Whether it was in the counted set of the newest version that is over."""


def open_store(url: str, task: Task, role: Role, outside: Path | None = None) -> "Store":
    """Open or create the database of ``role`` for ``task``; nobody else may have it open.

    Args:
        url: SQLAlchemy URL, such as ``sqlite:///state/server-a.db``.
        task: the database belongs to this task alone.
        role: and to this role.
        outside: the journal file beside the database; none in tests of other things.

    Raises:
        Misconfiguration: the database holds another task or role, is open elsewhere, or was
            written by a newer version of precad.
        StorageFailure: it can't be read or written.
    """
    journal = None if outside is None else OutsideJournal(outside, task.digest)
    store = Store(writing_engine(parse_url(url)), task, role, journal)
    try:
        store.open()
    except BaseException:
        store.close()
        raise
    return store


class Store(Journal):
    """All reads and writes of one server's durable state; each method is one transaction.

    Threads take turns: there is one connection, which is also what the lock hangs on.

    Raises:
        StorageFailure: by every method, when the database fails. Nothing was changed then.
    """

    def __init__(
        self, engine: Engine, task: Task, role: Role, outside: OutsideJournal | None = None
    ) -> None:
        self._engine = engine
        self._task = task
        self._role = role
        self._outside = outside
        self._remembered = Remembered() if outside is None else outside.read()
        self._lock: FileLock | None = None
        self._turn = threading.Lock()
        self._confirmed = 0
        self._known: dict[object, Any] = {}

    def open(self) -> None:
        """Lock the database, bring its tables up to date, and claim it or check whose it is."""
        with storage_errors():
            self._lock = lock_database(self._engine)
        wait_for_database(self._engine)
        with self._transaction() as connection:
            if is_in_memory(self._engine.url):
                # Nothing older can be in it; whoever plays rounds in one process opens many.
                tables.metadata.create_all(connection)
            else:
                migrate(connection)
            self._bind(connection)
            self._remember(connection)
            self._confirmed = versions.confirmed(connection)

    def _remember(self, connection: Connection) -> None:
        """Take from the file outside what a database from an old copy has forgotten."""
        for fact in self._remembered.facts:
            clients = [ClientId(name) for name in fact.clients]
            known = attempts.row_of(connection, fact.attempt)
            if known is not None and known.state is AttemptState.VOIDED:
                # After the database was put back once: who voids an attempt never countersigns it.
                continue
            if known is not None and known.state is AttemptState.PREPARED:
                # It was countersigned: never voided.
                attempts.change(connection, fact.attempt, state=AttemptState.COUNTERSIGNED)
            elif versions.learn(connection, self._task, [fact]):
                log.warning(
                    "attempt %d stands in this server's journal and not in its database: its "
                    "%d charges are in the ledger again",
                    fact.attempt,
                    len(clients),
                )
        for version, count in self._remembered.opened_of().items():
            versions.raise_opened(connection, version, count)

    def close(self) -> None:
        """Release the database for the next process."""
        with self._turn:
            self._engine.dispose()
            if self._lock is not None:
                self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._turn, storage_errors():
            self._known.clear()
            with self._engine.begin() as connection:
                yield connection

    @contextmanager
    def _look(self) -> Iterator[Connection]:
        """A transaction that changes nothing."""
        with self._turn, storage_errors(), self._engine.begin() as connection:
            yield connection

    def _looked(self, what: object, look: Callable[[Connection], Found]) -> Found:
        """What ``look`` finds, kept until the next write: every owner of a cohort asks for it.

        This server alone writes its database (``lock``).
        """
        with self._turn, storage_errors():
            if what not in self._known:
                with self._engine.begin() as connection:
                    self._known[what] = look(connection)
            found: Found = self._known[what]
            return found

    def _read(self, query: Select[Any]) -> Sequence[Any]:
        with self._look() as connection:
            return connection.execute(query).all()

    def _bind(self, connection: Connection) -> None:
        owner = (str(self._task.digest), self._role)
        row = connection.execute(select(tables.task)).one_or_none()
        if row is None:
            connection.execute(
                insert(tables.task).values(
                    digest=owner[0],
                    role=self._role,
                    canonical=self._task.canonical,
                    ledger_length=0,
                    ledger_head=ledger_start(self._task.digest, self._role),
                )
            )
        elif (row.digest, row.role) != owner:
            raise Misconfiguration(
                "state",
                f"{row.role.value} of task {row.digest}",
                "this database belongs to another task or role; give "
                f"{self._role.value} of task {self._task.digest} a state folder of its own",
            )

    def claims(self) -> Roster:
        """Everybody who has enrolled here, in the frozen roster or not."""
        return _roster(self._read(select(tables.enrolment)))

    def claim(self, enrolment: Enrolment) -> None:
        """Keep one client's claim."""
        with self._transaction() as connection:
            connection.execute(
                insert(tables.enrolment).values(
                    client=enrolment.client,
                    records=enrolment.records,
                    record_rate=enrolment.record_rate,
                    in_roster=False,
                )
            )

    def roster(self) -> Roster | None:
        """The frozen roster, or None before round 0."""
        return _roster(self._read(_FROZEN)) or None

    def roster_seal(self) -> SealMessage | None:
        """The other server's word on the frozen roster."""
        found = self._read(select(tables.task.c.roster_seal))[0][0]
        return None if found is None else SealMessage.from_json(found)

    def keep_roster_seal(self, sealed: SealMessage) -> None:
        """Keep the other server's word on the frozen roster."""
        with self._transaction() as connection:
            connection.execute(update(tables.task).values(roster_seal=sealed.to_json()))

    def freeze(self, roster: Roster, *, taken_back: bool = False) -> None:
        """Keep the roster; it never changes again.

        Args:
            roster: everybody in it.
            taken_back: this server has signed it, and may have lost claims of it since.

        Raises:
            PeerViolation: it would change, or isn't made of claims that were kept here.
        """
        enrolment = tables.enrolment
        with self._transaction() as connection:
            if kept := _roster(connection.execute(_FROZEN)):
                if kept.digest() != roster.digest():
                    raise PeerViolation("the roster is frozen and can't change")
                return
            claims = _roster(connection.execute(select(enrolment)))
            if taken_back:
                _take_back(connection, roster, claims)
                claims = roster
            for client, claim in roster.items():
                if claims.get(client) != claim:
                    raise PeerViolation(f"client {client} didn't enrol here with this claim")
            connection.execute(
                update(enrolment)
                .where(enrolment.c.client == bindparam("name"))
                .values(in_roster=True),
                [{"name": client} for client in roster],
            )

    def next_attempt(self) -> int:
        """The first attempt that nobody remembers: neither this server nor anybody it heard of."""

        def look(connection: Connection) -> int:
            heard = max(shown.newest_attempt(connection), versions.heard(connection))
            return max(self._newest(connection), heard) + 1

        return self._looked("next attempt", look)

    def unused_here(self) -> int:
        """The first attempt that neither the database nor the journal outside knows."""
        with self._look() as connection:
            return self._newest(connection) + 1

    def _newest(self, connection: Connection) -> int:
        return max(attempts.newest(connection), self._remembered.newest_attempt)

    def hear(self, attempt: int) -> None:
        """Somebody else remembers ``attempt``: the dealer, an owner or the other server."""
        if attempt < self.next_attempt():
            return
        with self._transaction() as connection:
            if attempt > max(self._newest(connection), versions.heard(connection)):
                connection.execute(update(tables.task).values(heard=attempt))

    def begin_attempt(self, attempt: int, version: int, cohort_size: int, model: Digest) -> None:
        """Keep the attempt as open. Raises PeerViolation when its number was used before."""
        with self._transaction() as connection:
            newest = self._newest(connection)
            if attempt <= newest:
                raise PeerViolation(f"attempt {attempt} isn't above {newest}, the newest here")
            attempts.begin(connection, attempt, version, cohort_size, model)

    def abandon_open(self) -> int:
        """Open attempts become abandoned ones. Returns how many."""
        state = tables.attempts.c.state
        with self._transaction() as connection:
            return connection.execute(
                update(tables.attempts)
                .where(state == AttemptState.OPEN)
                .values(state=AttemptState.ABANDONED)
            ).rowcount

    def attempts_of(self, version: int) -> int:
        """How many attempts of ``version`` there were."""
        query = select(func.count()).where(tables.attempts.c.version == version)
        return int(self._read(query)[0][0])

    def count_opened(self, version: int, attempt: int) -> int:
        """Count an attempt as opened, outside the database first."""
        if self._outside is not None:
            self._outside.opened(version, attempt)
        with self._transaction() as connection:
            count = versions.opened(connection, version) + 1
            versions.raise_opened(connection, version, count)
            return count

    def raise_opened(self, version: int, at_least: int) -> None:
        """The other server has counted that many."""
        if at_least <= self.opened(version):
            return
        with self._transaction() as connection:
            versions.raise_opened(connection, version, at_least)

    def opened(self, version: int) -> int:
        """How many of the version's attempts had their comparisons opened."""
        return self._looked(("opened", version), lambda c: versions.opened(c, version))

    def prepare(
        self,
        attempt: int,
        valid: Collection[ClientId],
        valid_set: Digest,
        rejections: Mapping[ClientId, Rejection],
        noisy_share: bytes | memoryview,
    ) -> None:
        """State, noisy share, ledger entry, charges and rejections in one transaction."""
        with self._transaction() as connection:
            attempts.prepare(
                connection, self._task, attempt, valid, valid_set, rejections, noisy_share
            )

    def head(self) -> Head:
        """The ledger's newest."""
        task = tables.task.c
        return Head(*self._read(select(task.ledger_length, task.ledger_head))[0])

    def countersign(self, attempt: int, head: HeadBody, sealed: SealMessage) -> None:
        """Outside the database first: what it says and the database doesn't counts as sent."""
        with self._transaction() as connection:
            clients = attempts.charged_clients(connection, attempt)
        if self._outside is not None:
            self._outside.countersigned(head.version, attempt, clients)
        with self._transaction() as connection:
            known = attempts.row_of(connection, attempt)
            if known is None or known.state not in PENDING:
                raise AlreadyReleased(f"attempt {attempt} isn't prepared here")
            values: dict[str, object] = {"their_head": sealed.to_json()}
            if known.state is AttemptState.PREPARED:
                values["state"] = AttemptState.COUNTERSIGNED
            attempts.change(connection, attempt, **values)

    def sent(self, attempt: int, countersignature: SealMessage) -> None:
        """The noisy share is about to leave."""
        with self._transaction() as connection:
            known = attempts.row_of(connection, attempt)
            if known is None or known.state not in BOUND:
                raise AlreadyReleased(f"attempt {attempt} isn't countersigned here")
            kept = countersignature.to_json()
            attempts.change(connection, attempt, state=AttemptState.SENT, countersignature=kept)

    def pending(self) -> ReleaseRecord | None:
        """The attempt that is prepared and not over. Raises StorageFailure."""
        with self._look() as connection:
            return attempts.pending(connection)

    def finish_attempt(self, attempt: int, next_model: Digest) -> None:
        """A prepared attempt is done; any other stays what it is."""
        with self._transaction() as connection:
            known = attempts.row_of(connection, attempt)
            if known is not None and known.state in PENDING:
                attempts.change(connection, attempt, state=AttemptState.DONE, next_model=next_model)

    def void(self, version: int, attempt: int) -> None:
        """The attempt costs nothing. Raises AlreadyReleased."""
        with self._transaction() as connection:
            attempts.void(connection, self._task, version, attempt)
        remembered = any(fact.attempt == attempt for fact in self._remembered.facts)
        if self._outside is not None and remembered:
            self._outside.voided(version, attempt)

    def settle(self, attempt: int) -> None:
        """A prepared attempt whose version is over: its charge stands."""
        with self._transaction() as connection:
            attempts.settle(connection, self._task, attempt)

    def write_off(self, attempt: int) -> None:
        """Both operators gave the attempt up; its charge stands."""
        with self._transaction() as connection:
            attempts.write_off(connection, self._task, attempt)

    def facts(self, version: int) -> tuple[Fact, ...]:
        """What the ledger holds of ``version``, by attempt."""
        with self._look() as connection:
            return versions.facts(connection, version)

    def history(self, version: int) -> Digest:
        """Of all facts of the versions before ``version``."""
        with self._transaction() as connection:
            return versions.history(connection, self._task, version)

    def witness(self) -> SealMessage | None:
        """The other server's newest head: its word on the common history."""
        row = tables.attempts.c
        query = (
            select(row.their_head)
            .where(row.their_head.is_not(None), row.state != AttemptState.VOIDED)
            .order_by(row.attempt.desc())
            .limit(1)
        )
        found = self._read(query)
        return SealMessage.from_json(found[0][0]) if found else None

    def learn(self, facts: Collection[Fact]) -> int:
        """Take facts that were forgotten into the ledger. Returns how many."""
        with self._transaction() as connection:
            return versions.learn(connection, self._task, facts)

    def uncharged_versions(self, version: int) -> tuple[int, ...]:
        """Versions before ``version`` that the ledger holds no charge of, not even of nobody."""
        with self._look() as connection:
            return versions.uncharged(connection, version)

    def charge_unknown(self, fact: Fact) -> None:
        """Charge an attempt that others alone remember; outside the database first."""
        clients = [ClientId(name) for name in fact.clients]
        if self._outside is not None:
            self._outside.countersigned(fact.version, fact.attempt, clients)
        self.learn([fact])

    def charges_of(self, client: ClientId, version: int) -> int:
        """How many releases of ``version`` may have left with this client in the counted set."""
        # One look for a whole cohort: of a version's first attempt nobody has any.
        return self._looked(("charges", version), lambda c: versions.charges_in(c, version)).get(
            client, 0
        )

    def charges_in(self, version: int) -> Mapping[ClientId, int]:
        """``charges_of`` each client that has any, in one look."""
        with self._look() as connection:
            return versions.charges_in(connection, version)

    def account_of(self, client: ClientId, version: int) -> OwnerAccount:
        """What one client was charged for in the versions before ``version``.

        And in those that this server has stated to be over, however far it was put back since.
        """
        over = max(version, self.promised_version())
        opened = self._looked("opened", versions.all_opened)
        some_shown = self._looked("shown", shown.any_kept)
        with self._look() as connection:
            by_version = versions.charges_of_one(connection, client, before=over)
            lost = shown.forgotten(connection, client).get(client, 0) if some_shown else 0
        further = Counter(count - 1 for count in by_version.values())
        charged = [further[m] for m in range(max(further, default=-1) + 1)]
        if lost:
            charged = [*charged, 0][: max(1, len(charged))]
            charged[0] += lost
        return OwnerAccount(tuple(charged), opened, counted=version - 1 in by_version)

    def remember(self, told: Shown) -> bool:
        """Keep a statement of this server that says more than its database. Returns whether."""
        with self._look() as connection:
            more = shown.says_more(connection, told)
        if more:
            with self._transaction() as connection:
                shown.keep(connection, told)
        return more

    def promised_version(self) -> int:
        """The newest version that owners may have heard of from this server; 0 before the first."""
        return self._looked("promised", shown.promised_version)

    def participations(self) -> dict[ClientId, int]:
        """T_i so far: how many versions each client was charged for, forgotten ones included."""
        with self._look() as connection:
            return shown.participations(connection)

    def upgrades(self) -> dict[ClientId, Mapping[int, int]]:
        """Of clients with a version that was released again: versions by m ≥ 1."""
        with self._look() as connection:
            return versions.upgrades(connection)

    def model_seal(self, version: int) -> SealMessage | None:
        """The other server's word on the digest of model ``version``."""
        return self._seal(version, "model_seal")

    def keep_model_seal(self, version: int, sealed: SealMessage) -> None:
        """Keep the other server's word on the digest of model ``version``."""
        with self._transaction() as connection:
            versions.keep_seal(connection, version, "model_seal", sealed)

    def confirm(self, version: int) -> None:
        """The other server holds model ``version`` too: the shares that led to it may go."""
        with self._transaction() as connection:
            versions.confirm(connection, version)
        self._confirmed = max(self._confirmed, version)

    def drop_shares(self) -> None:
        """Remove noisy shares that led to models which both servers hold.

        A database of a large model has much to write then: to be called where nobody waits.
        """
        with self._transaction() as connection:
            attempts.drop_shares(connection, self._confirmed)

    def confirmed(self) -> int:
        """The newest version that both servers are known to hold."""
        # Asked with every model that is fetched; nobody else writes it.
        return self._confirmed

    def commitment(self, version: int) -> SealMessage | None:
        """The other server's commitment to its coin of ``version``."""
        return self._seal(version, "commitment")

    def keep_commitment(self, version: int, sealed: SealMessage) -> None:
        """Keep the first one; it stays, whatever comes later."""
        with self._transaction() as connection:
            if versions.seal_of(connection, version, "commitment") is None:
                versions.keep_seal(connection, version, "commitment", sealed)

    def coin_opening(self, version: int, *, own: bool) -> SealMessage | None:
        """An opening for ``version``: the other server's, or one's own that it gave back."""
        return self._seal(version, "own_opening" if own else "opening")

    def keep_opening(self, version: int, sealed: SealMessage, *, own: bool) -> None:
        """Keep an opening."""
        with self._transaction() as connection:
            column = "own_opening" if own else "opening"
            versions.keep_seal(connection, version, column, sealed)

    def discard_coin(self, version: int) -> None:
        """Both operators discard the version's coin."""
        with self._transaction() as connection:
            versions.discard_coin(connection, version)

    def was_redrawn(self, version: int) -> bool:
        """Whether the operators had the version's coin drawn again."""
        with self._look() as connection:
            return versions.redrawn_of(connection, version) > 0

    def _seal(self, version: int, column: str) -> SealMessage | None:
        with self._look() as connection:
            return versions.seal_of(connection, version, column)

    def redrawn_coins(self) -> int:
        """How often both servers' operators had a version's coin drawn again."""
        with self._look() as connection:
            return versions.redrawn(connection)

    def allowed(self, word: Word, version: int) -> int:
        """Up to which attempt the operators' word reaches; -1 without one."""
        with self._look() as connection:
            return versions.allowed(connection, word, version)

    def allow(self, word: Word, version: int, until: int) -> None:
        """Keep the operators' word."""
        with self._transaction() as connection:
            versions.allow(connection, word, version, until)

    def states(self) -> dict[int, AttemptState]:
        """All attempts' states."""
        attempts = tables.attempts.c
        return dict(self._read(select(attempts.attempt, attempts.state).order_by(attempts.attempt)))

    def rejections(self) -> dict[Rejection, int]:
        """How many submissions were rejected, by reason."""
        reason = tables.rejection.c.reason
        return dict(self._read(select(reason, func.count()).group_by(reason)))

    def attempt_states(self) -> dict[AttemptState, int]:
        """How many attempts stand where."""
        state = tables.attempts.c.state
        return dict(self._read(select(state, func.count()).group_by(state)))

    def rejected_clients(self) -> dict[ClientId, int]:
        """How many submissions of each client were rejected; absence isn't one."""
        client, reason = tables.rejection.c["client", "reason"]
        counts = select(client, func.count()).where(reason != Rejection.ABSENT)
        return dict(self._read(counts.group_by(client)))

    def spend(self, attempt: int, batch: int) -> None:
        """Keep a batch of correlated randomness as spent. Raises PeerViolation on reuse."""
        try:
            with self._transaction() as connection:
                connection.execute(insert(tables.spent_triple).values(attempt=attempt, batch=batch))
        except IntegrityError:
            raise PeerViolation(
                f"correlated randomness of attempt {attempt}, batch {batch} was spent before; "
                "using it twice would reveal differences of updates"
            ) from None


_FROZEN = select(tables.enrolment).where(tables.enrolment.c.in_roster)


def _take_back(connection: Connection, roster: Roster, claims: Roster) -> None:
    for client, claim in roster.items():
        if claims.get(client) != claim:
            connection.execute(delete(tables.enrolment).where(tables.enrolment.c.client == client))
            connection.execute(
                insert(tables.enrolment).values(
                    client=client,
                    records=claim.records,
                    record_rate=claim.record_rate,
                    in_roster=False,
                )
            )


def _roster(rows: Iterable[Any]) -> Roster:
    return Roster({r.client: Enrolment(r.client, r.records, r.record_rate) for r in rows})
