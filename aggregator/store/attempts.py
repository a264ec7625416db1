"""Attempts: opening them, charging them, and what becomes of them."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    Row,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from precad.aggregator.server_messages import Fact, HeadBody, SignedMessage
from precad.aggregator.store import schema
from precad.aggregator.store.journal_file import JournalFile
from precad.aggregator.store.ledger import Ledger
from precad.aggregator.store.schema import BOUND, CHARGED, PENDING, AttemptState
from precad.aggregator.store.transaction import Transaction
from precad.aggregator.store.versions import Versions
from precad.common.errors import (
    AlreadyReleased,
    PeerViolation,
    Rejection,
    StorageFailure,
)
from precad.common.identifiers import ClientId, Digest

log = logging.getLogger("precad")

UNKNOWN = Digest(bytes(32))
"""The model of an attempt that was learned: nobody asks for it again."""
_NEVER_VOIDED = (*BOUND, AttemptState.DONE, AttemptState.WRITTEN_OFF)
"""Its noisy share may have left, whatever the other server says of it now."""
_STAYS = {*CHARGED, AttemptState.VOIDED} - {AttemptState.PREPARED}
"""States of an attempt that another server's word on a void changes nothing of."""
_AT_ONCE = 8
"""Noisy shares that are removed with one version's end."""

# Put together once: SQLAlchemy takes longer over a statement than SQLite.
_ATTEMPT = schema.attempts.c
_SHARE = schema.noisy_share.c
_LEDGER = schema.ledger.c
_REJECTION = schema.rejection.c
_LATEST = _ATTEMPT.attempt.desc()
_OF = bindparam("of", type_=Integer)
_NEWEST = select(func.max(_ATTEMPT.attempt))
_HEARD = select(schema.task.c.heard)
_ROW = select(schema.attempts).where(_ATTEMPT.attempt == _OF)
_IN_VERSION = select(func.count()).where(_ATTEMPT.version == _OF)
_RELEASED = _ATTEMPT.state.in_((*PENDING, AttemptState.DONE))
_RELEASE_OF = select(_ATTEMPT.attempt).where(_ATTEMPT.version == _OF, _RELEASED)
_PENDING = (
    select(schema.attempts)
    .where(_ATTEMPT.state.in_(PENDING))
    .order_by(_LATEST)
    .limit(1)
)
_REJECTIONS = select(_REJECTION.client, _REJECTION.reason).where(
    _REJECTION.attempt == _OF
)
SHARE_OF = select(_SHARE.share).where(_SHARE.attempt == _OF)
_PREPARED = _LEDGER.event == AttemptState.PREPARED
_SHARE_DIGEST = select(_LEDGER.share_digest).where(_LEDGER.attempt == _OF, _PREPARED)
_STANDS = (_ATTEMPT.their_head.is_not(None), _ATTEMPT.state != AttemptState.VOIDED)
_THEIR_HEAD = select(_ATTEMPT.their_head).where(*_STANDS).order_by(_LATEST).limit(1)
_START = select(_ATTEMPT.model).where(_ATTEMPT.version == 0).limit(1)
_SHARE_IS_OVER = (_ATTEMPT.attempt == _SHARE.attempt, _ATTEMPT.state.not_in(PENDING))
_VERSION_OF_SHARE = select(_ATTEMPT.version).where(*_SHARE_IS_OVER).scalar_subquery()
_EARLIER = select(_SHARE.attempt).where(bindparam("before") > _VERSION_OF_SHARE)
_OVER = _EARLIER.order_by(_SHARE.attempt.desc()).limit(_AT_ONCE)
_DROP_SHARES = delete(schema.noisy_share).where(_SHARE.attempt.in_(_OVER))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecord:
    """An attempt that was prepared on this server, from the model of ``version``, as it is kept."""

    attempt: int
    version: int
    state: AttemptState
    cohort_size: int
    model: Digest
    valid_set: Digest
    valid: tuple[ClientId, ...]
    rejections: Mapping[ClientId, Rejection]
    noisy_share: bytes = field(repr=False)

    def fact(self) -> Fact:
        """Return its charge, as both ledgers hold it."""
        names = tuple(client.name for client in self.valid)
        return Fact(
            version=self.version,
            attempt=self.attempt,
            voided=False,
            clients=names,
        )


