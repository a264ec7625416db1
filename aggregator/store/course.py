"""How a training went, from one server's database, for people who weren't there."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from sqlalchemy import select

from precad.aggregator.rounds.attempt_state import CHARGED, AttemptState
from precad.aggregator.store import ledger, schema
from precad.aggregator.store.audit import owner_of, snapshot
from precad.aggregator.store.versions import redrawn_coins
from precad.common.identifiers import Digest, Role
from precad.common.task import Task


@dataclass(frozen=True, slots=True)
class VersionCourse:
    """One released version."""

    version: int
    """From 0."""
    attempts: int
    """How often it was tried."""
    counted: int
    """Submissions in its sum."""
    rejected: dict[str, int]
    """Submissions that weren't, by reason, in the attempt that was released."""
    most_participations: int
    """Of any client, this version included."""


@dataclass(frozen=True, slots=True)
class Course:
    """A server's training at one moment."""

    task: Task
    role: Role
    owners: tuple[str, ...]
    """Whoever was in the roster, by name."""
    records: int
    """What they said together that they hold, at most."""
    model: Digest | None
    """Of the newest released version."""
    attempts: int
    redrawn_coins: int
    most_participations: int
    """Versions that any client was charged for, unreleased and forgotten ones included."""
    most_repeats: int
    """The most further releases that any version may have had."""
    versions: tuple[VersionCourse, ...]
    """In order."""


def read_course(url: str) -> Course:
    """Reads the database of a server that may be running; changes nothing.

    Args:
        url: SQLAlchemy URL of the server's database.

    Raises:
        Misconfiguration: there is no such database, or its schema isn't this version's.
        StorageFailure: it can't be read.
    """
    attempt, enrolment = schema.attempts.c, schema.enrolment.c
    charge, rejection = schema.charge.c, schema.rejection.c
    with snapshot(url) as connection:
        task, role, _, _ = owner_of(connection)
        roster = connection.execute(
            select(enrolment.client, enrolment.records)
            .where(enrolment.in_roster)
            .order_by(enrolment.client)
        ).all()
        rows = connection.execute(
            select(attempt.attempt, attempt.version, attempt.state, attempt.next_model).order_by(
                attempt.attempt
            )
        ).all()
        charged: dict[int, set[str]] = defaultdict(set)
        for number, client in connection.execute(select(charge.attempt, charge.client)):
            charged[number].add(client.name)
        refused: dict[int, Counter[str]] = defaultdict(Counter)
        for number, reason in connection.execute(select(rejection.attempt, rejection.reason)):
            refused[number][reason.value] += 1
        counts = ledger.participations(connection)
        again = ledger.re_releases(connection)
        redrawn = redrawn_coins(connection)
    tries = Counter(row.version for row in rows)
    taken: Counter[str] = Counter()
    seen: dict[int, set[str]] = defaultdict(set)
    course: list[VersionCourse] = []
    model: Digest | None = None
    for row in rows:
        if row.state in CHARGED:
            fresh = charged[row.attempt] - seen[row.version]
            taken.update(fresh)
            seen[row.version] |= fresh
        if row.state is AttemptState.DONE:
            course.append(
                VersionCourse(
                    version=row.version,
                    attempts=tries[row.version],
                    counted=len(charged[row.attempt]),
                    rejected=dict(refused[row.attempt]),
                    most_participations=max(taken.values(), default=0),
                )
            )
            model = row.next_model
    return Course(
        task=task,
        role=role,
        owners=tuple(row.client.name for row in roster),
        records=sum(row.records for row in roster),
        model=model,
        attempts=len(rows),
        redrawn_coins=redrawn,
        most_participations=max(counts.values(), default=0),
        most_repeats=max((m for counts in again.values() for m in counts), default=0),
        versions=tuple(sorted(course, key=lambda each: each.version)),
    )
