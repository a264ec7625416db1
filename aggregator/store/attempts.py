"""Attempts in the database: opening them, charging them, and what becomes of them.

Every function works in the caller's transaction.
"""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from precad.aggregator.rounds.journal import BOUND, PENDING, AttemptState, ReleaseRecord
from precad.aggregator.store import tables
from precad.aggregator.store.ledger import append
from precad.common.errors import AlreadyReleased, Rejection, StorageFailure
from precad.common.identifiers import ClientId, Digest
from precad.common.task import Task

CHARGED = (*PENDING, AttemptState.DONE, AttemptState.WRITTEN_OFF, AttemptState.LEARNED)
"""States of an attempt that costs its clients something."""
_NEVER_VOIDED = (*BOUND, AttemptState.DONE, AttemptState.WRITTEN_OFF)
"""Its noisy share may have left, whatever the other server says of it now."""
_AT_ONCE = 8
"""Noisy shares that are removed with one version's end."""
UNKNOWN = Digest(bytes(32))
"""The model of an attempt that was learned: nobody asks for it again."""


def newest(connection: Connection) -> int:
    """The newest attempt's number; -1 before the first."""
    found = connection.scalar(select(func.max(tables.attempts.c.attempt)))
    return -1 if found is None else int(found)


def row_of(connection: Connection, attempt: int) -> Row[Any] | None:
    """An attempt's row."""
    attempts = tables.attempts
    return connection.execute(select(attempts).where(attempts.c.attempt == attempt)).one_or_none()


def begin(
    connection: Connection,
    attempt: int,
    version: int,
    cohort_size: int,
    model: Digest,
    state: AttemptState = AttemptState.OPEN,
) -> None:
    """A new attempt."""
    connection.execute(
        insert(tables.attempts).values(
            attempt=attempt, version=version, state=state, cohort_size=cohort_size, model=model
        )
    )


def change(connection: Connection, attempt: int, **values: object) -> None:
    """Change an attempt's row."""
    attempts = tables.attempts
    connection.execute(update(attempts).where(attempts.c.attempt == attempt).values(**values))


def share_of(connection: Connection, attempt: int) -> bytes | None:
    """This server's noisy share of an attempt; None unless it was prepared."""
    kept = tables.noisy_share.c
    found: bytes | None = connection.scalar(select(kept.share).where(kept.attempt == attempt))
    return found


def drop_shares(connection: Connection, version: int) -> None:
    """Remove noisy shares of versions before ``version``, whose model both servers hold.

    Only what is pending is ever sent, and nothing becomes pending again: what is over stays so,
    and so does whatever an older copy of this database has of it. A few at a time, so that no
    round waits for a database that has many.
    """
    kept, attempts = tables.noisy_share.c, tables.attempts.c
    over = (
        select(kept.attempt)
        .join(tables.attempts, attempts.attempt == kept.attempt)
        .where(attempts.version < version, attempts.state.not_in(PENDING))
        .order_by(kept.attempt.desc())
        .limit(_AT_ONCE)
    )
    connection.execute(delete(tables.noisy_share).where(kept.attempt.in_(over)))


def charged_clients(connection: Connection, attempt: int) -> tuple[ClientId, ...]:
    """Whom an attempt's entries name."""
    charge = tables.charge.c
    found = connection.scalars(select(charge.client).where(charge.attempt == attempt))
    return tuple(sorted(found))


