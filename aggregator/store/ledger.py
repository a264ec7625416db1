"""The ledger: who was charged for which release, as a chain of hashes.

Every attempt that is prepared, voided, written off or learned again makes one entry, written in
the transaction that changes its state. An entry's hash covers its content, a fresh salt, the
clients that it charges, and the hash before it; the first one follows on the task and the role. So
a later edit, deletion or insertion anywhere breaks the chain from there on. Somebody who may write
to the database can also compute a new chain: against that helps a head that was noted elsewhere
(``audit``).
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sqlalchemy import Connection, insert, select, update

from precad.aggregator.rounds.journal import AttemptState
from precad.aggregator.store import tables
from precad.common.errors import StorageFailure
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import encode_context
from precad.common.task import Task

_SALT_BYTES = 32
_UNSALTED = {AttemptState.PREPARED: "released", AttemptState.WRITTEN_OFF: "forfeited"}
"""What entries of the first schema called themselves; they had no salts."""


@dataclass(frozen=True, slots=True, order=True)
class Charge:
    """One participation of one client."""

    client: ClientId
    record_rate: float
    """p_i at the time."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One link of the chain."""

    sequence: int
    """1, 2, 3, …, without gaps."""
    event: AttemptState
    """PREPARED: charged, the noisy share is persisted. LEARNED: a charge that was forgotten.
    VOIDED: the attempt costs nothing. WRITTEN_OFF: given up, and its charge stands."""
    attempt: int
    version: int
    noise_multiplier: float
    """σ of this server's noise."""
    valid_set: Digest | None
    share_digest: Digest | None
    """SHA-256 of the persisted noisy share; it never leaves the database."""
    salt: bytes | None
    """32 random bytes: the hash leaves this server, and must not tell who was charged."""
    charges: tuple[Charge, ...]
    """By client. None of those whom the attempt had charged before."""
    previous: Digest
    hash: Digest

    def content_hash(self) -> Digest:
        """What ``hash`` must be: SHA-256 over everything else in the entry."""
        parts: list[bytes | int] = [
            self.previous.value,
            self.sequence,
            (_UNSALTED.get(self.event, "") if self.salt is None else self.event.value).encode(),
            self.attempt,
            self.version,
            self.noise_multiplier.hex().encode(),
            b"" if self.valid_set is None else self.valid_set.value,
            b"" if self.share_digest is None else self.share_digest.value,
        ]
        if self.salt is not None:
            parts.append(self.salt)
        for charge in self.charges:
            parts += [charge.client.encoded(), charge.record_rate.hex().encode()]
        return Digest.of(encode_context("ledger-entry", *parts))


def ledger_start(task: Digest, role: Role) -> Digest:
    """What the first entry follows on."""
    return Digest.of(encode_context("ledger", task.value, role.value.encode()))


def append(
    connection: Connection,
    task: Task,
    event: AttemptState,
    *,
    attempt: int,
    version: int,
    clients: Iterable[ClientId],
    valid_set: Digest | None,
    share_digest: Digest | None,
) -> None:
    """Add an entry and its charges, in the caller's transaction.

    A client that isn't enrolled here is charged at the task's rate, which no client's passes.
    """
    rates = {row.client: row.record_rate for row in connection.execute(select(tables.enrolment))}
    cap = task.privacy.record_rate
    length, head = connection.execute(
        select(tables.task.c.ledger_length, tables.task.c.ledger_head)
    ).one()
    draft = LedgerEntry(
        sequence=length + 1,
        event=event,
        attempt=attempt,
        version=version,
        noise_multiplier=task.privacy.noise_multiplier,
        valid_set=valid_set,
        share_digest=share_digest,
        salt=secrets.token_bytes(_SALT_BYTES),
        charges=tuple(Charge(c, rates.get(c, cap)) for c in sorted(clients)),
        previous=head,
        hash=head,
    )
    entry = replace(draft, hash=draft.content_hash())
    fields = tables.ledger.c.keys()
    connection.execute(
        insert(tables.ledger).values({name: getattr(entry, name) for name in fields})
    )
    if entry.charges:
        of_entry = {"attempt": attempt, "sequence": entry.sequence}
        connection.execute(
            insert(tables.charge),
            [of_entry | {"client": c.client, "record_rate": c.record_rate} for c in entry.charges],
        )
    connection.execute(
        update(tables.task).values(ledger_length=entry.sequence, ledger_head=entry.hash)
    )


def entries(connection: Connection) -> Iterator[LedgerEntry]:
    """The ledger from its first entry on, as it stands in the database; nothing is checked.

    Raises:
        StorageFailure: a field holds what no server writes there.
    """
    charge, length = tables.charge.c, 0
    try:
        for row in connection.execute(select(tables.ledger).order_by(tables.ledger.c.sequence)):
            charges = connection.execute(
                select(charge.client, charge.record_rate).where(charge.sequence == row.sequence)
            )
            yield LedgerEntry(
                # SQLite keeps a text in a column of numbers too, where somebody put one.
                sequence=int(row.sequence),
                event=row.event,
                attempt=int(row.attempt),
                version=int(row.version),
                noise_multiplier=float(row.noise_multiplier),
                valid_set=row.valid_set,
                share_digest=row.share_digest,
                salt=row.salt,
                charges=tuple(sorted(Charge(c.client, float(c.record_rate)) for c in charges)),
                previous=row.previous,
                hash=row.hash,
            )
            length += 1
    except (ValueError, TypeError, StorageFailure) as error:
        raise StorageFailure(f"ledger entry {length + 1} can't be read: {error}") from None
