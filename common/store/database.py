"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Engine, create_engine, event, func, insert, make_url, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import StaticPool

from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import AlreadyReleased, Misconfiguration, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.secret import Secret
from precad.common.store import tables
from precad.common.task import Task


class RoundState(Enum):
    """How far a round has come on this server."""

    OPEN = "open"
    RELEASED = "released"
    """Charged, and the noisy share is persisted: nothing about it may change any more."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round as it is kept."""

    number: int
    state: RoundState
    cohort_size: int
    model: Digest
    valid_set: Digest | None
    next_model: Digest | None


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
    # One connection for all threads: an SQLite database in memory exists once per connection.
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

    def key(self, name: str) -> Secret | None:
        """A stored key of this task."""
        with self._engine.begin() as connection:
            value = connection.execute(
                select(tables.key.c.value).where(tables.key.c.name == name)
            ).scalar()
        return None if value is None else Secret(value)

    def keep_key(self, name: str, value: Secret) -> None:
        """Store a key of this task; a different one under the same name is refused."""
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(tables.key).values(name=name, value=value.reveal()))
        except IntegrityError:
            if self.key(name) != value:
                raise PeerViolation(f"key {name!r} of this task changed") from None

    def roster(self) -> Roster | None:
        """The frozen roster, or None before round 0."""
        with self._engine.begin() as connection:
            rows = connection.execute(select(tables.enrolment)).all()
        if not rows:
            return None
        enrolments = [Enrolment(ClientId(r.client), r.records, r.record_rate) for r in rows]
        return Roster({enrolment.client: enrolment for enrolment in enrolments})

    def freeze(self, roster: Roster) -> None:
        """Keep the roster; it never changes again. Raises PeerViolation if it would."""
        kept = self.roster()
        if kept is not None:
            if kept.digest() != roster.digest():
                raise PeerViolation("the roster is frozen and can't change")
            return
        with self._engine.begin() as connection:
            connection.execute(
                insert(tables.enrolment),
                [
                    {"client": e.client.name, "records": e.records, "record_rate": e.record_rate}
                    for e in roster.values()
                ],
            )

    def begin_round(self, number: int, cohort_size: int, model: Digest) -> None:
        """A round is about to open. Numbers are never used twice."""
        with self._engine.begin() as connection:
            connection.execute(
                insert(tables.training_round).values(
                    number=number,
                    state=RoundState.OPEN.value,
                    cohort_size=cohort_size,
                    model=model.value,
                )
            )

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

    def rounds(self) -> tuple[RoundRecord, ...]:
        """All rounds in order."""
        with self._engine.begin() as connection:
            rows = connection.execute(
                select(tables.training_round).order_by(tables.training_round.c.number)
            ).all()
        return tuple(
            RoundRecord(
                row.number,
                RoundState(row.state),
                row.cohort_size,
                Digest(row.model),
                None if row.valid_set is None else Digest(row.valid_set),
                None if row.next_model is None else Digest(row.next_model),
            )
            for row in rows
        )

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
