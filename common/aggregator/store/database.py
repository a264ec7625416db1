"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default)."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Row, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from precad.common.aggregator.round.journal import Journal, ReleaseRecord, RoundState
from precad.common.aggregator.store import tables
from precad.common.aggregator.store.engine import (
    is_in_memory,
    parse_url,
    storage_errors,
    writing_engine,
)
from precad.common.aggregator.store.ledger import LedgerEvent, append, ledger_start, participations
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
    parsed = parse_url(url)
    engine = writing_engine(parsed)
    store: Store | None = None
    try:
        with storage_errors():
            store = Store(engine, task, role, lock_database(engine))
            with engine.begin() as connection:
                if is_in_memory(parsed):
                    # Nothing older can be in it; whoever plays rounds in one process opens many.
                    tables.metadata.create_all(connection)
                else:
                    migrate(connection)
            store.bind()
    except BaseException:
        if store is None:
            engine.dispose()
        else:
            store.close()
        raise
    return store


class Store(Journal):
    """All reads and writes of one server's durable state; each method is one transaction.

    Threads take turns: there is one connection, which is also what the lock hangs on.

    Raises:
        StorageFailure: by every method, when the database fails. Nothing was changed then.
    """

    def __init__(self, engine: Engine, task: Task, role: Role, lock: FileLock | None) -> None:
        self._engine = engine
        self._task = task
        self._role = role
        self._lock = lock
        self._turn = threading.Lock()

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

    def bind(self) -> None:
        """Claim an empty database for this task and role, or check that it is theirs."""
        with self._transaction() as connection:
            row = connection.execute(select(tables.task)).one_or_none()
            if row is None:
                connection.execute(
                    insert(tables.task).values(
                        digest=str(self._task.digest),
                        role=self._role.value,
                        canonical=self._task.canonical,
                        ledger_length=0,
                        ledger_head=ledger_start(self._task.digest, self._role).value,
                    )
                )
            elif (row.digest, row.role) != (str(self._task.digest), self._role.value):
                raise Misconfiguration(
                    "state",
                    f"{row.role} of task {row.digest}",
                    "this database belongs to another task or role; give "
                    f"{self._role.value} of task {self._task.digest} a state folder of its own",
                )

    def claims(self) -> Roster:
        """Everybody who has enrolled here, in the frozen roster or not."""
        with self._transaction() as connection:
            return _roster(connection.execute(select(tables.enrolment)).all())

    def claim(self, enrolment: Enrolment) -> None:
        """Keep one client's claim."""
        with self._transaction() as connection:
            connection.execute(
                insert(tables.enrolment).values(
                    client=enrolment.client.name,
                    records=enrolment.records,
                    record_rate=enrolment.record_rate,
                    in_roster=False,
                )
            )

    def roster(self) -> Roster | None:
        """The frozen roster, or None before round 0."""
        frozen = tables.enrolment.c.in_roster
        with self._transaction() as connection:
            rows = connection.execute(select(tables.enrolment).where(frozen)).all()
        return _roster(rows) if rows else None

    def freeze(self, roster: Roster) -> None:
        """Keep the roster; it never changes again.

        Raises:
            PeerViolation: it would change, or isn't made of claims that were kept here.
        """
        enrolment = tables.enrolment
        with self._transaction() as connection:
            claims = _roster(connection.execute(select(enrolment)).all())
            kept = _roster(connection.execute(select(enrolment).where(enrolment.c.in_roster)).all())
            if kept:
                if kept.digest() != roster.digest():
                    raise PeerViolation("the roster is frozen and can't change")
                return
            for client, claim in roster.items():
                if claims.get(client) != claim:
                    raise PeerViolation(f"client {client} didn't enrol here with this claim")
            connection.execute(
                update(enrolment)
                .where(enrolment.c.client == bindparam("name"))
                .values(in_roster=True),
                [{"name": client.name} for client in roster],
            )

    def next_number(self) -> int:
        """The first round number that was never used here."""
        with self._transaction() as connection:
            newest = connection.execute(select(func.max(tables.training_round.c.number))).scalar()
        return 0 if newest is None else newest + 1

    def begin_round(self, number: int, version: int, cohort_size: int, model: Digest) -> None:
        """A round is about to open. Raises PeerViolation when its number was used before."""
        with self._transaction() as connection:
            newest = connection.execute(select(func.max(tables.training_round.c.number))).scalar()
            if newest is not None and number <= newest:
                raise PeerViolation(f"round number {number} isn't above {newest}, the newest here")
            connection.execute(
                insert(tables.training_round).values(
                    number=number,
                    version=version,
                    state=RoundState.OPEN.value,
                    cohort_size=cohort_size,
                    model=model.value,
                )
            )

    def abandon_open(self) -> int:
        """Rounds that were open when this server or the link broke off. Returns how many."""
        rounds = tables.training_round
        with self._transaction() as connection:
            return connection.execute(
                update(rounds)
                .where(rounds.c.state == RoundState.OPEN.value)
                .values(state=RoundState.ABANDONED.value)
            ).rowcount

    def release(
        self,
        number: int,
        valid: Collection[ClientId],
        valid_set: Digest,
        rejections: Mapping[ClientId, Rejection],
        noisy_share: bytes,
    ) -> None:
        """Charge every valid client and persist the noisy share, in one transaction.

        After this the share may leave; before it, nothing may.

        Raises:
            AlreadyReleased: the round has released before, or another from the same model.
        """
        rounds = tables.training_round
        with self._transaction() as connection:
            opened = connection.execute(
                select(rounds).where(
                    rounds.c.number == number, rounds.c.state == RoundState.OPEN.value
                )
            ).one_or_none()
            if opened is None:
                raise AlreadyReleased(f"round {number} has released already, or never opened")
            if (earlier := _release_of(connection, opened.version)) is not None:
                raise AlreadyReleased(
                    f"model {opened.version} has its release already, of round {earlier.number}"
                )
            connection.execute(
                update(rounds)
                .where(rounds.c.number == number)
                .values(
                    state=RoundState.RELEASED.value,
                    valid_set=valid_set.value,
                    noisy_share=noisy_share,
                )
            )
            append(
                connection,
                self._task,
                LedgerEvent.RELEASED,
                number=number,
                version=opened.version,
                clients=valid,
                valid_set=valid_set,
                share_digest=Digest.of(noisy_share),
            )
            if rejections:
                connection.execute(
                    insert(tables.rejection),
                    [
                        {"number": number, "client": c.name, "reason": reason.value}
                        for c, reason in rejections.items()
                    ],
                )

    def finish_round(self, number: int, next_model: Digest) -> None:
        """Both noisy shares were held and the next model is persisted."""
        rounds = tables.training_round
        with self._transaction() as connection:
            connection.execute(
                update(rounds)
                .where(rounds.c.number == number, rounds.c.state == RoundState.RELEASED.value)
                .values(state=RoundState.DONE.value, next_model=next_model.value)
            )

    def forfeit(
        self,
        number: int,
        version: int,
        cohort_size: int,
        model: Digest,
        valid: Collection[ClientId],
    ) -> None:
        """Give a round up that only one server released, charging it here too.

        What the other server may have seen of it counts as spent on both ledgers.

        Raises:
            AlreadyReleased: the round is done; both servers hold its model.
        """
        rounds, charge = tables.training_round, tables.charge
        with self._transaction() as connection:
            known = connection.execute(
                select(rounds).where(rounds.c.number == number)
            ).one_or_none()
            if known is None:
                connection.execute(
                    insert(rounds).values(
                        number=number,
                        version=version,
                        state=RoundState.FORFEITED.value,
                        cohort_size=cohort_size,
                        model=model.value,
                    )
                )
            elif known.state == RoundState.DONE.value:
                raise AlreadyReleased(f"round {number} is done and can't be forfeited")
            connection.execute(
                update(rounds)
                .where(rounds.c.number == number)
                .values(state=RoundState.FORFEITED.value)
            )
            charged = set(
                connection.execute(
                    select(charge.c.client).where(charge.c.number == number)
                ).scalars()
            )
            missing = [client for client in valid if client.name not in charged]
            if known is not None and known.state == RoundState.FORFEITED.value and not missing:
                return
            append(
                connection,
                self._task,
                LedgerEvent.FORFEITED,
                number=number,
                version=version,
                clients=missing,
                valid_set=(
                    None if known is None or known.valid_set is None else Digest(known.valid_set)
                ),
                share_digest=None,
            )

    def release_of(self, version: int) -> ReleaseRecord | None:
        """The round that released from model ``version`` and isn't forfeited, if there is one.

        Raises:
            StorageFailure: the noisy share isn't the one that was released.
        """
        charge, rejection, ledger = tables.charge, tables.rejection, tables.ledger
        with self._transaction() as connection:
            row = _release_of(connection, version)
            if row is None:
                return None
            digest = connection.execute(
                select(ledger.c.share_digest).where(
                    ledger.c.number == row.number, ledger.c.event == LedgerEvent.RELEASED.value
                )
            ).scalar()
            clients = (
                connection.execute(select(charge.c.client).where(charge.c.number == row.number))
                .scalars()
                .all()
            )
            rejected = connection.execute(
                select(rejection.c.client, rejection.c.reason).where(
                    rejection.c.number == row.number
                )
            ).all()
        if digest != Digest.of(row.noisy_share).value:
            # Sent, it would be a second release of one round.
            raise StorageFailure(
                f"the noisy share of round {row.number} isn't the one that the ledger names; the "
                "database was changed or is damaged. Put back this server's newest state, or "
                "start a new task"
            )
        return ReleaseRecord(
            number=row.number,
            version=row.version,
            state=RoundState(row.state),
            cohort_size=row.cohort_size,
            model=Digest(row.model),
            valid_set=Digest(row.valid_set),
            valid=tuple(sorted(ClientId(client) for client in clients)),
            rejections={ClientId(client): Rejection(reason) for client, reason in rejected},
            noisy_share=row.noisy_share,
        )

    def states(self) -> dict[int, RoundState]:
        """All rounds' states by number."""
        rounds = tables.training_round
        with self._transaction() as connection:
            rows = connection.execute(
                select(rounds.c.number, rounds.c.state).order_by(rounds.c.number)
            ).all()
        return {number: RoundState(state) for number, state in rows}

    def participations(self) -> dict[ClientId, int]:
        """T_i so far: how often each client was charged."""
        with self._transaction() as connection:
            return participations(connection)

    def rejections(self) -> dict[Rejection, int]:
        """How many submissions were rejected, by reason."""
        rejection = tables.rejection
        with self._transaction() as connection:
            rows = connection.execute(
                select(rejection.c.reason, func.count()).group_by(rejection.c.reason)
            ).all()
        return {Rejection(reason): count for reason, count in rows}

    def rejected_clients(self) -> dict[ClientId, int]:
        """How many submissions of each client were rejected; absence isn't one."""
        rejection = tables.rejection
        with self._transaction() as connection:
            rows = connection.execute(
                select(rejection.c.client, func.count())
                .where(rejection.c.reason != Rejection.ABSENT.value)
                .group_by(rejection.c.client)
            ).all()
        return {ClientId(client): count for client, count in rows}

    def spend(self, number: int, batch: int) -> None:
        """Spend a batch of correlated randomness. Raises PeerViolation on reuse."""
        try:
            with self._transaction() as connection:
                connection.execute(insert(tables.spent_triple).values(number=number, batch=batch))
        except IntegrityError:
            raise PeerViolation(
                f"correlated randomness of round {number}, batch {batch} was spent before; "
                "using it twice would reveal differences of updates"
            ) from None


def _release_of(connection: Connection, version: int) -> Row[Any] | None:
    rounds = tables.training_round
    return connection.execute(
        select(rounds).where(
            rounds.c.version == version,
            rounds.c.state.in_([RoundState.RELEASED.value, RoundState.DONE.value]),
        )
    ).one_or_none()


def _roster(rows: Sequence[Row[Any]]) -> Roster:
    enrolments = [Enrolment(ClientId(r.client), r.records, r.record_rate) for r in rows]
    return Roster({enrolment.client: enrolment for enrolment in enrolments})
