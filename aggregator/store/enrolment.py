"""Who has enrolled at a server, and the frozen roster."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import bindparam, delete, insert, select, update

from precad.aggregator.server_messages import SignedMessage
from precad.aggregator.store import schema
from precad.aggregator.store.transaction import Transaction
from precad.common.errors import PeerViolation
from precad.common.roster import Enrolment, Roster

_ALL = select(schema.enrolment)
_FROZEN = _ALL.where(schema.enrolment.c.in_roster)


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
            if kept := _roster(connection.execute(_ALL.where(same))):
                return kept[enrolment.client]
            connection.execute(insert(schema.enrolment), _row(enrolment))
            return enrolment

    def roster(self) -> Roster | None:
        """Return the frozen roster, or None before round 0."""
        return _roster(self._transaction.rows(_FROZEN)) or None

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

        Also where it isn't made of claims that were kept here, but for one that is ``taken_back``:
        this server has signed it, and may have lost claims of it since.
        """
        with self._transaction.write() as connection:
            if kept := self.roster():
                if kept.digest() != roster.digest():
                    raise PeerViolation("the roster is frozen and can't change")
                return
            table, claims = schema.enrolment, self.claims()
            for client, claim in roster.items():
                if claims.get(client) == claim:
                    continue
                if not taken_back:
                    raise PeerViolation(f"client {client} didn't enrol here with this claim")
                connection.execute(delete(table).where(table.c.client == client))
                connection.execute(insert(table), _row(claim))
            take = update(table).where(table.c.client == bindparam("name")).values(in_roster=True)
            connection.execute(take, [{"name": client} for client in roster])


def _row(claim: Enrolment) -> dict[str, object]:
    said = {"client": claim.client, "records": claim.records, "record_rate": claim.record_rate}
    return said | {"in_roster": False}


def _roster(rows: Iterable[Any]) -> Roster:
    return Roster({r.client: Enrolment(r.client, r.records, r.record_rate) for r in rows})
