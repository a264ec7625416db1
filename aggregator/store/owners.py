"""What a server keeps of owners: who has enrolled, the frozen roster, and what was stated to them.

A statement that an owner shows may say more than the database does, which was put back
then.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from precad.aggregator.server_messages import SignedMessage
from precad.aggregator.store import schema
from precad.aggregator.store.attempts import Attempts
from precad.aggregator.store.ledger import Ledger
from precad.aggregator.store.transaction import Transaction
from precad.aggregator.store.versions import Versions
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest
from precad.common.roster import Enrolment, Roster
from precad.common.wire.messages import Statement

_ALL = select(schema.enrolment)
_SHOWN = schema.shown_statement.c


class Enrolments:
    """One server's enrolments. Each method is one transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def claims(self) -> Roster:
        """Return everybody who has enrolled here, in the frozen roster or not."""
        return _roster(self._transaction.rows(_ALL))

    def claim(self, enrolment: Enrolment) -> Enrolment:
        """Keep one client's claim, and return it, or the one that is kept: nobody heard of it."""
        with self._transaction.write() as connection:
            same = schema.enrolment.c.client == enrolment.client
            kept = _roster(connection.execute(_ALL.where(same)))
            if kept:
                return kept[enrolment.client]
            connection.execute(insert(schema.enrolment), _row(enrolment))
            return enrolment

    def roster(self) -> Roster | None:
        """Return the frozen roster, or None before round 0."""
        return (
            _roster(self._transaction.rows(_ALL.where(schema.enrolment.c.in_roster)))
            or None
        )

    def roster_seal(self) -> SignedMessage | None:
        """Return what the other server signed of the frozen roster."""
        found = self._transaction.value(select(schema.task.c.roster_seal))
        return None if found is None else SignedMessage.from_json(found)

    def keep_roster_seal(self, signed: SignedMessage) -> None:
        """Keep what the other server signed of the frozen roster."""
        with self._transaction.write() as connection:
            connection.execute(update(schema.task).values(roster_seal=signed.to_json()))

    def freeze(self, roster: Roster, *, taken_back: bool = False) -> None:
        """Keep the roster; it never changes again. Raises PeerViolation: it would.

        Also where it isn't made of claims that were kept here, but for one that is
        ``taken_back``: this server has signed it, and may have lost claims of it since.
        """
        with self._transaction.write() as connection:
            kept = self.roster()
            if kept:
                if kept.digest() != roster.digest():
                    raise PeerViolation("the roster is frozen and can't change")
                return
            table = schema.enrolment
            claims = self.claims()
            for client, claim in roster.items():
                if claims.get(client) == claim:
                    continue
                if not taken_back:
                    raise PeerViolation(
                        f"client {client} didn't enrol here with this claim"
                    )
                connection.execute(delete(table).where(table.c.client == client))
                connection.execute(insert(table), _row(claim))
            take = (
                update(table)
                .where(table.c.client == bindparam("name"))
                .values(in_roster=True)
            )
            connection.execute(take, [{"name": client} for client in roster])


def _row(claim: Enrolment) -> dict[str, object]:
    said = {
        "client": claim.client,
        "records": claim.records,
        "record_rate": claim.record_rate,
    }
    return said | {"in_roster": False}


def _roster(rows: Iterable[Any]) -> Roster:
    return Roster(
        {r.client: Enrolment(r.client, r.records, r.record_rate) for r in rows}
    )


@dataclass(frozen=True, slots=True)
class OwnerAccount:
    """What a server's ledger says of one client, for the client itself."""

    charged: tuple[int, ...]
    """Versions that it was charged for, by their further releases m = 0, 1, …"""
    opened: int
    """Attempts of the training whose comparisons were opened."""
    counted: bool
    """Whether it was in the counted set of the newest version that is over."""


class Statements:
    """One server's statements. Each method is one transaction."""

    def __init__(
        self,
        transaction: Transaction,
        attempts: Attempts,
        versions: Versions,
        ledger: Ledger,
    ) -> None:
        self._transaction = transaction
        self._attempts = attempts
        self._versions = versions
        self._ledger = ledger

    def keep(self, shown: Statement) -> bool:
        """Keep a statement that says more than this database, put back since; return if it does."""
        client = ClientId(shown.client)
        if not self._says_more(shown):
            return False
        with self._transaction.write() as connection:
            # Another server may have taught this one meanwhile.
            if not self._says_more(shown):
                return False
            kept = connection.scalar(
                select(_SHOWN.version).where(_SHOWN.client == client)
            )
            if kept is None or shown.version >= kept:
                connection.execute(
                    delete(schema.shown_statement).where(_SHOWN.client == client)
                )
                row = {
                    "client": client,
                    "version": shown.version,
                    "model": Digest(shown.model_digest),
                    "attempt": shown.attempt,
                    "charged": json.dumps(list(shown.charged)),
                    "opened": shown.opened,
                    "known": self._known(shown),
                }
                connection.execute(insert(schema.shown_statement), row)
            self._attempts.hear(shown.attempt)
        return True

    def _says_more(self, shown: Statement) -> bool:
        return (
            shown.version > self._versions.confirmed()
            or shown.attempt > self._attempts.newest()
            or sum(shown.charged) > self._known(shown)
        )

    def _known(self, shown: Statement) -> int:
        before = self._ledger.charged_before(shown.version)
        return sum(before.get(ClientId(shown.client), {}).values())

    def promised_version(self) -> int:
        """Return the newest version that owners may have heard of; 0 before the first."""
        newest = select(func.max(_SHOWN.version))
        stated = self._transaction.look(
            "stated", lambda: self._transaction.value(newest)
        )
        return max(stated or 0, self._versions.confirmed())

    def account_of(self, client: ClientId, version: int, promised: int) -> OwnerAccount:
        """Return what one client was charged for in the versions before ``version``.

        And in those before ``promised`` (``promised_version``), however far this server
        was put back since it stated them to be over.
        """
        by_m = self._ledger.charged_before(max(version, promised)).get(client, {})
        charged = [by_m.get(m, 0) for m in range(max(by_m, default=-1) + 1)]
        lost = self._ledger.forgotten().get(client, 0)
        if lost:
            charged = charged or [0]
            charged[0] += lost
        counted = client in self._ledger.charges_in(version - 1)
        return OwnerAccount(tuple(charged), self._versions.all_opened(), counted)
