"""The audit of a server's ledger, its comparison with the other server's, and backups.

The audit shows whether anybody changed the ledger from outside. A backup is a copy of a
server's state, which is audited too.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, func, select

from precad.aggregator import Fact
from precad.aggregator.store import (
    PENDING,
    SHARE_OF,
    AttemptState,
    Head,
    LedgerEntry,
    Snapshot,
    ledger_start,
    schema,
    snapshot,
    storage_errors,
)
from precad.common import (
    Digest,
    Misconfiguration,
    Role,
    StorageFailure,
    frozen_dataclass,
    frozen_kw_only_dataclass,
    make_folder,
    writing,
)
from precad.common.files import sync

_CHARGED = {AttemptState.PREPARED, AttemptState.LEARNED}
_EVENTS_BY_STATE = {
    AttemptState.PREPARED: _CHARGED,
    AttemptState.COUNTERSIGNED: _CHARGED,
    AttemptState.SENT: _CHARGED,
    AttemptState.DONE: _CHARGED,
    AttemptState.LEARNED: {AttemptState.LEARNED},
    AttemptState.VOIDED: {AttemptState.VOIDED},
    AttemptState.WRITTEN_OFF: {AttemptState.WRITTEN_OFF},
}
"""Events that an attempt's newest entry may have, by the attempt's state. Attempts in
other states have no entry."""
DATABASE = "state.db"
"""The database's file in a state folder."""
BESIDE = ("model.seal", "model.safetensors")
"""The files beside it, in the order in which they are copied: the seal first, so that
of a model that is there it is never the older."""
TOKENS = "tokens"
"""The folder of enrolment tokens in a state folder."""


@frozen_dataclass
class LedgerFinding:
    """One thing that is wrong, and where: the two make up a line for people."""

    where: str
    what: str


@frozen_kw_only_dataclass
class Audit:
    """What came of checking a ledger."""

    entries: int
    """How many entries the ledger has."""
    head: Digest
    """The newest entry's hash. Noted elsewhere, it shows a ledger that was replaced as
    a whole."""
    findings: tuple[LedgerFinding, ...]
    schema: str
    """The revision of the database's schema, such as ``0006``."""


def audit_ledger(url: str, noted_head: Digest | None = None) -> Audit:
    """Recompute the chain, and hold attempts, charges and rejections against it.

    Args:
        url: the SQLAlchemy URL of a server's database; the server may be running.
        noted_head: a head that was noted before; it must still be in the chain.

    Raises Misconfiguration: there is no such database, or a newer version wrote it;
    StorageFailure: it can't be read.
    """
    with snapshot(url) as server:
        start = ledger_start(server.task.digest, server.role)
        chain: list[LedgerEntry] = []
        findings: list[LedgerFinding] = []
        try:
            chain.extend(server.ledger.entries())
            findings += _chain_findings(chain, start, server.head)
            findings += _noise_findings(chain, server.task.mechanism.noise_multiplier)
            findings += _rate_findings(server.connection)
            findings += _round_findings(server, chain)
            findings += _sum_findings(server)
            findings += _orphans(server.connection)
        except StorageFailure as error:
            findings.append(LedgerFinding("ledger", str(error)))
        heads = {start, *(entry.hash for entry in chain)}
        if noted_head is not None and noted_head not in heads:
            problem = f"the noted head {noted_head} isn't in it: it was replaced"
            findings.append(LedgerFinding("ledger", problem))
    return Audit(
        entries=server.head.length,
        head=server.head.head,
        findings=tuple(findings),
        schema=server.schema,
    )


def compare_ledgers(url: str, other: str) -> tuple[LedgerFinding, ...]:
    """Return the charges and voids that two servers' databases don't hold alike.

    Both servers may be running; an attempt that is under way may differ.

    Args:
        url: the SQLAlchemy URL of one server's database.
        other: that of the other server's.

    Raises Misconfiguration: the databases aren't those of one task's two servers. Else
    as ``audit_ledger``.
    """
    task, role, facts = _facts(url)
    other_task, other_role, other_facts = _facts(other)
    if task != other_task or {role, other_role} != {Role.SERVER_A, Role.SERVER_B}:
        holds = f"holds {other_role.value} of task {other_task}"
        raise Misconfiguration(
            "--against",
            other,
            f"{holds}, not the other server of {role.value}'s task {task}",
        )
    findings = []
    for attempt in sorted(facts.keys() | other_facts.keys()):
        fact = facts.get(attempt)
        other_fact = other_facts.get(attempt)
        if fact != other_fact:
            difference = _difference(fact, other_fact, other_role)
            findings.append(LedgerFinding(f"attempt {attempt}", difference))
    return tuple(findings)


