"""What the database keeps of a version: coin, opened attempts, model, permissions."""

import math

from sqlalchemy import (
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from precad.aggregator import SignedMessage
from precad.aggregator.store import (
    AnyValue,
    AttemptState,
    JournalFile,
    Permission,
    Transaction,
    schema,
)
from precad.common import ClientId, Mechanism, Rejection

_ATTEMPT = schema.attempts.c
_CHARGE = schema.charge.c
_REJECTION = schema.rejection.c
_VERSION = schema.versions.c
_PERMISSION = schema.permission.c

# Statements are put together once: SQLAlchemy takes longer over that than SQLite over
# running them.
_COLUMNS = {
    column.name: select(column).where(_VERSION.version == bindparam("version"))
    for column in _VERSION
}
"""What reads each column of a version."""
_NEWEST_CONFIRMED = (
    select(_VERSION.version)
    .order_by(_VERSION.version.desc())
    .where(_VERSION.confirmed)
    .limit(1)
)
_IS_PERMISSION = and_(
    _PERMISSION.word == bindparam("permission"),
    _PERMISSION.version == bindparam("version"),
)
_ALLOWED = select(_PERMISSION.until).where(_IS_PERMISSION)
_USE_UP = delete(schema.permission).where(_IS_PERMISSION)
# Why each owner didn't count, the newest first, where anybody counted. An outage, in
# which nobody does, makes nobody fall asleep.
_NEWEST_FIRST = func.row_number().over(
    partition_by=_REJECTION.client,
    order_by=_REJECTION.attempt.desc(),
)
_NOT_COUNTED = (
    select(schema.rejection, _NEWEST_FIRST.label("place"))
    .join(schema.attempts, _REJECTION.attempt == _ATTEMPT.attempt)
    .where(
        _ATTEMPT.state == AttemptState.DONE,
        _ATTEMPT.version >= bindparam("since"),
        exists().where(_CHARGE.attempt == _ATTEMPT.attempt),
    )
    .subquery()
    .c
)
_LAST_COUNTED = (
    select(func.coalesce(func.max(_CHARGE.attempt), -1))
    .where(_CHARGE.client == _NOT_COUNTED.client)
    .scalar_subquery()
)
MISSED = 2
"""Versions in a row that an owner misses before nobody waits for it any more."""
_ASLEEP = (
    select(_NOT_COUNTED.client)
    .where(_NOT_COUNTED.place <= MISSED, _NOT_COUNTED.reason == Rejection.ABSENT)
    .group_by(_NOT_COUNTED.client)
    .having(func.count() == MISSED, func.min(_NOT_COUNTED.attempt) > _LAST_COUNTED)
)


class Versions:
    """What one server keeps of each version, except for its charges.

    Each method is one transaction.
    """

    def __init__(self, transaction: Transaction, journal_file: JournalFile) -> None:
        self._transaction = transaction
        self._journal_file = journal_file
        self._confirmed: int | None = None

    # --- who sleeps -------------------------------------------------------------------

    def asleep(self, version: int, mechanism: Mechanism) -> frozenset[ClientId]:
        """Return who was absent in the last two released versions that it was asked in.

        ``version`` is the one that is open. Who isn't drawn isn't asked, and misses
        nothing: so versions in which an owner is drawn twice but for a chance of 1e-12
        are looked at. Both servers keep the same reasons, and so find the same owners.
        """
        everybody_asked = mechanism.hides_coin or mechanism.owner_rate == 1
        lately = MISSED if everybody_asked else math.ceil(32 / mechanism.owner_rate)
        rows = self._transaction.rows(_ASLEEP, since=version - lately)
        return frozenset(row.client for row in rows)

    # --- opened attempts --------------------------------------------------------------

    def count_opened(self, version: int, attempt: int) -> int:
        """Count an attempt whose comparisons are about to be opened.

        It is written to the journal file first. Return how many attempts of ``version``
        were opened, this one included.
        """
        self._journal_file.opened(version, attempt)
        with self._transaction.write():
            return self._add_opened(version, 1)

    def raise_opened(self, version: int, at_least: int) -> None:
        """Keep that ``at_least`` attempts of a version were opened, if fewer are known.

        ``at_least`` comes from the other server, or from this server's journal file.
        """
        if at_least <= self.opened(version):
            return
        with self._transaction.write():
            # Asked again: another thread may have counted some since.
            added = at_least - self.opened(version)
            if added > 0:
                self._add_opened(version, added)

    def _add_opened(self, version: int, added: int) -> int:
        """Keep that so many more attempts were opened; return the version's number."""
        count = self.opened(version) + added
        set_version(self._transaction, version, opened=count)
        opened = schema.task.c.opened + added
        self._transaction.execute(update(schema.task).values(opened=opened))
        return count

    def opened(self, version: int) -> int:
        """Return how many of the version's attempts had their comparisons opened."""
        return self._transaction.cached(
            ("opened", version),
            lambda: int(self._column(version, "opened") or 0),
        )

    def all_opened(self) -> int:
        """Return the sum of ``opened`` over all versions."""
        query = select(schema.task.c.opened)
        return self._transaction.cached(
            "all opened", lambda: int(self._transaction.value(query))
        )

    # --- the model --------------------------------------------------------------------

    def model_seal(self, version: int) -> SignedMessage | None:
        """Return what the other server signed of the digest of model ``version``."""
        return self._signed(version, "model_seal")

    def keep_model_seal(self, version: int, signed: SignedMessage) -> None:
        """Keep what the other server signed of the digest of model ``version``."""
        set_version(self._transaction, version, model_seal=signed.to_json())

    def confirm(self, version: int) -> None:
        """Keep that the other server holds model ``version`` too.

        Owners may hear of the model from now on.
        """
        if version > self.confirmed():
            set_version(self._transaction, version, confirmed=True)
            self._confirmed = version

    def confirmed(self) -> int:
        """Return the newest version that both servers are known to hold; 0 at first."""
        # Asked with every model that is fetched; nobody else writes it.
        if self._confirmed is None:
            self._confirmed = int(self._transaction.value(_NEWEST_CONFIRMED) or 0)
        return self._confirmed

    # --- the coin ---------------------------------------------------------------------

    def commitment(self, version: int) -> SignedMessage | None:
        """Return the other server's commitment to its coin of ``version``."""
        return self._signed(version, "commitment")

    def keep_commitment(self, version: int, signed: SignedMessage) -> None:
        """Keep the other server's commitment to its coin of ``version``.

        The first one stays, whatever comes later.
        """
        with self._transaction.write():
            if self.commitment(version) is None:
                set_version(self._transaction, version, commitment=signed.to_json())

    def coin_opening(self, version: int, *, own: bool) -> SignedMessage | None:
        """Return an opening of a coin of ``version``: the other server's.

        With ``own`` this server's, if the other server gave it back.
        """
        return self._signed(version, "own_opening" if own else "opening")

    def keep_opening(self, version: int, signed: SignedMessage, *, own: bool) -> None:
        """Keep the other server's opening; with ``own`` this server's, given back."""
        columns = {"own_opening" if own else "opening": signed.to_json()}
        set_version(self._transaction, version, **columns)

    def discard_coin(self, version: int) -> None:
        """Forget the version's coin, which both operators allowed to draw again, once.

        The permission is used up, and the coin drawn again is counted.
        """
        used = {"permission": Permission.COIN, "version": version}
        with self._transaction.write():
            redrawn = int(self._column(version, "redrawn") or 0)
            set_version(
                self._transaction,
                version,
                commitment=None,
                opening=None,
                own_opening=None,
                redrawn=redrawn + 1,
            )
            self._transaction.execute(_USE_UP, used)

    def was_redrawn(self, version: int) -> bool:
        """Return whether the operators had the version's coin drawn again."""
        return bool(self._column(version, "redrawn"))

    def redrawn_coins(self) -> int:
        """Return how often both servers' operators had a version's coin drawn again."""
        return int(self._transaction.value(select(func.sum(_VERSION.redrawn))) or 0)

    # --- permissions ------------------------------------------------------------------

    def allowed(self, permission: Permission, version: int) -> int:
        """Return up to which attempt the operators' permission goes; -1 without one."""
        until = self._transaction.value(
            _ALLOWED, permission=permission, version=version
        )
        return -1 if until is None else int(until)

    def allow(self, permission: Permission, version: int, until: int) -> None:
        """Keep the operators' permission, which goes up to attempt ``until``."""
        table = schema.permission
        change = (
            update(table)
            .where(_PERMISSION.word == permission, _PERMISSION.version == version)
            .values(until=until)
        )
        with self._transaction.write():
            if not self._transaction.execute(change):
                permitted = {"word": permission, "version": version, "until": until}
                self._transaction.execute(insert(table), permitted)

    def _column(self, version: int, column: str) -> AnyValue:
        """Return a column of what is kept of ``version``; None where nothing is."""
        return self._transaction.value(_COLUMNS[column], version=version)

    def _signed(self, version: int, column: str) -> SignedMessage | None:
        """Return the signed message that a column of ``version`` holds, if any."""
        data = self._column(version, column)
        return None if data is None else SignedMessage.from_json(data)


def set_version(transaction: Transaction, version: int, **values: object) -> None:
    """Set columns of what is kept of a version; the first time a row is made."""
    table = schema.versions
    change = update(table).where(_VERSION.version == version).values(**values)
    with transaction.write():
        if not transaction.execute(change):
            transaction.execute(insert(table), values | {"version": version})
