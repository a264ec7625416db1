"""What a server keeps of owners: enrolments, the frozen roster, statements they show.

A server signs statements of an owner's account for the owner. One that an owner shows
may say more than the database does: then an older copy of the database was put back.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, func, insert, select, update

from precad.aggregator import SignedMessage
from precad.aggregator.store import (
    AnyRow,
    Attempts,
    Ledger,
    Transaction,
    Versions,
    schema,
)
from precad.common import (
    ClientId,
    Digest,
    Enrolment,
    PeerViolation,
    Roster,
    frozen_dataclass,
)
from precad.common.wire import Statement

_ALL_ENROLMENTS = select(schema.enrolment)
_SHOWN = schema.shown_statement.c


class Enrolments:
    """One server's enrolments. Each method is one transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def claims(self) -> Roster:
        """Return everybody who has enrolled here, in the frozen roster or not."""
        return _roster(self._transaction.rows(_ALL_ENROLMENTS))

    def claim(self, enrolment: Enrolment) -> Enrolment:
        """Keep one client's claim, and return the claim that is kept.

        An earlier claim of the client stays and is returned: the database's answer to
        it may have been lost, so that nobody heard of it.
        """
        same_client = schema.enrolment.c.client == enrolment.client
        with self._transaction.write() as connection:
            earlier = _roster(connection.execute(_ALL_ENROLMENTS.where(same_client)))
            if earlier:
                return earlier[enrolment.client]
            connection.execute(insert(schema.enrolment), _row(enrolment))
            return enrolment

    def roster(self) -> Roster | None:
        """Return the frozen roster, or None before round 0."""
        query = _ALL_ENROLMENTS.where(schema.enrolment.c.in_roster)
        return _roster(self._transaction.rows(query)) or None

    def roster_seal(self) -> SignedMessage | None:
        """Return what the other server signed of the frozen roster; None before."""
        data = self._transaction.value(select(schema.task.c.roster_seal))
        return None if data is None else SignedMessage.from_json(data)

    def keep_roster_seal(self, signed: SignedMessage) -> None:
        """Keep what the other server signed of the frozen roster."""
        with self._transaction.write() as connection:
            connection.execute(update(schema.task).values(roster_seal=signed.to_json()))

    def freeze(self, roster: Roster, *, taken_back: bool = False) -> None:
        """Keep the roster; it never changes again.

        With ``taken_back`` claims that weren't kept here are taken from the roster:
        this server has signed it, and may have lost some of its claims since.

        Raises PeerViolation: another roster is frozen, or without ``taken_back`` a
        claim of it wasn't kept here.
        """
        with self._transaction.write() as connection:
            frozen = self.roster()
            if frozen:
                if frozen.digest() != roster.digest():
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
            take_in = (
                update(table)
                .where(table.c.client == bindparam("name"))
                .values(in_roster=True)
            )
            connection.execute(take_in, [{"name": client} for client in roster])


def _row(claim: Enrolment) -> dict[str, object]:
    return {
        "client": claim.client,
        "records": claim.records,
        "record_rate": claim.record_rate,
        "in_roster": False,
    }


def _roster(rows: Iterable[AnyRow]) -> Roster:
    """Return the claims in rows of ``schema.enrolment``, by client."""
    claims = (Enrolment(row.client, row.records, row.record_rate) for row in rows)
    return Roster({claim.client: claim for claim in claims})


@frozen_dataclass
class OwnerAccount:
    """What a server's ledger says of one client, for the client itself."""

    charged: tuple[int, ...]
    """At index m: in how many versions it was charged that were released 1 + m
    times."""
    opened: int
    """How many attempts of the training had their comparisons opened."""
    counted: bool
    """Whether the newest version that is over counted it."""


@dataclass(eq=False, repr=False, kw_only=True)
class Statements:
    """What one server's statements say. Each method is one transaction."""

    _transaction: Transaction
    _attempts: Attempts
    _versions: Versions
    _ledger: Ledger

    def keep(self, shown: Statement) -> bool:
        """Keep a statement of this server that an owner shows, if it says more.

        It says more than this database when an older copy was put back since it was
        signed. Return whether it does.
        """
        client = ClientId(shown.client)
        if not self._says_more(shown):
            return False
        with self._transaction.write() as connection:
            # Asked again: the other server may have taught this one meanwhile.
            if not self._says_more(shown):
                return False
            kept_version = connection.scalar(
                select(_SHOWN.version).where(_SHOWN.client == client)
            )
            if kept_version is None or shown.version >= kept_version:
                connection.execute(
                    delete(schema.shown_statement).where(_SHOWN.client == client)
                )
                statement_row = {
                    "client": client,
                    "version": shown.version,
                    "model": Digest(shown.model_digest),
                    "attempt": shown.attempt,
                    "charged": json.dumps(list(shown.charged)),
                    "opened": shown.opened,
                    "known": self._known(shown),
                }
                connection.execute(insert(schema.shown_statement), statement_row)
            self._attempts.hear(shown.attempt)
        return True

    def _says_more(self, shown: Statement) -> bool:
        """Return whether it names a version, an attempt or a charge unknown here."""
        return (
            shown.version > self._versions.confirmed()
            or shown.attempt > self._attempts.newest()
            or sum(shown.charged) > self._known(shown)
        )

    def _known(self, shown: Statement) -> int:
        """Return how many versions before the statement's the ledger charges it for."""
        before = self._ledger.charged_before(shown.version)
        return sum(before.get(ClientId(shown.client), {}).values())

    def promised_version(self) -> int:
        """Return the newest version that owners may have heard of; 0 at first."""
        newest = select(func.max(_SHOWN.version))
        stated = self._transaction.cached(
            "stated", lambda: self._transaction.value(newest)
        )
        return max(stated or 0, self._versions.confirmed())

    def account_of(self, client: ClientId, version: int, promised: int) -> OwnerAccount:
        """Return what one client was charged for in the versions before ``version``.

        Those before ``promised`` (``promised_version``) are counted too, however old
        the copy that was put back since this server stated them to be over.
        """
        by_m = self._ledger.charged_before(max(version, promised)).get(client, {})
        charged = [by_m.get(m, 0) for m in range(max(by_m, default=-1) + 1)]
        lost = self._ledger.forgotten().get(client, 0)
        if lost:
            charged = charged or [0]
            charged[0] += lost
        counted = client in self._ledger.charges_in(version - 1)
        opened = self._versions.all_opened()
        return OwnerAccount(tuple(charged), opened=opened, counted=counted)
