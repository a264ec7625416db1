"""Whether anybody changed a server's ledger, two servers' hold the same, and a copy of a state."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select

from precad.aggregator.server_messages import Fact
from precad.aggregator.store import schema
from precad.aggregator.store.attempts import SHARE_OF
from precad.aggregator.store.ledger import Head, LedgerEntry, ledger_start
from precad.aggregator.store.schema import PENDING, AttemptState
from precad.aggregator.store.summary import Snapshot, snapshot
from precad.aggregator.store.transaction import storage_errors
from precad.common.errors import Misconfiguration, StorageFailure
from precad.common.files import make_folder, sync
from precad.common.identifiers import Digest, Role

_CHARGED = {AttemptState.PREPARED, AttemptState.LEARNED}
_ENTRY_OF = {
    **dict.fromkeys((*PENDING, AttemptState.DONE), _CHARGED),
    AttemptState.LEARNED: {AttemptState.LEARNED},
    AttemptState.VOIDED: {AttemptState.VOIDED},
    AttemptState.WRITTEN_OFF: {AttemptState.WRITTEN_OFF},
}
"""What the newest entry of an attempt says, by the attempt's state; others have none.
"""
DATABASE = "state.db"
BESIDE = ("model.seal", "model.safetensors")
"""The seal first: of a model that is there it is never the older."""
TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class LedgerFinding:
    """One thing that is wrong, and where."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What came of checking a ledger of so many entries."""

    entries: int
    head: Digest
    """The newest hash. Noted elsewhere, it shows a ledger that was replaced as a whole.
    """
    findings: tuple[LedgerFinding, ...]


def audit_ledger(url: str, noted_head: Digest | None = None) -> Audit:
    """Recompute the chain, and hold attempts, charges and rejections against it.

    The server at the SQLAlchemy URL may be running; ``noted_head`` must still be in the
    chain. Raises Misconfiguration: there is no such database, or its schema isn't this
    version's; StorageFailure: it can't be read.
    """
    with snapshot(url) as server:
        start = ledger_start(server.task.digest, server.role)
        own = server.task.privacy.noise_multiplier
        chain: list[LedgerEntry] = []
        findings: list[LedgerFinding] = []
        try:
            chain.extend(server.ledger.entries())
            findings += _chain_findings(chain, start, server.head)
            findings += [
                LedgerFinding(
                    f"entry {each.sequence}",
                    f"has noise multiplier {noise}, the task {own}",
                )
                for each in chain
                if (noise := each.noise_multiplier) != own
            ]
            findings += _rate_findings(server.connection)
            findings += _round_findings(server, chain)
            findings += _sum_findings(server)
            findings += _orphans(server.connection)
        except StorageFailure as error:
            findings.append(LedgerFinding("ledger", str(error)))
        if noted_head is not None and noted_head not in {
            start,
            *(entry.hash for entry in chain),
        }:
            said = f"the noted head {noted_head} isn't in it: it was replaced"
            findings.append(LedgerFinding("ledger", said))
    return Audit(server.head.length, server.head.head, tuple(findings))


def compare_ledgers(url: str, other: str) -> tuple[LedgerFinding, ...]:
    """Return what two servers' databases don't hold alike: charges and voids, attempt by attempt.

    Both may be running; an attempt that is under way may differ. Raises as
    ``audit_ledger``, and Misconfiguration: the two aren't those of one task's two
    servers.
    """
    (one, here), (two, there) = _facts(url), _facts(other)
    if one[0] != two[0] or {one[1], two[1]} != {Role.SERVER_A, Role.SERVER_B}:
        said = f"not the other server of {one[1].value}'s task {one[0]}"
        raise Misconfiguration(
            "--against", other, f"holds {two[1].value} of task {two[0]}, {said}"
        )
    return tuple(
        LedgerFinding(
            f"attempt {attempt}",
            _difference(here.get(attempt), there.get(attempt), two[1]),
        )
        for attempt in sorted(here.keys() | there.keys())
        if here.get(attempt) != there.get(attempt)
    )


def _facts(url: str) -> tuple[tuple[Digest, Role], dict[int, Fact]]:
    with snapshot(url) as server:
        versions = server.connection.scalars(
            select(schema.attempts.c.version).distinct()
        ).all()
        facts = [fact for version in versions for fact in server.ledger.facts(version)]
    return (server.task.digest, server.role), {fact.attempt: fact for fact in facts}


def _difference(here: Fact | None, there: Fact | None, other: Role) -> str:
    def said(fact: Fact | None) -> str:
        if fact is None:
            return "isn't in it"
        return "is voided" if fact.voided else f"charges {len(fact.clients)} clients"

    if here is not None and there is not None and said(here) == said(there):
        return f"charges other clients than in {other.value}'s ledger"
    return f"{said(here)} here, and {said(there)} in {other.value}'s ledger"


def _chain_findings(
    chain: list[LedgerEntry], start: Digest, head: Head
) -> Iterator[LedgerFinding]:
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


def _rate_findings(connection: Connection) -> Iterator[LedgerFinding]:
    charge = schema.charge.c
    claim = schema.enrolment.c
    charged = select(schema.charge, claim.record_rate.label("claimed")).order_by(
        charge.sequence
    )
    other = (claim.client == charge.client, claim.record_rate != charge.record_rate)
    for row in connection.execute(charged.where(*other)):
        said = (
            f"charges {row.client} at rate {row.record_rate}, it is enrolled with"
            f" {row.claimed}"
        )
        yield LedgerFinding(f"entry {row.sequence}", said)


