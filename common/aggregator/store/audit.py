"""Reading a server's ledger beside the running server, and checking that nobody changed it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, func, select

from precad.common.aggregator.round.journal import CHARGED, RoundState
from precad.common.aggregator.store import tables
from precad.common.aggregator.store.engine import parse_url, reading_engine, storage_errors
from precad.common.aggregator.store.ledger import (
    LedgerEntry,
    LedgerEvent,
    claimed_rates,
    entries,
    ledger_start,
)
from precad.common.aggregator.store.migrate import require_current
from precad.common.errors import StorageFailure
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.task import Task


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What came of checking a ledger."""

    entries: int
    """How many there are."""
    head: Digest
    """The newest hash. Noted elsewhere, it shows a ledger that was replaced as a whole."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ClientCharges:
    """What the ledger says of one client."""

    client: ClientId
    participations: int
    record_rate: float
    """The highest that it was charged at, or its claim where it never was."""


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A server's ledger at one moment."""

    task: Task
    role: Role
    clients: tuple[ClientCharges, ...]
    """Enrolled or charged, by name."""
    released: int
    """Rounds that released and weren't forfeited."""
    forfeited: int
    entries: int
    head: Digest


def read_ledger(url: str) -> LedgerView:
    """The ledger of a server that may be running; changes nothing.

    Args:
        url: SQLAlchemy URL of the server's database.

    Raises:
        Misconfiguration: there is no such database, or its schema isn't this version's.
        StorageFailure: it can't be read.
    """
    with _snapshot(url) as connection:
        task, role, length, head = _owner(connection)
        charge = tables.charge.c
        found = {
            client: ClientCharges(ClientId(client), 0, rate)
            for client, rate in claimed_rates(connection).items()
        }
        charged = select(charge.client, func.count(), func.max(charge.record_rate))
        for client, count, rate in connection.execute(charged.group_by(charge.client)):
            found[client] = ClientCharges(ClientId(client), count, rate)
        states = _counts(connection, tables.training_round.c.state)
    return LedgerView(
        task=task,
        role=role,
        clients=tuple(found[client] for client in sorted(found)),
        released=states.get(RoundState.RELEASED.value, 0) + states.get(RoundState.DONE.value, 0),
        forfeited=states.get(RoundState.FORFEITED.value, 0),
        entries=length,
        head=head,
    )


def audit_ledger(url: str, noted_head: Digest | None = None) -> Audit:
    """Recompute the chain, and hold rounds, charges and rejections against it.

    Args:
        url: SQLAlchemy URL of the server's database; the server may be running.
        noted_head: a head that was noted earlier; it must still be in the chain.

    Raises:
        Misconfiguration: there is no such database, or its schema isn't this version's.
        StorageFailure: it can't be read.
    """
    with _snapshot(url) as connection:
        task, role, length, head = _owner(connection)
        chain: list[LedgerEntry] = []
        findings: list[Finding] = []
        try:
            chain.extend(entries(connection))
        except StorageFailure as error:
            findings.append(Finding("ledger", str(error)))
        else:
            findings += _chain_findings(chain, ledger_start(task.digest, role), length, head)
            findings += _charge_findings(connection, chain, task)
            findings += _round_findings(connection, chain)
        heads = {ledger_start(task.digest, role), *(entry.hash for entry in chain)}
        if noted_head is not None and noted_head not in heads:
            findings.append(
                Finding("ledger", f"the noted head {noted_head} isn't in it: it was replaced")
            )
    return Audit(length, head, tuple(findings))


def _chain_findings(
    chain: list[LedgerEntry], start: Digest, length: int, head: Digest
) -> Iterator[Finding]:
    previous = start
    for expected, entry in enumerate(chain, start=1):
        where = f"entry {entry.sequence}"
        if entry.sequence != expected:
            yield Finding(where, f"entry {expected} is missing")
            return
        if entry.previous != previous:
            yield Finding(where, "doesn't follow on the entry before it")
        if entry.hash != entry.content_hash():
            yield Finding(where, "its content or its charges were changed")
        previous = entry.hash
    if len(chain) != length:
        yield Finding("ledger", f"has {len(chain)} entries where {length} were written")
    elif previous != head:
        yield Finding("ledger", "doesn't end with the entry that was written last")


