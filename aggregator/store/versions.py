"""What the database keeps of each version: coin, opened attempts, model, permissions."""

from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from precad.aggregator.server_messages import SignedMessage
from precad.aggregator.store import schema
from precad.aggregator.store.journal_file import JournalFile
from precad.aggregator.store.schema import Permission
from precad.aggregator.store.transaction import Transaction

_VERSION = schema.versions.c
_PERMISSION = schema.permission.c
_ROW = select(schema.versions).where(_VERSION.version == bindparam("of"))
_NEWEST_FIRST = select(_VERSION.version).order_by(_VERSION.version.desc())
_CONFIRMED = _NEWEST_FIRST.where(_VERSION.confirmed).limit(1)
_NAMED = (_PERMISSION.word == bindparam("what"), _PERMISSION.version == bindparam("of"))
_ALLOWED = select(_PERMISSION.until).where(*_NAMED)


class Versions:
    """What one server keeps of each version, but for its charges; each method a transaction."""

    def __init__(self, transaction: Transaction, journal_file: JournalFile) -> None:
        self._transaction = transaction
        self._journal_file = journal_file
        self._confirmed: int | None = None

    # --- opened attempts
    # ---------------------------------------------------------------------

    def count_opened(self, version: int, attempt: int) -> int:
        """Count an attempt about to be opened, in the journal first; return its version's count."""
        self._journal_file.opened(version, attempt)
        with self._transaction.write() as connection:
            count = self.opened(version) + 1
            _set_opened(
                connection,
                version=version,
                count=count,
                more=1,
            )
            return count

    def raise_opened(self, version: int, at_least: int) -> None:
        """Keep that so many of a version's attempts were opened, unless more are known."""
        if at_least <= self.opened(version):
            return
        with self._transaction.write() as connection:
            more = at_least - self.opened(version)
            if more > 0:
                _set_opened(
                    connection,
                    version=version,
                    count=at_least,
                    more=more,
                )

    def opened(self, version: int) -> int:
        """Return how many of the version's attempts had their comparisons opened."""
        what = ("opened", version)
        return self._transaction.look(
            what, lambda: int(self._column(version, "opened") or 0)
        )

    def all_opened(self) -> int:
        """Return ``opened`` of all versions together."""
        query = select(schema.task.c.opened)
        return self._transaction.look(
            "all opened", lambda: int(self._transaction.value(query))
        )

    # --- the model
    # ---------------------------------------------------------------------------

    def model_seal(self, version: int) -> SignedMessage | None:
        """Return what the other server signed of model ``version``'s digest."""
        return self._sealed(version, "model_seal")

    def keep_model_seal(self, version: int, signed: SignedMessage) -> None:
        """Keep what the other server signed of model ``version``'s digest."""
        with self._transaction.write() as connection:
            set_version(connection, version, model_seal=signed.to_json())

    def confirm(self, version: int) -> None:
        """Keep that the other server holds model ``version`` too: owners may hear of it."""
        if version > self.confirmed():
            with self._transaction.write() as connection:
                set_version(connection, version, confirmed=True)
            self._confirmed = version

    def confirmed(self) -> int:
        """Return the newest version that both servers are known to hold."""
        # Asked with every model that is fetched; nobody else writes it.
        if self._confirmed is None:
            self._confirmed = int(self._transaction.value(_CONFIRMED) or 0)
        return self._confirmed

    # --- the coin
    # ----------------------------------------------------------------------------

    def commitment(self, version: int) -> SignedMessage | None:
        """Return the other server's commitment to its coin of ``version``."""
        return self._sealed(version, "commitment")

    def keep_commitment(self, version: int, signed: SignedMessage) -> None:
        """Keep the other's commitment; the first one stays, whatever comes later."""
        with self._transaction.write() as connection:
            if self.commitment(version) is None:
                set_version(connection, version, commitment=signed.to_json())

    def coin_opening(self, version: int, *, own: bool) -> SignedMessage | None:
        """Return an opening for ``version``: the other's, or one's own that it gave back."""
        return self._sealed(version, "own_opening" if own else "opening")

    def keep_opening(self, version: int, signed: SignedMessage, *, own: bool) -> None:
        """Keep an opening."""
        column = {"own_opening" if own else "opening": signed.to_json()}
        with self._transaction.write() as connection:
            set_version(connection, version, **column)

    def discard_coin(self, version: int) -> None:
        """Forget the version's coin, which both operators want anew, once.

        It is counted.
        """
        coin = {"commitment": None, "opening": None, "own_opening": None}
        used = {"what": Permission.COIN, "of": version}
        with self._transaction.write() as connection:
            redrawn = int(self._column(version, "redrawn") or 0)
            set_version(connection, version, **coin, redrawn=redrawn + 1)
            connection.execute(delete(schema.permission).where(*_NAMED), used)

    def was_redrawn(self, version: int) -> bool:
        """Return whether the operators had the version's coin drawn again."""
        return bool(self._column(version, "redrawn"))

    def redrawn_coins(self) -> int:
        """Return how often both servers' operators had a version's coin drawn again."""
        return int(self._transaction.value(select(func.sum(_VERSION.redrawn))) or 0)

    # --- permissions
    # -------------------------------------------------------------------------

    def allowed(self, what: Permission, version: int) -> int:
        """Return up to which attempt the operators' permission reaches; -1 without one."""
        found = self._transaction.value(_ALLOWED, what=what, of=version)
        return -1 if found is None else int(found)

    def allow(self, what: Permission, version: int, until: int) -> None:
        """Keep the operators' permission."""
        table = schema.permission
        of = (_PERMISSION.word == what, _PERMISSION.version == version)
        with self._transaction.write() as connection:
            if not connection.execute(
                update(table).where(*of).values(until=until)
            ).rowcount:
                connection.execute(
                    insert(table).values(
                        word=what,
                        version=version,
                        until=until,
                    )
                )

    def _column(self, version: int, column: str) -> Any:
        row = self._transaction.first(_ROW, of=version)
        return None if row is None else getattr(row, column)

    def _sealed(self, version: int, column: str) -> SignedMessage | None:
        found = self._column(version, column)
        return None if found is None else SignedMessage.from_json(found)


def set_version(connection: Connection, version: int, **values: object) -> None:
    """Change what is kept of a version."""
    table = schema.versions
    change = update(table).where(_VERSION.version == version).values(**values)
    if not connection.execute(change).rowcount:
        connection.execute(
            insert(table).values({"opened": 0} | values | {"version": version})
        )


def _set_opened(
    connection: Connection,
    *,
    version: int,
    count: int,
    more: int,
) -> None:
    set_version(connection, version, opened=count)
    connection.execute(update(schema.task).values(opened=schema.task.c.opened + more))