def _facts(url: str) -> tuple[Digest, Role, dict[int, Fact]]:
    """Return a server's task, its role, and all facts of its ledger by attempt."""
    with snapshot(url) as server:
        versions = server.connection.scalars(
            select(schema.attempts.c.version).distinct()
        ).all()
        facts = [fact for version in versions for fact in server.ledger.facts(version)]
    return server.task.digest, server.role, {fact.attempt: fact for fact in facts}


def _difference(fact: Fact | None, other_fact: Fact | None, other_role: Role) -> str:
    """Say how what two ledgers hold of one attempt differs; None: nothing."""

    def describe(fact: Fact | None) -> str:
        if fact is None:
            return "isn't in it"
        return "is voided" if fact.voided else f"charges {len(fact.clients)} clients"

    entry = describe(fact)
    other_entry = describe(other_fact)
    if fact is not None and other_fact is not None and entry == other_entry:
        return f"charges other clients than in {other_role.value}'s ledger"
    return f"{entry} here, and {other_entry} in {other_role.value}'s ledger"


def _chain_findings(
    chain: list[LedgerEntry], start: Digest, head: Head
) -> Iterator[LedgerFinding]:
    """Check numbers and hashes of the entries, from ``start`` to the kept ``head``."""
    previous = start
    for expected, entry in enumerate(chain, start=1):
        where = f"entry {entry.sequence}"
        if entry.sequence != expected:
            yield LedgerFinding(where, f"entry {expected} is missing")
            return
        if entry.previous != previous:
            yield LedgerFinding(where, "doesn't follow on the entry before it")
        if entry.hash != entry.content_hash():
            yield LedgerFinding(where, "its content or its charges were changed")
        previous = entry.hash
    if len(chain) != head.length:
        yield LedgerFinding(
            "ledger", f"has {len(chain)} entries where {head.length} were written"
        )
    elif previous != head.head:
        yield LedgerFinding(
            "ledger", "doesn't end with the entry that was written last"
        )


def _noise_findings(
    chain: list[LedgerEntry], task_multiplier: float
) -> Iterator[LedgerFinding]:
    """Check that every entry has the task's noise multiplier."""
    for entry in chain:
        multiplier = entry.noise_multiplier
        if multiplier != task_multiplier:
            yield LedgerFinding(
                f"entry {entry.sequence}",
                f"has noise multiplier {multiplier}, the task {task_multiplier}",
            )


def _rate_findings(connection: Connection) -> Iterator[LedgerFinding]:
    """Check that clients are charged at the rates with which they are enrolled."""
    charge = schema.charge.c
    claim = schema.enrolment.c
    query = (
        select(schema.charge, claim.record_rate.label("claimed"))
        .order_by(charge.sequence)
        .where(
            claim.client == charge.client,
            claim.record_rate != charge.record_rate,
        )
    )
    for row in connection.execute(query):
        yield LedgerFinding(
            f"entry {row.sequence}",
            f"charges {row.client} at rate {row.record_rate}, it is enrolled with"
            f" {row.claimed}",
        )


def _round_findings(
    server: Snapshot, chain: list[LedgerEntry]
) -> Iterator[LedgerFinding]:
    """Check that every attempt that left something is charged, for all valid clients.

    Covered uploads of clients that the coin didn't draw are valid and not charged. A
    noisy share may be gone once both servers hold the model that it led to.
    """
    connection = server.connection
    covered = server.task.mechanism.hides_coin
    confirmed = server.versions.confirmed()
    newest_entries = {entry.attempt: entry for entry in chain}
    releases = {
        entry.attempt: entry for entry in chain if entry.event is AttemptState.PREPARED
    }
    attempts = schema.attempts
    rejection = schema.rejection.c
    rejected = (
        select(func.count())
        .where(rejection.attempt == attempts.c.attempt)
        .scalar_subquery()
    )
    query = select(attempts, rejected.label("rejected")).order_by(attempts.c.attempt)
    for row in connection.execute(query):
        where = f"attempt {row.attempt}"
        newest_entry = newest_entries.get(row.attempt)
        event = None if newest_entry is None else newest_entry.event
        if event not in _EVENTS_BY_STATE.get(row.state, {None}):
            entry = "doesn't name it" if event is None else f"has it as {event.value}"
            yield LedgerFinding(where, f"is {row.state.value}, and the ledger {entry}")
            continue
        release = releases.get(row.attempt)
        if release is None:
            continue
        if row.valid_set != release.valid_set:
            yield LedgerFinding(where, "its valid set isn't the one that was charged")
        share = connection.scalar(SHARE_OF, {"attempt": row.attempt})
        if share is None:
            # It may have been removed.
            share_fits = row.state not in PENDING and row.version < confirmed
        else:
            share_fits = Digest.of(share) == release.share_digest
        if not share_fits:
            yield LedgerFinding(
                where, "its noisy share isn't the one that was released"
            )
        charged = len(release.charges)
        if not covered and charged + row.rejected != row.cohort_size:
            yield LedgerFinding(
                where,
                f"of a cohort of {row.cohort_size}, {charged} are charged and"
                f" {row.rejected} rejected",
            )