def _round_findings(
    server: Snapshot, chain: list[LedgerEntry]
) -> Iterator[LedgerFinding]:
    """Every attempt that left something behind is charged, for all its valid clients.

    Covered uploads of clients that the coin didn't draw are valid and not charged. Of
    versions whose model both servers hold the noisy share may be gone.
    """
    connection = server.connection
    covered = server.task.privacy.cover_uploads
    over_on_both = server.versions.confirmed()
    newest = {entry.attempt: entry for entry in chain}
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
    every = select(attempts, rejected.label("rejected")).order_by(attempts.c.attempt)
    for row in connection.execute(every):
        where = f"attempt {row.attempt}"
        charged = newest[row.attempt].event if row.attempt in newest else None
        if charged not in _ENTRY_OF.get(row.state, {None}):
            said = (
                "doesn't name it" if charged is None else f"has it as {charged.value}"
            )
            yield LedgerFinding(where, f"is {row.state.value}, and the ledger {said}")
            continue
        release = releases.get(row.attempt)
        if release is None:
            continue
        if row.valid_set != release.valid_set:
            yield LedgerFinding(where, "its valid set isn't the one that was charged")
        share = connection.scalar(SHARE_OF, {"attempt": row.attempt})
        over = row.state not in PENDING and row.version < over_on_both
        if not over if share is None else Digest.of(share) != release.share_digest:
            yield LedgerFinding(
                where, "its noisy share isn't the one that was released"
            )
        if not covered and len(release.charges) + row.rejected != row.cohort_size:
            said = f"{len(release.charges)} are charged and {row.rejected} rejected"
            yield LedgerFinding(where, f"of a cohort of {row.cohort_size}, {said}")


def _sum_findings(server: Snapshot) -> Iterator[LedgerFinding]:
    """Hold the sums that rounds go by against the charges and counts that they are of."""
    connection = server.connection
    ledger = server.ledger
    kept = ledger.sums()
    computed = ledger.computed_sums()
    for client, m in sorted(kept.keys() | computed.keys()):
        has = kept.get((client, m), 0)
        is_so = computed.get((client, m), 0)
        if has != is_so:
            said = (
                f"name {has} versions that were released 1 + {m} times, the charges"
                f" {is_so}"
            )
            yield LedgerFinding(f"sums of {client}", said)
    opened = func.coalesce(
        select(func.sum(schema.versions.c.opened)).scalar_subquery(), 0
    )
    has, is_so = connection.execute(select(schema.task.c.opened, opened)).one()
    if has != is_so:
        yield LedgerFinding(
            "opened attempts", f"their sum is {has}, the versions have {is_so}"
        )
    shown = schema.shown_statement.c
    stated = select(shown.client, shown.version, shown.known)
    for client, version, known in connection.execute(stated).all():
        if known != (
            is_so := sum(ledger.charged_before(version).get(client, {}).values())
        ):
            said = f"counts {known} charged versions, the ledger {is_so}"
            yield LedgerFinding(f"statement of {client}", said)


def _orphans(connection: Connection) -> Iterator[LedgerFinding]:
    """What belongs to nothing in a file that was changed from outside; PostgreSQL refuses it."""
    if connection.dialect.name == "sqlite":
        for name, _, parent, _ in connection.exec_driver_sql(
            "PRAGMA foreign_key_check"
        ):
            yield LedgerFinding(
                f"table {name}", f"has a row that belongs to no row of {parent}"
            )


def back_up(state: Path, copy: Path) -> Audit:
    """Copy what a state folder may be put back from to a new folder, and audit the copy.

    The server may be running. The database comes first and whole, as of one moment; the
    model may be a round newer, which a start after a crash knows too. Bodies in the
    spool aren't copied: they end with their attempt. Nor is the journal file, which a
    copy must never replace (docs/durable-state.md). The audit's head is what to note
    elsewhere. Raises Misconfiguration: ``state`` holds no SQLite database, or ``copy``
    exists; StorageFailure: the database can't be read or the copy can't be written.
    """
    database = state / DATABASE
    if not database.is_file():
        beside = f"pg_dump, and copy {' and '.join(BESIDE)} beside it"
        remedy = (
            f"holds no {DATABASE}; of a database on PostgreSQL make a copy with"
            f" {beside}"
        )
        raise Misconfiguration("STATE", str(state), remedy)
    if copy.exists():
        raise Misconfiguration("COPY", str(copy), "exists already: name a new folder")
    draft = copy.with_name(f".{copy.name}.part")
    try:
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
    except OSError as error:
        remedy = "make room there, or name another folder"
        raise StorageFailure(
            f"{copy} can't be written ({error.strerror}); {remedy}"
        ) from None
    return audit_ledger(f"sqlite:///{(copy / DATABASE).resolve()}")


def _copy_database(source: Path, target: Path) -> None:
    target.touch(mode=0o600)
    with (
        closing(sqlite3.connect(source)) as database,
        closing(sqlite3.connect(target)) as copied,
    ):
        database.execute("PRAGMA query_only=ON")
        database.backup(copied)
        # One file, without the log that WAL keeps beside it.
        copied.execute("PRAGMA journal_mode=DELETE")
