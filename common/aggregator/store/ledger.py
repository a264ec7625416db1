"""The ledger: who was charged for which release, as a chain of hashes.

Every release and every forfeited round makes one entry, written in the transaction that makes
the round releasable. An entry's hash covers its content, the clients that it charges, and the
hash before it; the first one follows on the task and the role. So a later edit, deletion or
insertion anywhere breaks the chain from there on. Somebody who may write to the database can
also compute a new chain: against that helps a head that was noted elsewhere (``audit``).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from precad.common.aggregator.store import tables
from precad.common.errors import PrecadError, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import encode_context
from precad.common.task import Task


class LedgerEvent(Enum):
    """Why clients were charged."""

    RELEASED = "released"
    """This server's noisy share of the round may have left."""
    FORFEITED = "forfeited"
    """The round was given up after one of the servers had released."""


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
    event: LedgerEvent
    number: int
    version: int
    noise_multiplier: float
    """σ of this server's noise."""
    valid_set: Digest | None
    share_digest: Digest | None
    """SHA-256 of the persisted noisy share; it never leaves the database."""
    charges: tuple[Charge, ...]
    """By client. None of those whom the round had charged before."""
    previous: Digest
    hash: Digest

    def content_hash(self) -> Digest:
        """What ``hash`` must be: SHA-256 over everything else in the entry."""
        parts: list[bytes | int] = [
            self.previous.value,
            self.sequence,
            self.event.value.encode(),
            self.number,
            self.version,
            self.noise_multiplier.hex().encode(),
            b"" if self.valid_set is None else self.valid_set.value,
            b"" if self.share_digest is None else self.share_digest.value,
        ]
        for charge in self.charges:
            parts += [charge.client.encoded(), charge.record_rate.hex().encode()]
        return Digest.of(encode_context("ledger-entry", *parts))


def ledger_start(task: Digest, role: Role) -> Digest:
    """What the first entry follows on."""
    return Digest.of(encode_context("ledger", task.value, role.value.encode()))


def append(
    connection: Connection,
    task: Task,
    event: LedgerEvent,
    *,
    number: int,
    version: int,
    clients: Iterable[ClientId],
    valid_set: Digest | None,
    share_digest: Digest | None,
) -> None:
    """Add an entry and its charges, in the caller's transaction.

    A client that isn't enrolled here is charged at the task's rate, which no client's passes.
    """
    rates = claimed_rates(connection)
    cap = task.privacy.record_rate
    length, head = connection.execute(
        select(tables.task.c.ledger_length, tables.task.c.ledger_head)
    ).one()
    draft = LedgerEntry(
        sequence=length + 1,
        event=event,
        number=number,
        version=version,
        noise_multiplier=task.privacy.noise_multiplier,
        valid_set=valid_set,
        share_digest=share_digest,
        charges=tuple(Charge(c, rates.get(c.name, cap)) for c in sorted(clients)),
        previous=Digest(head),
        hash=Digest(head),
    )
    newest = draft.content_hash()
    connection.execute(
        insert(tables.ledger).values(
            sequence=draft.sequence,
            event=event.value,
            number=number,
            version=version,
            noise_multiplier=draft.noise_multiplier,
            valid_set=None if valid_set is None else valid_set.value,
            share_digest=None if share_digest is None else share_digest.value,
            previous=head,
            hash=newest.value,
        )
    )
    if draft.charges:
        connection.execute(
            insert(tables.charge),
            [
                {
                    "number": number,
                    "client": charge.client.name,
                    "record_rate": charge.record_rate,
                    "sequence": draft.sequence,
                }
                for charge in draft.charges
            ],
        )
    connection.execute(
        update(tables.task).values(ledger_length=draft.sequence, ledger_head=newest.value)
    )


def entries(connection: Connection) -> Iterator[LedgerEntry]:
    """The ledger from its first entry on, as it stands in the database; nothing is checked.

    Raises:
        StorageFailure: a field holds what no server writes there.
    """
    charge = tables.charge.c
    for row in connection.execute(select(tables.ledger).order_by(tables.ledger.c.sequence)):
        charges = connection.execute(
            select(charge.client, charge.record_rate).where(
                charge.number == row.number, charge.sequence == row.sequence
            )
        )
        try:
            yield _entry(row, [Charge(ClientId(c.client), float(c.record_rate)) for c in charges])
        except (ValueError, TypeError, PrecadError) as error:
            raise StorageFailure(f"ledger entry {row.sequence} can't be read: {error}") from None


def claimed_rates(connection: Connection) -> dict[str, float]:
    """p_i of everybody who enrolled, by name."""
    enrolment = tables.enrolment.c
    rows = connection.execute(select(enrolment.client, enrolment.record_rate))
    return {row.client: row.record_rate for row in rows}


def participations(connection: Connection) -> dict[ClientId, int]:
    """T_i: how often each client was charged."""
    charge = tables.charge
    rows = connection.execute(select(charge.c.client, func.count()).group_by(charge.c.client)).all()
    return {ClientId(client): count for client, count in rows}


def _entry(row: Row[Any], charges: list[Charge]) -> LedgerEntry:
    return LedgerEntry(
        sequence=int(row.sequence),
        event=LedgerEvent(row.event),
        number=int(row.number),
        version=int(row.version),
        noise_multiplier=float(row.noise_multiplier),
        valid_set=None if row.valid_set is None else Digest(row.valid_set),
        share_digest=None if row.share_digest is None else Digest(row.share_digest),
        charges=tuple(sorted(charges)),
        previous=Digest(row.previous),
        hash=Digest(row.hash),
    )
