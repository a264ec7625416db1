"""What one server's database says of a training, read beside the server, which may be running."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from precad.aggregator.store import schema
from precad.aggregator.store.database import require_current
from precad.aggregator.store.journal_file import JournalFile
from precad.aggregator.store.ledger import Head, Ledger
from precad.aggregator.store.schema import CHARGED, AttemptState
from precad.aggregator.store.transaction import Transaction, parse_url, reading_engine
from precad.aggregator.store.versions import Versions
from precad.common.errors import Misconfiguration, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCharges:
    """What the ledger says of one client."""

    client: ClientId
    participations: int
    """Versions that it was charged for, those included that only its own receipts still
    name."""
    record_rate: float
    """The highest that it was charged at, or its claim where it never was."""
    again: Mapping[int, int]
    """Of these versions, those that may have been released 1 + m times: how many by m ≥
    1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """One released version: how often it was tried, and what its sum holds."""

    version: int
    attempts: int
    counted: int
    rejected: dict[str, int]
    """Submissions that weren't counted, by reason, in the attempt that was released."""
    most_participations: int
    """Of any client, this version included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """A server's training at one moment."""

    task: Task
    role: Role
    clients: tuple[ClientCharges, ...]
    """Enrolled or charged, by name."""
    owners: tuple[str, ...]
    """Whoever was in the roster, by name; they said that they hold so many ``records``,
    at most."""
    records: int
    model: Digest | None
    """Of the newest released version."""
    attempts: int
    written_off: int
    """Attempts whose charge stands and that were never used."""
    redrawn_coins: int
    most_participations: int
    """Versions that any client was charged for, unreleased and forgotten ones included.
    """
    most_repeats: int
    """The most further releases that any version may have had."""
    versions: tuple[VersionSummary, ...]
    """Those that are over, in order."""
    entries: int
    head: Digest


def read_training(url: str) -> TrainingSummary:
    """Return what the database of a server that may be running says; change nothing.

    Raises Misconfiguration: there is no such database, or its schema isn't this
    version's; StorageFailure: it can't be read.
    """
    of = schema.attempts.c
    enrolment = schema.enrolment.c
    charge = schema.charge.c
    tried = select(of.attempt, of.version, of.state, of.next_model).order_by(of.attempt)
    rate_of = select(charge.client, func.max(charge.record_rate)).group_by(
        charge.client
    )
    with snapshot(url) as server:
        connection = server.connection
        claims = connection.execute(
            select(schema.enrolment).order_by(enrolment.client)
        ).all()
        attempts = connection.execute(tried).all()
        charged_at = connection.execute(rate_of).all()
        counts = server.ledger.participations()
        again = server.ledger.re_releases()
        redrawn = server.versions.redrawn_coins()
        versions = tuple(_versions(connection, attempts))
    rates = {claim.client: claim.record_rate for claim in claims} | dict(charged_at)
    roster = [claim for claim in claims if claim.in_roster]
    done = [row.next_model for row in attempts if row.state is AttemptState.DONE]
    return TrainingSummary(
        task=server.task,
        role=server.role,
        clients=tuple(
            ClientCharges(
                client=client,
                participations=counts.get(client, 0),
                record_rate=rates[client],
                again=again.get(client, {}),
            )
            for client in sorted(rates)
        ),
        owners=tuple(claim.client.name for claim in roster),
        records=sum(claim.records for claim in roster),
        model=done[-1] if done else None,
        attempts=len(attempts),
        written_off=sum(row.state is AttemptState.WRITTEN_OFF for row in attempts),
        redrawn_coins=redrawn,
        most_participations=max(counts.values(), default=0),
        most_repeats=max((m for each in again.values() for m in each), default=0),
        versions=tuple(sorted(versions, key=lambda each: each.version)),
        entries=server.head.length,
        head=server.head.head,
    )


def _versions(
    connection: Connection, attempts: Sequence[Any]
) -> Iterator[VersionSummary]:
    charge = schema.charge.c
    rejection = schema.rejection.c
    charged: dict[int, set[ClientId]] = defaultdict(set)
    for number, client in connection.execute(select(charge.attempt, charge.client)):
        charged[number].add(client)
    refused: dict[int, Counter[str]] = defaultdict(Counter)
    for number, reason in connection.execute(
        select(rejection.attempt, rejection.reason)
    ):
        refused[number][reason.value] += 1
    tries = Counter(row.version for row in attempts)
    taken: Counter[ClientId] = Counter()
    seen: dict[int, set[ClientId]] = defaultdict(set)
    for row in attempts:
        if row.state in CHARGED:
            fresh = charged[row.attempt] - seen[row.version]
            taken.update(fresh)
            seen[row.version] |= fresh
        if row.state is AttemptState.DONE:
            yield VersionSummary(
                version=row.version,
                attempts=tries[row.version],
                counted=len(charged[row.attempt]),
                rejected=dict(refused[row.attempt]),
                most_participations=max(taken.values(), default=0),
            )


def read_task(canonical: bytes) -> Task:
    """Return the task with these canonical bytes. Raises Misconfiguration."""
    try:
        return Task.parse(json.loads(canonical))
    except (ValueError, RecursionError) as error:
        raise Misconfiguration("task", "JSON", f"can't be read: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One server's database at one moment."""

    connection: Connection
    task: Task
    role: Role
    head: Head
    ledger: Ledger
    versions: Versions


@contextmanager
def snapshot(url: str) -> Iterator[Snapshot]:
    """A reading transaction beside a server that may be running.

    Raises as ``read_training``.
    """
    transaction = Transaction(reading_engine(parse_url(url)))
    try:
        with transaction.read() as connection:
            require_current(connection)
            row = connection.execute(select(schema.task)).one_or_none()
            if row is None:
                raise StorageFailure(
                    "the database names no task; its table was emptied"
                )
            task = read_task(row.canonical)
            if str(task.digest) != row.digest:
                raise StorageFailure(
                    "the task in the database isn't the one that its digest names"
                )
            ledger = Ledger(transaction, task)
            versions = Versions(transaction, JournalFile(None, task.digest))
            yield Snapshot(
                connection=connection,
                task=task,
                role=row.role,
                head=ledger.head(),
                ledger=ledger,
                versions=versions,
            )
    finally:
        transaction.close()
