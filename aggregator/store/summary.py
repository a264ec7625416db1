"""What a server's database says of a training, read while the server may be running."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from precad.aggregator.store import schema
from precad.aggregator.store.database import require_current
from precad.aggregator.store.journal_file import JournalFile
from precad.aggregator.store.ledger import Head, Ledger
from precad.aggregator.store.schema import CHARGED, AttemptState
from precad.aggregator.store.transaction import (
    AnyRow,
    Transaction,
    parse_url,
    reading_engine,
)
from precad.aggregator.store.versions import Versions
from precad.common.errors import Misconfiguration, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCharges:
    """What the ledger says of one client."""

    client: ClientId
    participations: int
    """In how many versions it was charged; those that only a statement of its own still
    names count too."""
    record_rate: float
    """The highest rate p_i that it was charged at, or its claim where it never was."""
    again: Mapping[int, int]
    """How many of these versions may have been released 1 + m times, by m ≥ 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """One released version: how often it was tried, and whom its sum holds."""

    version: int
    attempts: int
    counted: int
    """How many clients are in the sum."""
    rejected: dict[str, int]
    """How many submissions to the attempt that was released weren't counted, by
    reason."""
    most_participations: int
    """The most of any client up to this version, it included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """A server's training at one moment."""

    task: Task
    role: Role
    clients: tuple[ClientCharges, ...]
    """Clients that are enrolled or were charged, in the order of names."""
    owners: tuple[str, ...]
    """The names in the frozen roster, in order."""
    records: int
    """How many records they claimed to hold, all together; they may hold fewer."""
    model: Digest | None
    """The model of the newest version, or None before the first release."""
    attempts: int
    written_off: int
    """Attempts whose charge stands and that were never used."""
    redrawn_coins: int
    """How often operators had a version's coin drawn again."""
    most_participations: int
    """The most versions that any client was charged for, unreleased and forgotten ones
    included."""
    most_repeats: int
    """The most further releases that any version may have had."""
    versions: tuple[VersionSummary, ...]
    """The versions that are over, in order."""
    entries: int
    """How many entries the ledger has."""
    head: Digest
    """The hash of its newest entry."""


def read_training(url: str) -> TrainingSummary:
    """Return what the database at a SQLAlchemy URL says, and change nothing.

    The server may be running: everything is as of one moment.

    Raises Misconfiguration: there is no such database, or its schema isn't this
    version's; StorageFailure: it can't be read.
    """
    attempt = schema.attempts.c
    enrolment = schema.enrolment.c
    charge = schema.charge.c
    claim_query = select(schema.enrolment).order_by(enrolment.client)
    attempt_query = select(
        attempt.attempt, attempt.version, attempt.state, attempt.next_model
    ).order_by(attempt.attempt)
    highest_rate_query = select(charge.client, func.max(charge.record_rate)).group_by(
        charge.client
    )
    with snapshot(url) as server:
        connection = server.connection
        claims = connection.execute(claim_query).all()
        attempts = connection.execute(attempt_query).all()
        highest_rates = connection.execute(highest_rate_query).all()
        participations = server.ledger.participations()
        re_releases = server.ledger.re_releases()
        redrawn_coins = server.versions.redrawn_coins()
        versions = tuple(_versions(connection, attempts))
    rates = {claim.client: claim.record_rate for claim in claims}
    rates |= dict(highest_rates)
    clients = tuple(
        ClientCharges(
            client=client,
            participations=participations.get(client, 0),
            record_rate=rates[client],
            again=re_releases.get(client, {}),
        )
        for client in sorted(rates)
    )
    roster = [claim for claim in claims if claim.in_roster]
    models = [row.next_model for row in attempts if row.state is AttemptState.DONE]
    return TrainingSummary(
        task=server.task,
        role=server.role,
        clients=clients,
        owners=tuple(claim.client.name for claim in roster),
        records=sum(claim.records for claim in roster),
        model=models[-1] if models else None,
        attempts=len(attempts),
        written_off=sum(row.state is AttemptState.WRITTEN_OFF for row in attempts),
        redrawn_coins=redrawn_coins,
        most_participations=max(participations.values(), default=0),
        most_repeats=max((max(by_m) for by_m in re_releases.values()), default=0),
        versions=tuple(sorted(versions, key=lambda summary: summary.version)),
        entries=server.head.length,
        head=server.head.head,
    )


def _versions(
    connection: Connection, attempts: Sequence[AnyRow]
) -> Iterator[VersionSummary]:
    """Yield a summary of each released version, for ``read_training``.

    ``attempts`` are the rows of all attempts, in order. The summaries come in the order
    of the attempts that were released.
    """
    charge = schema.charge.c
    rejection = schema.rejection.c
    charged: dict[int, set[ClientId]] = defaultdict(set)
    charges = connection.execute(select(charge.attempt, charge.client))
    for attempt, client in charges:
        charged[attempt].add(client)
    rejected: dict[int, Counter[str]] = defaultdict(Counter)
    rejections = connection.execute(select(rejection.attempt, rejection.reason))
    for attempt, reason in rejections:
        rejected[attempt][reason.value] += 1
    tries = Counter(row.version for row in attempts)
    participations: Counter[ClientId] = Counter()
    charged_in_version: dict[int, set[ClientId]] = defaultdict(set)
    for row in attempts:
        if row.state in CHARGED:
            # Further attempts of a version cost a client no further participation.
            first_charged = charged[row.attempt] - charged_in_version[row.version]
            participations.update(first_charged)
            charged_in_version[row.version] |= first_charged
        if row.state is AttemptState.DONE:
            yield VersionSummary(
                version=row.version,
                attempts=tries[row.version],
                counted=len(charged[row.attempt]),
                rejected=dict(rejected[row.attempt]),
                most_participations=max(participations.values(), default=0),
            )


def read_task(canonical: bytes) -> Task:
    """Return the task with these canonical bytes, which are JSON.

    Raises Misconfiguration: they are no task.
    """
    try:
        return Task.parse(json.loads(canonical))
    except (ValueError, RecursionError) as error:
        raise Misconfiguration("task", "JSON", f"can't be read: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One server's database at one moment, within its reading transaction."""

    connection: Connection
    task: Task
    role: Role
    head: Head
    """Where the ledger ended at that moment."""
    ledger: Ledger
    versions: Versions


@contextmanager
def snapshot(url: str) -> Iterator[Snapshot]:
    """Yield a server's database at one moment; the server may be running.

    Raises Misconfiguration and StorageFailure, as ``read_training`` does.
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