def prepare(
    connection: Connection,
    task: Task,
    attempt: int,
    valid: Collection[ClientId],
    valid_set: Digest,
    rejections: Mapping[ClientId, Rejection],
    noisy_share: bytes | memoryview,
) -> None:
    """State, noisy share, ledger entry, charges and rejections. Raises AlreadyReleased."""
    opened = row_of(connection, attempt)
    if opened is None or opened.state is not AttemptState.OPEN:
        raise AlreadyReleased(f"attempt {attempt} was prepared already, or never opened")
    attempts = tables.attempts.c
    released = (*PENDING, AttemptState.DONE)
    earlier = connection.scalar(
        select(attempts.attempt).where(
            attempts.version == opened.version, attempts.state.in_(released)
        )
    )
    if earlier is not None:
        raise AlreadyReleased(
            f"version {opened.version} has its release already, of attempt {earlier}"
        )
    change(connection, attempt, state=AttemptState.PREPARED, valid_set=valid_set)
    # As a parameter: SQLAlchemy keeps statements, and with them the values that they hold.
    connection.execute(insert(tables.noisy_share), {"attempt": attempt, "share": noisy_share})
    append(
        connection,
        task,
        AttemptState.PREPARED,
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


def pending(connection: Connection) -> ReleaseRecord | None:
    """The attempt that is prepared and not over.

    Raises:
        StorageFailure: the noisy share isn't the one that was prepared.
    """
    attempts, rejection, ledger = tables.attempts, tables.rejection.c, tables.ledger.c
    row = connection.execute(
        select(attempts).where(attempts.c.state.in_(PENDING)).order_by(attempts.c.attempt.desc())
    ).first()
    if row is None:
        return None
    digest = connection.scalar(
        select(ledger.share_digest).where(
            ledger.attempt == row.attempt, ledger.event == AttemptState.PREPARED
        )
    )
    share = share_of(connection, row.attempt)
    if share is None or digest != Digest.of(share):
        # Sent, it would be a second release of one version.
        raise StorageFailure(
            f"the noisy share of attempt {row.attempt} isn't the one that the ledger names; "
            "the database was changed or is damaged. Put back this server's newest state, or "
            "start a new task"
        )
    rejected = connection.execute(
        select(rejection.client, rejection.reason).where(rejection.attempt == row.attempt)
    )
    return ReleaseRecord(
        attempt=row.attempt,
        version=row.version,
        state=row.state,
        cohort_size=row.cohort_size,
        model=row.model,
        valid_set=row.valid_set,
        valid=charged_clients(connection, row.attempt),
        rejections={r.client: r.reason for r in rejected},
        noisy_share=share,
    )


def void(connection: Connection, task: Task, version: int, attempt: int) -> None:
    """The attempt costs nothing, and an entry says so.

    Raises:
        AlreadyReleased: this server has countersigned or sent it, also where it was written off
            since, or it is done.
    """
    known = row_of(connection, attempt)
    if known is None:
        begin(connection, attempt, version, 0, UNKNOWN, AttemptState.VOIDED)
    elif known.state is AttemptState.VOIDED:
        return
    elif known.state in _NEVER_VOIDED or known.version != version:
        raise AlreadyReleased(f"attempt {attempt} is {known.state.value} and is never voided")
    else:
        change(connection, attempt, state=AttemptState.VOIDED)
    _note(connection, task, AttemptState.VOIDED, version, attempt)


def write_off(connection: Connection, task: Task, attempt: int) -> None:
    """Both operators gave the attempt up; its charge stands."""
    known = row_of(connection, attempt)
    if known is None or known.state not in PENDING:
        return
    change(connection, attempt, state=AttemptState.WRITTEN_OFF)
    _note(connection, task, AttemptState.WRITTEN_OFF, known.version, attempt)


def settle(connection: Connection, task: Task, attempt: int) -> None:
    """The database is older than the model: the charge stands, and the share has no further use."""
    known = row_of(connection, attempt)
    if known is None or known.state not in PENDING:
        return
    change(connection, attempt, state=AttemptState.LEARNED)
    _note(connection, task, AttemptState.LEARNED, known.version, attempt)


def learn_charge(
    connection: Connection, task: Task, version: int, attempt: int, clients: Collection[ClientId]
) -> bool:
    """Take a forgotten charge into the ledger. Returns whether it was forgotten."""
    known = row_of(connection, attempt)
    missing = set(clients) - set(charged_clients(connection, attempt))
    if known is not None and known.state in CHARGED and not missing:
        return False
    if known is None:
        begin(connection, attempt, version, len(clients), UNKNOWN, AttemptState.LEARNED)
    elif known.state not in CHARGED:
        change(connection, attempt, state=AttemptState.LEARNED)
    append(
        connection,
        task,
        AttemptState.LEARNED,
        attempt=attempt,
        version=version,
        clients=missing,
        valid_set=None,
        share_digest=None,
    )
    return True


def _note(
    connection: Connection, task: Task, event: AttemptState, version: int, attempt: int
) -> None:
    append(
        connection,
        task,
        event,
        attempt=attempt,
        version=version,
        clients=(),
        valid_set=None,
        share_digest=None,
    )
