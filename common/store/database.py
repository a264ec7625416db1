"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import Engine, Row, create_engine, event, func, insert, make_url, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import StaticPool

from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import AlreadyReleased, Misconfiguration, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.store import tables
from precad.common.task import Task


class RoundState(Enum):
    """How far a round has come on this server."""

    OPEN = "open"
    """Nothing has left; a crash here costs nothing but the round."""
    ABANDONED = "abandoned"
    """Broken off before anything was released."""
    RELEASED = "released"
    """Charged, and the noisy share is persisted: nothing about it may change any more."""
    FORFEITED = "forfeited"
    """One server released and the other no longer can: charged on both, never reconstructed."""
    DONE = "done"
    """Both noisy shares were held and the next model is persisted."""


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """A round that has released on this server, as it is kept."""

    number: int
    version: int
    """t of the model θ_t that the round started from."""
    state: RoundState
    cohort_size: int
    model: Digest
    valid_set: Digest
    valid: tuple[ClientId, ...]
    rejections: Mapping[ClientId, Rejection]
    noisy_share: bytes = field(repr=False)


def open_store(url: str, task: Task, role: Role) -> "Store":
    """Open or create the database of ``role`` for ``task``.

    Args:
        url: SQLAlchemy URL, such as ``sqlite:///state/server-a.db``.
        task: the database belongs to this task alone.
        role: and to this role.

    Raises:
        Misconfiguration: the database holds another task or another role.
    """
    in_memory = make_url(url).get_backend_name() == "sqlite" and not make_url(url).database
    # An SQLite database in memory is its one connection, for the thread that opened it: shared
    # between threads, one's commit would be the other's too.
    engine = create_engine(url, **({"poolclass": StaticPool} if in_memory else {}))
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _durable_sqlite)
    tables.metadata.create_all(engine)
    store = Store(engine)
    store.bind(task, role)
    return store


def _durable_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # FULL: a charge that was committed survives a power cut, also in WAL mode.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