def _charge_findings(
    connection: Connection, chain: list[LedgerEntry], task: Task
) -> Iterator[Finding]:
    rates = claimed_rates(connection)
    for entry in chain:
        if entry.noise_multiplier != task.privacy.noise_multiplier:
            yield Finding(
                f"entry {entry.sequence}",
                f"has noise multiplier {entry.noise_multiplier}, "
                f"the task {task.privacy.noise_multiplier}",
            )
        for charge in entry.charges:
            claimed = rates.get(charge.client.name, charge.record_rate)
            if charge.record_rate != claimed:
                yield Finding(
                    f"entry {entry.sequence}",
                    f"charges {charge.client} at rate {charge.record_rate}, it is enrolled "
                    f"with {claimed}",
                )
    written = connection.execute(select(func.count()).select_from(tables.charge)).scalar_one()
    covered = sum(len(entry.charges) for entry in chain)
    if written != covered:
        yield Finding("charges", f"{written - covered} charges belong to no entry")


def _round_findings(connection: Connection, chain: list[LedgerEntry]) -> Iterator[Finding]:
    """Every round that left something behind is charged, for all its valid clients."""
    by_round: dict[int, list[LedgerEntry]] = {}
    for entry in chain:
        by_round.setdefault(entry.number, []).append(entry)
    rounds = tables.training_round
    rejected = _counts(connection, tables.rejection.c.number)
    for row in connection.execute(select(rounds).order_by(rounds.c.number)):
        where = f"round {row.number}"
        own = by_round.pop(row.number, [])
        if row.state not in {state.value for state in CHARGED}:
            if own:
                yield Finding(where, f"is {row.state}, but the ledger charges it")
            continue
        if not own:
            yield Finding(where, f"is {row.state}, and the ledger doesn't charge it")
            continue
        release = next((e for e in own if e.event is LedgerEvent.RELEASED), None)
        forfeit = next((e for e in own if e.event is LedgerEvent.FORFEITED), None)
        if any(entry.version != row.version for entry in own):
            yield Finding(where, f"starts from model {row.version}, its entry says otherwise")
        if (row.state == RoundState.FORFEITED.value) != (forfeit is not None):
            yield Finding(where, f"is {row.state}, its newest entry says otherwise")
        if release is None:
            if row.state != RoundState.FORFEITED.value:
                yield Finding(where, f"is {row.state}, its entry says forfeited")
            continue
        valid_set = None if release.valid_set is None else release.valid_set.value
        if row.valid_set != valid_set:
            yield Finding(where, "its valid set isn't the one that was charged")
        share = None if row.noisy_share is None else Digest.of(row.noisy_share)
        if share != release.share_digest:
            yield Finding(where, "its noisy share isn't the one that was released")
        if len(release.charges) + rejected.get(row.number, 0) != row.cohort_size:
            yield Finding(
                where,
                f"of a cohort of {row.cohort_size}, {len(release.charges)} are charged and "
                f"{rejected.get(row.number, 0)} rejected",
            )
    for number in by_round:
        yield Finding(f"round {number}", "is charged, and isn't among the rounds")


def _counts(connection: Connection, column: Column[Any]) -> dict[Any, int]:
    """How many rows there are of each value."""
    rows = connection.execute(select(column, func.count()).group_by(column))
    return {row[0]: row[1] for row in rows}


def _owner(connection: Connection) -> tuple[Task, Role, int, Digest]:
    row = connection.execute(select(tables.task)).one_or_none()
    if row is None:
        raise StorageFailure("the database names no task; its table was emptied")
    task = Task.from_canonical(row.canonical)
    if str(task.digest) != row.digest:
        raise StorageFailure("the task in the database isn't the one that its digest names")
    return task, Role(row.role), row.ledger_length, Digest(row.ledger_head)


@contextmanager
def _snapshot(url: str) -> Iterator[Connection]:
    engine = reading_engine(parse_url(url))
    try:
        with storage_errors(), engine.begin() as connection:
            require_current(connection)
            yield connection
    finally:
        engine.dispose()