class Attempts:
    """One server's attempts.

    Each method is one transaction: durable at its end, or undone.

    Raises StorageFailure: by every method, when the database fails. Nothing was changed
    then.
    """

    def __init__(
        self,
        transaction: Transaction,
        ledger: Ledger,
        versions: Versions,
        journal: JournalFile,
    ) -> None:
        self._transaction = transaction
        self._ledger = ledger
        self._versions = versions
        self._journal_file = journal
        self._entries = journal.read()

    # --- numbers
    # -----------------------------------------------------------------------------

    def next_number(self) -> int:
        """Return the first attempt that nobody remembers: not this server, nor whom it heard of."""

        def find() -> int:
            heard = self._transaction.value(_HEARD)
            return max(self.unused_here(), -1 if heard is None else heard + 1)

        return self._transaction.look("next attempt", find)

    def unused_here(self) -> int:
        """Return the first attempt that neither the database nor the journal file knows."""
        return max(self.newest(), self._entries.newest_attempt) + 1

    def newest(self) -> int:
        """Return the newest attempt in the database; -1 before the first."""
        found = self._transaction.value(_NEWEST)
        return -1 if found is None else int(found)

    def start(self) -> Digest | None:
        """Return the digest of θ_0 that attempts began from; None before the first."""
        start: Digest | None = self._transaction.value(_START)
        return start

    def hear(self, attempt: int) -> None:
        """Keep that somebody else remembers ``attempt``: dealer, owner or the other server."""
        if attempt < self.next_number():
            return
        with self._transaction.write() as connection:
            # Asked again: another thread may have heard of a newer one since.
            if attempt >= self.next_number():
                connection.execute(update(schema.task), {"heard": attempt})

    # --- until it is prepared
    # ----------------------------------------------------------------

    def begin(
        self,
        *,
        attempt: int,
        version: int,
        cohort_size: int,
        model: Digest,
    ) -> None:
        """Keep the attempt as open.

        Raises PeerViolation when its number was used before.
        """
        with self._transaction.write() as connection:
            if attempt < (unused := self.unused_here()):
                raise PeerViolation(
                    f"attempt {attempt} isn't above {unused - 1}, the newest here"
                )
            kept = {
                "cohort_size": cohort_size,
                "model": model,
                "state": AttemptState.OPEN,
            }
            _begin(connection, attempt, version, **kept)

    def abandon_open(self) -> int:
        """Abandon attempts that were open when a link or a server broke off.

        Returns how many.
        """
        abandon = update(schema.attempts).where(_ATTEMPT.state == AttemptState.OPEN)
        with self._transaction.write() as connection:
            return connection.execute(
                abandon.values(state=AttemptState.ABANDONED)
            ).rowcount

    def count_of(self, version: int) -> int:
        """Return how many attempts of ``version`` there were."""
        return int(self._transaction.value(_IN_VERSION, of=version))

    def spend(self, attempt: int, batch: int) -> None:
        """Keep a batch of correlated randomness as spent.

        Raises PeerViolation on reuse.
        """
        try:
            with self._transaction.write() as connection:
                spent = {"attempt": attempt, "batch": batch}
                connection.execute(insert(schema.spent_triple), spent)
        except IntegrityError:
            raise PeerViolation(
                f"correlated randomness of attempt {attempt}, batch {batch} was spent"
                " before; using it twice would reveal differences of updates"
            ) from None

    # --- from prepared to done
    # ---------------------------------------------------------------

    def prepare(
        self,
        attempt: int,
        valid: Collection[ClientId],
        valid_set: Digest,
        rejections: Mapping[ClientId, Rejection],
        noisy_share: bytes | memoryview,
    ) -> None:
        """Charge every valid client and persist the noisy share, both or neither.

        Raises AlreadyReleased: it was prepared before, or its version has another
        release.
        """
        with self._transaction.write() as connection:
            opened = _row(connection, attempt)
            if opened is None or opened.state is not AttemptState.OPEN:
                raise AlreadyReleased(
                    f"attempt {attempt} was prepared already, or never opened"
                )
            version = opened.version
            state = AttemptState.PREPARED
            earlier = connection.scalar(_RELEASE_OF, {"of": version})
            if earlier is not None:
                said = (
                    f"version {version} has its release already, of attempt {earlier}"
                )
                raise AlreadyReleased(said)
            with self._ledger.changing(version):
                _change(connection, attempt, state=state, valid_set=valid_set)
                # As a parameter: SQLAlchemy keeps statements, and what they hold.
                share = {"attempt": attempt, "share": noisy_share}
                connection.execute(insert(schema.noisy_share), share)
                digest = Digest.of(noisy_share)
                self._ledger.append(
                    state,
                    attempt=attempt,
                    version=version,
                    clients=valid,
                    valid_set=valid_set,
                    share_digest=digest,
                )
            found = rejections.items()
            rows = [
                {
                    "attempt": attempt,
                    "client": c,
                    "reason": r,
                }
                for c, r in found
            ]
            if rows:
                connection.execute(insert(schema.rejection), rows)

    def countersign(self, attempt: int, head: HeadBody, signed: SignedMessage) -> None:
        """Keep that this server countersigns the other's head, in the journal file first.

        What that file alone says counts as sent. Raises AlreadyReleased: it isn't
        prepared here.
        """
        self._journal_file.countersigned(
            head.version, attempt, self._ledger.charged(attempt)
        )
        with self._transaction.write() as connection:
            state = _state(connection, attempt)
            if state not in PENDING:
                raise AlreadyReleased(f"attempt {attempt} isn't prepared here")
            if state is AttemptState.PREPARED:
                state = AttemptState.COUNTERSIGNED
            _change(connection, attempt, state=state, their_head=signed.to_json())

    def sent(self, attempt: int, countersignature: SignedMessage) -> None:
        """Keep the other's countersignature: the share may leave now.

        Raises AlreadyReleased.
        """
        with self._transaction.write() as connection:
            if _state(connection, attempt) not in BOUND:
                raise AlreadyReleased(f"attempt {attempt} isn't countersigned here")
            kept = countersignature.to_json()
            _change(connection, attempt, state=AttemptState.SENT, countersignature=kept)

    def pending(self) -> ReleaseRecord | None:
        """Return the prepared attempt that isn't over.

        Raises StorageFailure: its share changed.
        """
        with self._transaction.read():
            row = self._transaction.first(_PENDING)
            if row is None:
                return None
            share = self.noisy_share(row.attempt)
            digest = self._transaction.value(_SHARE_DIGEST, of=row.attempt)
            if share is None or digest != Digest.of(share):
                # Sent, it would be a second release of one version.
                raise StorageFailure(
                    f"the noisy share of attempt {row.attempt} isn't the one that the"
                    " ledger names; the database was changed or is damaged. Put back"
                    " this server's newest state, or start a new task"
                )
            kept = ("attempt", "version", "state", "cohort_size", "model", "valid_set")
            return ReleaseRecord(
                **{name: getattr(row, name) for name in kept},
                valid=self._ledger.charged(row.attempt),
                rejections=dict(self._transaction.rows(_REJECTIONS, of=row.attempt)),
                noisy_share=share,
            )

    def noisy_share(self, attempt: int) -> bytes | None:
        """Return this server's noisy share of an attempt; None unless it was prepared."""
        found: bytes | None = self._transaction.value(SHARE_OF, of=attempt)
        return found

    def finish(self, attempt: int, next_model: Digest) -> None:
        """Keep a prepared attempt as done; any other stays what it is."""
        with self._transaction.write() as connection:
            if _state(connection, attempt) in PENDING:
                _change(
                    connection, attempt, state=AttemptState.DONE, next_model=next_model
                )

    def drop_shares(self, confirmed: int) -> None:
        """Remove noisy shares of versions before ``confirmed``, whose model both servers hold.

        Only what is pending is ever sent, and nothing becomes pending again, in an
        older copy of this database neither. A few at a time, where nobody waits: many
        would hold up a round.
        """
        with self._transaction.write() as connection:
            connection.execute(_DROP_SHARES, {"before": confirmed})

    # --- what came of it otherwise
    # -----------------------------------------------------------

    def void(self, version: int, attempt: int) -> None:
        """Keep that the attempt isn't prepared on both servers: it costs nothing.

        Raises AlreadyReleased: it was countersigned here, written off since or not, or
        is done.
        """
        with self._transaction.write() as connection:
            self._void(connection, version, attempt)
        if any(fact.attempt == attempt for fact in self._entries.facts):
            self._journal_file.voided(version, attempt)

    def settle(self, attempt: int) -> None:
        """Keep that a prepared attempt's version is over, as the model says: its charge stands."""
        self._end(attempt, AttemptState.LEARNED)

    def write_off(self, attempt: int) -> None:
        """Keep that both operators gave a prepared attempt up; its charge stands."""
        self._end(attempt, AttemptState.WRITTEN_OFF)

    def learn(self, facts: Collection[Fact]) -> int:
        """Take facts that this server had forgotten into its ledger. Returns how many.

        Raises StorageFailure: one names an attempt that stands here for another
        version.
        """
        learned: list[int] = []
        with self._transaction.write() as connection:
            for fact in sorted(facts, key=lambda fact: (fact.attempt, fact.voided)):
                known = _row(connection, fact.attempt)
                if known is not None and known.version != fact.version:
                    raise StorageFailure(
                        f"attempt {fact.attempt} stands here for another version"
                    )
                if not fact.voided:
                    if self._learn_charge(connection, fact, known):
                        learned.append(fact.version)
                elif known is None or known.state not in _STAYS:
                    self._void(connection, fact.version, fact.attempt)
                    learned.append(fact.version)
            if learned:
                after = schema.versions.c.version > min(learned)
                connection.execute(
                    update(schema.versions).where(after).values(history=None)
                )
        return len(learned)

    def charge_unknown(self, fact: Fact) -> None:
        """Charge an attempt that others alone remember, in the journal file first."""
        self._journal_file.countersigned(
            fact.version, fact.attempt, map(ClientId, fact.clients)
        )
        self.learn([fact])

    def take_back(self) -> None:
        """Take from the journal file what a database from an old copy has forgotten."""
        with self._transaction.write() as connection:
            for fact in self._entries.facts:
                state = _state(connection, fact.attempt)
                if state is AttemptState.VOIDED:
                    continue  # after the database was put back once: who voids never countersigns
                if state is AttemptState.PREPARED:  # it was countersigned: never voided
                    _change(connection, fact.attempt, state=AttemptState.COUNTERSIGNED)
                elif self.learn([fact]):
                    said = "stands in this server's journal and not in its database"
                    again = f"its {len(fact.clients)} charges are in the ledger again"
                    log.warning("attempt %d %s: %s", fact.attempt, said, again)
            opened = Counter(version for version, _ in set(self._entries.opened))
            for version, count in opened.items():
                self._versions.raise_opened(version, count)

    def _end(self, attempt: int, state: AttemptState) -> None:
        with self._transaction.write() as connection:
            known = _row(connection, attempt)
            if known is not None and known.state in PENDING:
                _change(connection, attempt, state=state)
                self._ledger.append(state, attempt=attempt, version=known.version)

    def _void(self, connection: Connection, version: int, attempt: int) -> None:
        known = _row(connection, attempt)
        if known is not None:
            if known.state is AttemptState.VOIDED:
                return
            if known.state in _NEVER_VOIDED or known.version != version:
                said = f"is {known.state.value} and is never voided"
                raise AlreadyReleased(f"attempt {attempt} {said}")
        state = AttemptState.VOIDED
        with self._ledger.changing(version):
            if known is None:
                _begin(
                    connection,
                    attempt,
                    version,
                    cohort_size=0,
                    model=UNKNOWN,
                    state=state,
                )
            else:
                _change(connection, attempt, state=state)
            self._ledger.append(state, attempt=attempt, version=version)

    def _learn_charge(
        self, connection: Connection, fact: Fact, known: Row[Any] | None
    ) -> bool:
        """Take a forgotten charge into the ledger. Returns whether it was forgotten."""
        clients = {ClientId(name) for name in fact.clients}
        missing = clients - set(self._ledger.charged(fact.attempt))
        charged = known is not None and known.state in CHARGED
        if charged and not missing:
            return False
        state = AttemptState.LEARNED
        with self._ledger.changing(fact.version):
            if known is None:
                fresh = {
                    "cohort_size": len(clients),
                    "model": UNKNOWN,
                    "state": state,
                }
                _begin(connection, fact.attempt, fact.version, **fresh)
            elif not charged:
                _change(connection, fact.attempt, state=state)
            self._ledger.append(
                state,
                attempt=fact.attempt,
                version=fact.version,
                clients=missing,
            )
        return True

    # --- what is shown of them
    # ---------------------------------------------------------------

    def their_head(self) -> SignedMessage | None:
        """Return the other server's newest head: what it has signed of the common history."""
        found = self._transaction.value(_THEIR_HEAD)
        return None if found is None else SignedMessage.from_json(found)

    def states(self) -> dict[int, AttemptState]:
        """Return all attempts' states."""
        query = select(_ATTEMPT.attempt, _ATTEMPT.state).order_by(_ATTEMPT.attempt)
        return dict(self._transaction.rows(query))

    def by_state(self) -> dict[AttemptState, int]:
        """Return how many attempts stand where."""
        query = select(_ATTEMPT.state, func.count()).group_by(_ATTEMPT.state)
        return dict(self._transaction.rows(query))

    def rejections(self) -> dict[Rejection, int]:
        """Return how many submissions were rejected, by reason."""
        query = select(_REJECTION.reason, func.count()).group_by(_REJECTION.reason)
        return dict(self._transaction.rows(query))

    def rejected_clients(self) -> dict[ClientId, int]:
        """Return how many submissions of each client were rejected; absence isn't one."""
        came = select(_REJECTION.client, func.count()).where(
            _REJECTION.reason != Rejection.ABSENT
        )
        return dict(self._transaction.rows(came.group_by(_REJECTION.client)))


def _row(connection: Connection, attempt: int) -> Row[Any] | None:
    return connection.execute(_ROW, {"of": attempt}).one_or_none()


def _state(connection: Connection, attempt: int) -> AttemptState | None:
    row = _row(connection, attempt)
    return None if row is None else row.state


def _begin(
    connection: Connection,
    attempt: int,
    version: int,
    **values: object,
) -> None:
    connection.execute(
        insert(schema.attempts), {"attempt": attempt, "version": version, **values}
    )


def _change(connection: Connection, attempt: int, **values: object) -> None:
    change = update(schema.attempts).where(_ATTEMPT.attempt == bindparam("of"))
    connection.execute(change, {"of": attempt, **values})