class Store:
    """All reads and writes of one server's durable state; each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def close(self) -> None:
        """Release the database."""
        self._engine.dispose()

    def bind(self, task: Task, role: Role) -> None:
        """Claim an empty database for ``task`` and ``role``, or check that it is theirs."""
        with self._engine.begin() as connection:
            row = connection.execute(select(tables.task)).one_or_none()
            if row is None:
                connection.execute(
                    insert(tables.task).values(
                        digest=str(task.digest), role=role.value, canonical=task.canonical
                    )
                )
            elif (row.digest, row.role) != (str(task.digest), role.value):
                raise Misconfiguration(
                    "state",
                    f"{row.role} of task {row.digest}",
                    f"this database belongs to another task or role; give {role.value} of task "
                    f"{task.digest} a state folder of its own",
                )

    def claims(self) -> Roster:
        """Everybody who has enrolled here, in the frozen roster or not."""
        with self._engine.begin() as connection:
            return _roster(connection.execute(select(tables.enrolment)).all())

    def claim(self, enrolment: Enrolment) -> None:
        """Keep one client's claim."""
        with self._engine.begin() as connection:
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
        with self._engine.begin() as connection:
            rows = connection.execute(select(tables.enrolment).where(frozen)).all()
        return _roster(rows) if rows else None

    def freeze(self, roster: Roster) -> None:
        """Keep the roster; it never changes again. Raises PeerViolation if it would."""
        kept = self.roster()
        if kept is not None:
            if kept.digest() != roster.digest():
                raise PeerViolation("the roster is frozen and can't change")
            return
        enrolment = tables.enrolment
        with self._engine.begin() as connection:
            connection.execute(
                update(enrolment)
                .where(enrolment.c.client.in_([client.name for client in roster]))
                .values(in_roster=True)
            )

    def next_number(self) -> int:
        """The first round number that was never used here."""
        with self._engine.begin() as connection:
            newest = connection.execute(select(func.max(tables.training_round.c.number))).scalar()
        return 0 if newest is None else newest + 1

    def begin_round(self, number: int, version: int, cohort_size: int, model: Digest) -> None:
        """A round is about to open. Raises PeerViolation when its number was used before."""
        with self._engine.begin() as connection:
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
        with self._engine.begin() as connection:
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
            AlreadyReleased: the round has released before.
        """
        rounds = tables.training_round
        with self._engine.begin() as connection:
            changed = connection.execute(
                update(rounds)
                .where(rounds.c.number == number, rounds.c.state == RoundState.OPEN.value)
                .values(
                    state=RoundState.RELEASED.value,
                    valid_set=valid_set.value,
                    noisy_share=noisy_share,
                )
            ).rowcount
            if changed != 1:
                raise AlreadyReleased(f"round {number} has released already, or never opened")
            if valid:
                connection.execute(
                    insert(tables.charge), [{"number": number, "client": c.name} for c in valid]
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
        with self._engine.begin() as connection:
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
        """
        rounds, charge = tables.training_round, tables.charge
        with self._engine.begin() as connection:
            changed = connection.execute(
                update(rounds)
                .where(rounds.c.number == number)
                .values(state=RoundState.FORFEITED.value)
            ).rowcount
            if changed == 0:
                connection.execute(
                    insert(rounds).values(
                        number=number,
                        version=version,
                        state=RoundState.FORFEITED.value,
                        cohort_size=cohort_size,
                        model=model.value,
                    )
                )
            charged = set(
                connection.execute(
                    select(charge.c.client).where(charge.c.number == number)
                ).scalars()
            )
            missing = [c.name for c in valid if c.name not in charged]
            if missing:
                connection.execute(
                    insert(charge), [{"number": number, "client": name} for name in missing]
                )

    def release_of(self, version: int) -> ReleaseRecord | None:
        """The round that released from model ``version`` and isn't forfeited, if there is one."""
        rounds, charge, rejection = tables.training_round, tables.charge, tables.rejection
        with self._engine.begin() as connection:
            row = connection.execute(
                select(rounds).where(
                    rounds.c.version == version,
                    rounds.c.state.in_([RoundState.RELEASED.value, RoundState.DONE.value]),
                )
            ).one_or_none()
            if row is None:
                return None
            clients = connection.execute(
                select(charge.c.client).where(charge.c.number == row.number)
            ).scalars()
            rejected = connection.execute(
                select(rejection.c.client, rejection.c.reason).where(
                    rejection.c.number == row.number
                )
            ).all()
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
        with self._engine.begin() as connection:
            rows = connection.execute(
                select(rounds.c.number, rounds.c.state).order_by(rounds.c.number)
            ).all()
        return {number: RoundState(state) for number, state in rows}

    def participations(self) -> dict[ClientId, int]:
        """T_i so far: how often each client was charged."""
        charge = tables.charge
        with self._engine.begin() as connection:
            rows = connection.execute(
                select(charge.c.client, func.count()).group_by(charge.c.client)
            ).all()
        return {ClientId(client): count for client, count in rows}

    def rejections(self) -> dict[Rejection, int]:
        """How many submissions were rejected, by reason."""
        rejection = tables.rejection
        with self._engine.begin() as connection:
            rows = connection.execute(
                select(rejection.c.reason, func.count()).group_by(rejection.c.reason)
            ).all()
        return {Rejection(reason): count for reason, count in rows}

    def rejected_clients(self) -> dict[ClientId, int]:
        """How many submissions of each client were rejected; absence isn't one."""
        rejection = tables.rejection
        with self._engine.begin() as connection:
            rows = connection.execute(
                select(rejection.c.client, func.count())
                .where(rejection.c.reason != Rejection.ABSENT.value)
                .group_by(rejection.c.client)
            ).all()
        return {ClientId(client): count for client, count in rows}

    def spend(self, number: int, batch: int) -> None:
        """Spend a batch of correlated randomness. Raises PeerViolation on reuse."""
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(tables.spent_triple).values(number=number, batch=batch))
        except IntegrityError:
            raise PeerViolation(
                f"correlated randomness of round {number}, batch {batch} was spent before; "
                "using it twice would reveal differences of updates"
            ) from None


def _roster(rows: Sequence[Row[Any]]) -> Roster:
    enrolments = [Enrolment(ClientId(r.client), r.records, r.record_rate) for r in rows]
    return Roster({enrolment.client: enrolment for enrolment in enrolments})
