"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default)."""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from precad.common.aggregator.round.journal import AttemptState, Journal, ReleaseRecord
from precad.common.aggregator.store import tables
from precad.common.aggregator.store.engine import (
    is_in_memory,
    parse_url,
    storage_errors,
    writing_engine,
)
from precad.common.aggregator.store.ledger import append, ledger_start
from precad.common.aggregator.store.lock import FileLock, lock_database
from precad.common.aggregator.store.migrate import migrate
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import (
    AlreadyReleased,
    Misconfiguration,
    PeerViolation,
    Rejection,
    StorageFailure,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.task import Task


@dataclass(frozen=True, slots=True)
class OwnerAccount:
    """What a server's ledger says of one client, for the client itself."""

    charged: tuple[int, ...]
    """Versions that it was charged for, by their further releases m = 0, 1, …"""
    opened: int
    """Attempts with it in the cohort whose comparisons were opened."""
    counted: bool
    """Whether it was in the counted set of the newest version that is over."""


def open_store(url: str, task: Task, role: Role) -> "Store":
    """Open or create the database of ``role`` for ``task``; nobody else may have it open.

    Args:
        url: SQLAlchemy URL, such as ``sqlite:///state/server-a.db``.
        task: the database belongs to this task alone.
        role: and to this role.

    Raises:
        Misconfiguration: the database holds another task or role, is open elsewhere, or was
            written by a newer version of precad.
        StorageFailure: it can't be read or written.
    """
    store = Store(writing_engine(parse_url(url)), task, role)
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

    def __init__(self, engine: Engine, task: Task, role: Role) -> None:
        self._engine = engine
        self._task = task
        self._role = role
        self._lock: FileLock | None = None
        self._turn = threading.Lock()

    def open(self) -> None:
        """Lock the database, bring its tables up to date, and claim it or check whose it is."""
        with storage_errors():
            self._lock = lock_database(self._engine)
        with self._transaction() as connection:
            if is_in_memory(self._engine.url):
                # Nothing older can be in it; whoever plays rounds in one process opens many.
                tables.metadata.create_all(connection)
            else:
                migrate(connection)
            self._bind(connection)

    def close(self) -> None:
        """Release the database for the next process."""
        with self._turn:
            self._engine.dispose()
            if self._lock is not None:
                self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._turn, storage_errors(), self._engine.begin() as connection:
            yield connection

    def _read(self, query: Select[Any]) -> Sequence[Any]:
        with self._transaction() as connection:
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

    def freeze(self, roster: Roster) -> None:
        """Keep the roster; it never changes again.

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
        """The first attempt that was never used here."""
        with self._transaction() as connection:
            return _newest(connection) + 1

    def begin_attempt(self, attempt: int, version: int, cohort_size: int, model: Digest) -> None:
        """Keep the attempt as open. Raises PeerViolation when its number was used before."""
        with self._transaction() as connection:
            if attempt <= (newest := _newest(connection)):
                raise PeerViolation(f"attempt {attempt} isn't above {newest}, the newest here")
            _begin(connection, attempt, version, cohort_size, model)

    def abandon_open(self) -> int:
        """Open attempts become abandoned ones. Returns how many."""
        state = tables.attempts.c.state
        with self._transaction() as connection:
            return connection.execute(
                update(tables.attempts)
                .where(state == AttemptState.OPEN)
                .values(state=AttemptState.ABANDONED)
            ).rowcount

    def release(
        self,
        attempt: int,
        valid: Collection[ClientId],
        valid_set: Digest,
        rejections: Mapping[ClientId, Rejection],
        noisy_share: bytes,
    ) -> None:
        """State, noisy share, ledger entry, charges and rejections in one transaction.

        Raises:
            AlreadyReleased: the attempt has released before, or another from the same model.
        """
        with self._transaction() as connection:
            opened = _round(connection, attempt)
            if opened is None or opened.state is not AttemptState.OPEN:
                raise AlreadyReleased(f"attempt {attempt} has released already, or never opened")
            if (earlier := _release_of(connection, opened.version)) is not None:
                raise AlreadyReleased(
                    f"model {opened.version} has its release already, of attempt {earlier.attempt}"
                )
            kept = {"valid_set": valid_set, "noisy_share": noisy_share}
            _change(connection, attempt, state=AttemptState.RELEASED, **kept)
            append(
                connection,
                self._task,
                AttemptState.RELEASED,
                attempt=attempt,
                version=opened.version,
                clients=valid,
                valid_set=valid_set,
                share_digest=Digest.of(noisy_share),
            )
            if rejections:
                connection.execute(
                    insert(tables.rejection),
                    [{"attempt": attempt, "client": c, "reason": r} for c, r in rejections.items()],
                )

    def finish_attempt(self, attempt: int, next_model: Digest) -> None:
        """A released attempt is done; any other stays what it is."""
        with self._transaction() as connection:
            known = _round(connection, attempt)
            if known is not None and known.state is AttemptState.RELEASED:
                _change(connection, attempt, state=AttemptState.DONE, next_model=next_model)

    def forfeit(
        self,
        attempt: int,
        version: int,
        cohort_size: int,
        model: Digest,
        valid: Collection[ClientId],
    ) -> None:
        """Charge whom the attempt hasn't charged yet, and keep it as forfeited.

        Raises:
            AlreadyReleased: the attempt is done; both servers hold its model.
        """
        charge = tables.charge.c
        with self._transaction() as connection:
            known = _round(connection, attempt)
            if known is None:
                _begin(connection, attempt, version, cohort_size, model)
            elif known.state is AttemptState.DONE:
                raise AlreadyReleased(f"attempt {attempt} is done and can't be forfeited")
            charged = set(
                connection.scalars(select(charge.client).where(charge.attempt == attempt))
            )
            missing = set(valid) - charged
            if known is not None and known.state is AttemptState.FORFEITED and not missing:
                return
            _change(connection, attempt, state=AttemptState.FORFEITED)
            append(
                connection,
                self._task,
                AttemptState.FORFEITED,
                attempt=attempt,
                version=version,
                clients=missing,
                valid_set=None if known is None else known.valid_set,
                share_digest=None,
            )

    def release_of(self, version: int) -> ReleaseRecord | None:
        """The attempt that released from model ``version`` and isn't forfeited, if there is one.

        Raises:
            StorageFailure: the noisy share isn't the one that was released.
        """
        charge, rejection, ledger = tables.charge.c, tables.rejection.c, tables.ledger.c
        with self._transaction() as connection:
            row = _release_of(connection, version)
            if row is None:
                return None
            digest = connection.scalar(
                select(ledger.share_digest).where(
                    ledger.attempt == row.attempt, ledger.event == AttemptState.RELEASED
                )
            )
            valid = connection.scalars(select(charge.client).where(charge.attempt == row.attempt))
            rejected = connection.execute(
                select(rejection.client, rejection.reason).where(rejection.attempt == row.attempt)
            )
            record = ReleaseRecord(
                attempt=row.attempt,
                version=row.version,
                state=row.state,
                cohort_size=row.cohort_size,
                model=row.model,
                valid_set=row.valid_set,
                valid=tuple(sorted(valid)),
                rejections={r.client: r.reason for r in rejected},
                noisy_share=row.noisy_share,
            )
        if digest != Digest.of(record.noisy_share):
            # Sent, it would be a second release of one round.
            raise StorageFailure(
                f"the noisy share of attempt {row.attempt} isn't the one that the ledger names; "
                "the database was changed or is damaged. Put back this server's newest state, or "
                "start a new task"
            )
        return record

    def states(self) -> dict[int, AttemptState]:
        """All attempts' states."""
        attempts = tables.attempts.c
        return dict(self._read(select(attempts.attempt, attempts.state).order_by(attempts.attempt)))

    def participations(self) -> dict[ClientId, int]:
        """T_i so far: how often each client was charged."""
        client = tables.charge.c.client
        return dict(self._read(select(client, func.count()).group_by(client)))

    def charges_of(self, client: ClientId, version: int) -> int:
        """How many releases of ``version`` this client was charged for."""
        charge, attempts = tables.charge.c, tables.attempts.c
        query = (
            select(func.count())
            .join_from(tables.charge, tables.attempts, charge.attempt == attempts.attempt)
            .where(charge.client == client, attempts.version == version)
        )
        return int(self._read(query)[0][0])

    def opened(self, version: int) -> int:
        """Attempts of ``version`` whose comparisons were opened."""
        attempts = tables.attempts.c
        query = select(func.count()).where(
            attempts.version == version, attempts.state != AttemptState.OPEN
        )
        return int(self._read(query)[0][0])

    def account_of(self, client: ClientId, version: int) -> OwnerAccount:
        """What one client was charged for in the versions before ``version``."""
        charge, attempts = tables.charge.c, tables.attempts.c
        query = (
            select(attempts.version, func.count())
            .join_from(tables.charge, tables.attempts, charge.attempt == attempts.attempt)
            .where(charge.client == client, attempts.version < version)
            .group_by(attempts.version)
        )
        by_version = {row[0]: row[1] for row in self._read(query)}
        further = Counter(count - 1 for count in by_version.values())
        charged = tuple(further[m] for m in range(max(further, default=-1) + 1))
        return OwnerAccount(charged, opened=0, counted=version - 1 in by_version)

    def rejections(self) -> dict[Rejection, int]:
        """How many submissions were rejected, by reason."""
        reason = tables.rejection.c.reason
        return dict(self._read(select(reason, func.count()).group_by(reason)))

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


def _newest(connection: Connection) -> int:
    """The newest attempt's number; -1 before the first."""
    newest = connection.scalar(select(func.max(tables.attempts.c.attempt)))
    return -1 if newest is None else int(newest)


def _begin(
    connection: Connection, attempt: int, version: int, cohort_size: int, model: Digest
) -> None:
    connection.execute(
        insert(tables.attempts).values(
            attempt=attempt,
            version=version,
            state=AttemptState.OPEN,
            cohort_size=cohort_size,
            model=model,
        )
    )


def _round(connection: Connection, attempt: int) -> Row[Any] | None:
    attempts = tables.attempts
    return connection.execute(select(attempts).where(attempts.c.attempt == attempt)).one_or_none()


def _change(connection: Connection, attempt: int, **values: object) -> None:
    attempts = tables.attempts
    connection.execute(update(attempts).where(attempts.c.attempt == attempt).values(**values))


def _release_of(connection: Connection, version: int) -> Row[Any] | None:
    attempts = tables.attempts
    return connection.execute(
        select(attempts).where(
            attempts.c.version == version,
            attempts.c.state.in_([AttemptState.RELEASED, AttemptState.DONE]),
        )
    ).one_or_none()


def _roster(rows: Iterable[Any]) -> Roster:
    return Roster({r.client: Enrolment(r.client, r.records, r.record_rate) for r in rows})