def _sum_findings(server: Snapshot) -> Iterator[LedgerFinding]:
    """Check the sums that rounds read: of charges, opened attempts and statements."""
    connection = server.connection
    ledger = server.ledger
    kept_sums = ledger.sums()
    computed_sums = ledger.computed_sums()
    for client, m in sorted(kept_sums.keys() | computed_sums.keys()):
        kept = kept_sums.get((client, m), 0)
        computed = computed_sums.get((client, m), 0)
        if kept != computed:
            yield LedgerFinding(
                f"sums of {client}",
                f"name {kept} versions that were released 1 + {m} times, the charges"
                f" {computed}",
            )
    opened = func.coalesce(
        select(func.sum(schema.versions.c.opened)).scalar_subquery(), 0
    )
    kept, computed = connection.execute(select(schema.task.c.opened, opened)).one()
    if kept != computed:
        yield LedgerFinding(
            "opened attempts", f"their sum is {kept}, the versions have {computed}"
        )
    shown = schema.shown_statement.c
    statements = select(shown.client, shown.version, shown.known)
    for client, version, known in connection.execute(statements).all():
        computed = sum(ledger.charged_before(version).get(client, {}).values())
        if known != computed:
            yield LedgerFinding(
                f"statement of {client}",
                f"counts {known} charged versions, the ledger {computed}",
            )


def _orphans(connection: Connection) -> Iterator[LedgerFinding]:
    """Find rows that belong to nothing in an SQLite file that was changed from outside.

    PostgreSQL refuses such rows.
    """
    if connection.dialect.name == "sqlite":
        for name, _, parent, _ in connection.exec_driver_sql(
            "PRAGMA foreign_key_check"
        ):
            yield LedgerFinding(
                f"table {name}", f"has a row that belongs to no row of {parent}"
            )


def back_up(state: Path, copy: Path) -> Audit:
    """Copy a state folder to a new folder, and audit the copy; return the audit.

    The server may be running. The database is copied first and whole, as of one moment;
    the model may be a round newer, as it may be after a crash. Bodies in the spool
    aren't copied: they end with their attempt. Nor is the journal file, which a copy
    must never replace (docs/durable-state.md). The audit's head is what to note
    elsewhere.

    Raises Misconfiguration: ``state`` holds no SQLite database, or ``copy`` exists;
    StorageFailure: the database can't be read or the copy can't be written.
    """
    database = state / DATABASE
    if not database.is_file():
        raise Misconfiguration(
            "STATE",
            state,
            f"holds no {DATABASE}; of a database on PostgreSQL make a copy with"
            f" pg_dump, and copy {' and '.join(BESIDE)} beside it",
        )
    if copy.exists():
        raise Misconfiguration("COPY", copy, "exists already: name a new folder")
    draft = copy.with_name(f".{copy.name}.part")
    with writing(copy, "make room there, or name another folder"):
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft)
        with storage_errors():
            _copy_database(database, draft / DATABASE)
        for name in BESIDE:
            if (state / name).exists():
                shutil.copy2(state / name, draft / name)
        if (state / TOKENS).is_dir():
            shutil.copytree(state / TOKENS, draft / TOKENS)
        for path in (*draft.rglob("*"), draft):
            sync(path)
        draft.rename(copy)
        sync(copy.parent)
    return audit_ledger(f"sqlite:///{(copy / DATABASE).resolve()}")


def _copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database, which may be in use, to one file for its owner alone."""
    target.touch(mode=0o600)
    with (
        closing(sqlite3.connect(source)) as database,
        closing(sqlite3.connect(target)) as copied,
    ):
        database.execute("PRAGMA query_only=ON")
        database.backup(copied)
        # One file, without the log that WAL keeps beside it.
        copied.execute("PRAGMA journal_mode=DELETE")
