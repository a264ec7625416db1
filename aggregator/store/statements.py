"""What a server has stated to owners, and what owners have shown it of that.

A statement that an owner shows may say more than the database does, which was put back then.
"""

import json
from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select

from precad.aggregator.store import schema
from precad.aggregator.store.attempts import Attempts
from precad.aggregator.store.ledger import Ledger
from precad.aggregator.store.transaction import Transaction
from precad.aggregator.store.versions import Versions
from precad.common.identifiers import ClientId, Digest
from precad.common.wire.owner_messages import Statement

_SHOWN = schema.shown_statement.c


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
        self, transaction: Transaction, attempts: Attempts, versions: Versions, ledger: Ledger
    ) -> None:
        self._transaction = transaction
        self._attempts = attempts
        self._versions = versions
        self._ledger = ledger

    def keep(self, shown: Statement) -> bool:
        """Keep a statement that says more than this server's database; return whether it does.

        Of servers that lost nothing none does.
        """
        client = ClientId(shown.client)
        if not self._says_more(shown):
            return False
        with self._transaction.write() as connection:
            # Another server may have taught this one meanwhile.
            if not self._says_more(shown):
                return False
            kept = connection.scalar(select(_SHOWN.version).where(_SHOWN.client == client))
            if kept is None or shown.version >= kept:
                connection.execute(delete(schema.shown_statement).where(_SHOWN.client == client))
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
        stated = self._transaction.look("stated", lambda: self._transaction.value(newest))
        return max(stated or 0, self._versions.confirmed())

    def account_of(self, client: ClientId, version: int, promised: int) -> OwnerAccount:
        """Return what one client was charged for in the versions before ``version``.

        And in those before ``promised`` (``promised_version``), however far this server was put
        back since it stated them to be over.
        """
        over = max(version, promised)
        by_m = self._ledger.charged_before(over).get(client, {})
        charged = [by_m.get(m, 0) for m in range(max(by_m, default=-1) + 1)]
        if lost := self._ledger.forgotten().get(client, 0):
            charged = charged or [0]
            charged[0] += lost
        counted = client in self._ledger.charges_in(version - 1)
        return OwnerAccount(tuple(charged), self._versions.all_opened(), counted)
