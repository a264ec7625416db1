"""Attempts: opening them, charging them, and what becomes of them."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import field
from types import MappingProxyType

from sqlalchemy import (
    Integer,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from precad.aggregator import Fact, HeadBody, SignedMessage
from precad.aggregator.store import (
    BOUND,
    CHARGED,
    PENDING,
    AnyRow,
    AttemptState,
    JournalFile,
    Ledger,
    Transaction,
    Versions,
    schema,
)
from precad.common import (
    AlreadyReleased,
    ClientId,
    Digest,
    PeerViolation,
    Rejection,
    StorageFailure,
    frozen_kw_only_dataclass,
    log,
)

UNKNOWN = Digest(bytes(32))
"""The model of an attempt that was learned: nobody asks for it again."""
_NEVER_VOIDED = (*BOUND, AttemptState.DONE, AttemptState.WRITTEN_OFF)
"""States in which the noisy share may have left: a void is refused, whatever the other
server says of the attempt now."""
_VOID_CHANGES_NOTHING = {*CHARGED, AttemptState.VOIDED} - {AttemptState.PREPARED}
"""States in which an attempt stays when the other server's ledger has it as voided."""
_SHARES_AT_ONCE = 8
"""How many noisy shares are removed when a version ends."""

# Statements are put together once: SQLAlchemy takes longer over that than SQLite over
# running them.
_ATTEMPT = schema.attempts.c
_SHARE = schema.noisy_share.c
_LEDGER = schema.ledger.c
_REJECTION = schema.rejection.c
_ATTEMPT_ASKED = bindparam("attempt", type_=Integer)
_VERSION_ASKED = bindparam("version", type_=Integer)
_LATEST_FIRST = _ATTEMPT.attempt.desc()
_NEWEST = select(func.max(_ATTEMPT.attempt))
_HEARD = select(schema.task.c.heard)
_ROW = select(schema.attempts).where(_ATTEMPT.attempt == _ATTEMPT_ASKED)
_COUNT_IN_VERSION = select(func.count()).where(_ATTEMPT.version == _VERSION_ASKED)
_RELEASE_OF_VERSION = select(_ATTEMPT.attempt).where(
    _ATTEMPT.version == _VERSION_ASKED,
    _ATTEMPT.state.in_((*PENDING, AttemptState.DONE)),
)
_PENDING = (
    select(schema.attempts)
    .where(_ATTEMPT.state.in_(PENDING))
    .order_by(_LATEST_FIRST)
    .limit(1)
)
_REJECTIONS = select(_REJECTION.client, _REJECTION.reason).where(
    _REJECTION.attempt == _ATTEMPT_ASKED
)
SHARE_OF = select(_SHARE.share).where(_SHARE.attempt == _ATTEMPT_ASKED)
"""The noisy share of an attempt; the statement's parameter is ``attempt``."""
_SHARE_DIGEST = select(_LEDGER.share_digest).where(
    _LEDGER.attempt == _ATTEMPT_ASKED,
    _LEDGER.event == AttemptState.PREPARED,
)
_THEIR_HEAD = (
    select(_ATTEMPT.their_head)
    .where(_ATTEMPT.their_head.is_not(None), _ATTEMPT.state != AttemptState.VOIDED)
    .order_by(_LATEST_FIRST)
    .limit(1)
)
_START = select(_ATTEMPT.model).where(_ATTEMPT.version == 0).limit(1)
_VERSION_IF_OVER = (
    select(_ATTEMPT.version)
    .where(_ATTEMPT.attempt == _SHARE.attempt, _ATTEMPT.state.not_in(PENDING))
    .scalar_subquery()
)
_SHARES_TO_DROP = (
    select(_SHARE.attempt)
    .where(bindparam("before") > _VERSION_IF_OVER)
    .order_by(_SHARE.attempt.desc())
    .limit(_SHARES_AT_ONCE)
)
_DROP_SHARES = delete(schema.noisy_share).where(_SHARE.attempt.in_(_SHARES_TO_DROP))
# The parameter can't have the column's name: SQLAlchemy would set that column.
_CHANGE = update(schema.attempts).where(_ATTEMPT.attempt == bindparam("changed"))


@frozen_kw_only_dataclass
class ReleaseRecord:
    """An attempt that is prepared on this server, as the database keeps it."""

    attempt: int
    version: int
    """t of the model θ_t that the attempt started from."""
    state: AttemptState
    model: Digest
    """Of θ_t."""
    valid_set: Digest
    valid: tuple[ClientId, ...]
    """The clients that are charged, in order."""
    rejections: Mapping[ClientId, Rejection]
    noisy_share: bytes = field(repr=False)
    """This server's share, ``[d] int64``, as it was persisted."""

    def fact(self) -> Fact:
        """Return the attempt's charge, as both ledgers hold it."""
        names = tuple(client.name for client in self.valid)
        return Fact(
            version=self.version,
            attempt=self.attempt,
            clients=names,
        )


class Attempts:
    """One server's attempts.

    Each method is one transaction: durable when it returns, or undone. Every method
    raises StorageFailure when the database fails, and has changed nothing then.
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

    # --- numbers ----------------------------------------------------------------------

    def next_number(self) -> int:
        """Return the first number above every attempt that this server knows of.

        It knows them from database, journal file and what others named (``hear``).
        """

        def compute() -> int:
            heard = self._transaction.value(_HEARD)
            unused = self.unused_here()
            return unused if heard is None else max(unused, int(heard) + 1)

        return self._transaction.cached("next attempt", compute)

    def unused_here(self) -> int:
        """Return the first number above all attempts in database and journal file."""
        return max(self.newest(), self._entries.newest_attempt) + 1

    def newest(self) -> int:
        """Return the newest attempt in the database; -1 before the first."""
        newest = self._transaction.value(_NEWEST)
        return -1 if newest is None else int(newest)

    def start(self) -> Digest | None:
        """Return the digest of the θ_0 that attempts began from; None before any."""
        start: Digest | None = self._transaction.value(_START)
        return start

    def hear(self, attempt: int) -> None:
        """Keep that the dealer, an owner or the other server has named ``attempt``.

        Its number is never used again.
        """
        if attempt < self.next_number():
            return
        with self._transaction.write():
            # Asked again: another thread may have heard of a newer attempt since.
            if attempt >= self.next_number():
                self._transaction.execute(update(schema.task), {"heard": attempt})

    # --- until it is prepared ---------------------------------------------------------

    def begin(
        self,
        *,
        attempt: int,
        version: int,
        cohort_size: int,
        model: Digest,
    ) -> None:
        """Keep a new attempt as open; ``model`` is the digest of ``version``'s model.

        Raises PeerViolation: its number isn't above all that were used before.
        """
        with self._transaction.write():
            unused = self.unused_here()
            if attempt < unused:
                raise PeerViolation(
                    f"attempt {attempt} isn't above {unused - 1}, the newest here"
                )
            self._begin(
                attempt=attempt,
                version=version,
                state=AttemptState.OPEN,
                cohort_size=cohort_size,
                model=model,
            )

    def abandon_open(self) -> int:
        """Abandon attempts left open by a broken link or server; return how many."""
        abandon = (
            update(schema.attempts)
            .where(_ATTEMPT.state == AttemptState.OPEN)
            .values(state=AttemptState.ABANDONED)
        )
        return self._transaction.execute(abandon)

    def count_of(self, version: int) -> int:
        """Return how many attempts of ``version`` there were, however they ended."""
        return int(self._transaction.value(_COUNT_IN_VERSION, version=version))

    def spend(self, attempt: int, batch: int) -> None:
        """Keep a batch of the dealer's correlated randomness as spent, before its use.

        Raises PeerViolation: it was spent before.
        """
        batch_row = {"attempt": attempt, "batch": batch}
        try:
            self._transaction.execute(insert(schema.spent_triple), batch_row)
        except IntegrityError:
            raise PeerViolation(
                f"correlated randomness of attempt {attempt}, batch {batch} was spent"
                " before; using it twice would reveal differences of updates"
            ) from None

    # --- from prepared to done --------------------------------------------------------

    def prepare(
        self,
        attempt: int,
        valid: Collection[ClientId],
        valid_set: Digest,
        rejections: Mapping[ClientId, Rejection],
        noisy_share: bytes | memoryview,
        submissions: Mapping[ClientId, str] = MappingProxyType({}),
    ) -> None:
        """Charge every valid client and persist the noisy share, both or neither.

        Args:
            attempt: an open attempt.
            valid: the clients that are summed, and charged.
            valid_set: the digest that both servers agreed on.
            rejections: why other clients don't count.
            noisy_share: this server's share as it travels (``CutShares.cut``).
            submissions: ids of the clients' submissions.

        Raises AlreadyReleased: the attempt was prepared before or never opened, or its
        version has another release.
        """
        with self._transaction.write():
            opened = self._row(attempt)
            if opened is None or opened.state is not AttemptState.OPEN:
                raise AlreadyReleased(
                    f"attempt {attempt} was prepared already, or never opened"
                )
            version = opened.version
            state = AttemptState.PREPARED
            earlier = self._transaction.value(_RELEASE_OF_VERSION, version=version)
            if earlier is not None:
                raise AlreadyReleased(
                    f"version {version} has its release already, of attempt {earlier}"
                )
            with self._ledger.updating_sums(version):
                self._change(attempt, state=state, valid_set=valid_set)
                # As a parameter: SQLAlchemy keeps statements, and the values in them.
                share_row = {"attempt": attempt, "share": noisy_share}
                self._transaction.execute(insert(schema.noisy_share), share_row)
                self._ledger.append(
                    state,
                    attempt=attempt,
                    version=version,
                    clients=valid,
                    valid_set=valid_set,
                    share_digest=Digest.of(noisy_share),
                    submissions=submissions,
                )
            self._ledger.reject(attempt, rejections, submissions)

    def countersign(self, attempt: int, head: HeadBody, signed: SignedMessage) -> None:
        """Keep that this server countersigns a head, in the journal file first.

        ``signed`` is ``head`` with the other server's signature. An attempt that the
        journal file alone still names counts as sent.

        Raises AlreadyReleased: the attempt isn't prepared here, or is over.
        """
        self._journal_file.countersigned(
            head.version, attempt, self._ledger.charged(attempt)
        )
        with self._transaction.write():
            state = self._state(attempt)
            if state not in PENDING:
                raise AlreadyReleased(f"attempt {attempt} isn't prepared here")
            if state is AttemptState.PREPARED:
                state = AttemptState.COUNTERSIGNED
            self._change(attempt, state=state, their_head=signed.to_json())

    def sent(self, attempt: int, countersignature: SignedMessage) -> None:
        """Keep the other's countersignature: the noisy share may leave now.

        Raises AlreadyReleased: the attempt isn't countersigned here, or is over.
        """
        with self._transaction.write():
            if self._state(attempt) not in BOUND:
                raise AlreadyReleased(f"attempt {attempt} isn't countersigned here")
            data = countersignature.to_json()
            self._change(attempt, state=AttemptState.SENT, countersignature=data)

    def pending(self) -> ReleaseRecord | None:
        """Return the prepared attempt that isn't over, or None.

        Raises StorageFailure: its noisy share isn't the one that the ledger names.
        """
        with self._transaction.read():
            row = self._transaction.first(_PENDING)
            if row is None:
                return None
            attempt = row.attempt
            share = self.noisy_share(attempt)
            digest = self._transaction.value(_SHARE_DIGEST, attempt=attempt)
            if share is None or digest != Digest.of(share):
                # Another share than the first one would be a second release.
                raise StorageFailure(
                    f"the noisy share of attempt {attempt} isn't the one that the"
                    " ledger names; the database was changed or is damaged. Put back"
                    " this server's newest state, or start a new task"
                )
            rejections = self._transaction.rows(_REJECTIONS, attempt=attempt)
            return ReleaseRecord(
                attempt=attempt,
                version=row.version,
                state=row.state,
                model=row.model,
                valid_set=row.valid_set,
                valid=self._ledger.charged(attempt),
                rejections=dict(rejections),
                noisy_share=share,
            )

    def noisy_share(self, attempt: int) -> bytes | None:
        """Return this server's noisy share of an attempt, as it travels.

        None where the attempt wasn't prepared here, or its share was removed since.
        """
        share: bytes | None = self._transaction.value(SHARE_OF, attempt=attempt)
        return share

    def finish(self, attempt: int, next_model: Digest) -> None:
        """Keep a prepared attempt as done; an attempt in another state stays in it.

        ``next_model`` is the digest of the model that its release led to.
        """
        with self._transaction.write():
            if self._state(attempt) in PENDING:
                self._change(attempt, state=AttemptState.DONE, next_model=next_model)

    def drop_shares(self, confirmed: int) -> None:
        """Remove noisy shares of versions before ``confirmed``, a few at a time.

        ``confirmed`` is a version whose model both servers hold. Only the share of a
        pending attempt is ever sent, and no attempt becomes pending again, not even in
        an older copy of this database. Call it where nobody waits: to remove many would
        hold up a round.
        """
        self._transaction.execute(_DROP_SHARES, {"before": confirmed})

    # --- what came of it otherwise ----------------------------------------------------

    def void(self, version: int, attempt: int) -> None:
        """Keep that the attempt isn't prepared on both servers: it costs nothing.

        Raises AlreadyReleased: it was countersigned here, written off since or not, or
        is done, or is an attempt of another version.
        """
        with self._transaction.write():
            self._void(version, attempt)
        if any(fact.attempt == attempt for fact in self._entries.facts):
            self._journal_file.voided(version, attempt)

    def end(self, attempt: int, state: AttemptState) -> None:
        """Put a prepared attempt in its last state; any other stays as it is.

        LEARNED where its version is over, WRITTEN_OFF where both operators gave it up:
        its charge stands.
        """
        with self._transaction.write():
            known = self._row(attempt)
            if known is not None and known.state in PENDING:
                self._change(attempt, state=state)
                self._ledger.append(state, attempt=attempt, version=known.version)

    def learn(self, facts: Collection[Fact]) -> int:
        """Take facts that this server had forgotten into its ledger.

        Facts that it holds already change nothing. Return how many were forgotten.

        Raises StorageFailure: a fact names an attempt that stands here for another
        version.
        """
        learned_versions: list[int] = []
        with self._transaction.write():
            for fact in sorted(facts, key=lambda fact: (fact.attempt, fact.voided)):
                known = self._row(fact.attempt)
                if known is not None and known.version != fact.version:
                    raise StorageFailure(
                        f"attempt {fact.attempt} stands here for another version"
                    )
                if fact.voided:
                    new = known is None or known.state not in _VOID_CHANGES_NOTHING
                    if new:
                        self._void(fact.version, fact.attempt)
                else:
                    new = self._learn_charge(fact, known)
                if new:
                    learned_versions.append(fact.version)
            if learned_versions:
                # Histories of later versions are computed anew.
                later = schema.versions.c.version > min(learned_versions)
                self._transaction.execute(
                    update(schema.versions).where(later).values(history=None)
                )
        return len(learned_versions)

    def charge_unknown(self, fact: Fact) -> None:
        """Charge an attempt that only others remember, in the journal file first."""
        self._journal_file.countersigned(
            fact.version, fact.attempt, map(ClientId, fact.clients)
        )
        self.learn([fact])

    def take_back(self) -> None:
        """Take from the journal file what this database has forgotten.

        It has when an old copy was put back, or it was lost after the file's line.
        """
        self._entries = self._journal_file.read()
        with self._transaction.write():
            for fact in self._entries.facts:
                state = self._state(fact.attempt)
                if state is AttemptState.VOIDED:
                    # Voided after the database was put back once: a server that voids
                    # never countersigns.
                    continue
                if state is AttemptState.PREPARED:
                    # It was countersigned: it is never voided.
                    self._change(fact.attempt, state=AttemptState.COUNTERSIGNED)
                elif self.learn([fact]):
                    finding = "stands in this server's journal and not in its database"
                    outcome = f"its {len(fact.clients)} charges are in the ledger again"
                    log.warning("attempt %d %s: %s", fact.attempt, finding, outcome)
            opened_attempts = set(self._entries.opened)
            opened_counts = Counter(version for version, _ in opened_attempts)
            for version, count in opened_counts.items():
                self._versions.raise_opened(version, count)

    def _void(self, version: int, attempt: int) -> None:
        """Void an attempt in database and ledger, for ``void`` and ``learn``.

        The attempt may be unknown here. One that is voided already stays as it is.

        Raises AlreadyReleased: as ``void``.
        """
        known = self._row(attempt)
        if known is not None:
            if known.state is AttemptState.VOIDED:
                return
            if known.state in _NEVER_VOIDED or known.version != version:
                raise AlreadyReleased(
                    f"attempt {attempt} is {known.state.value} and is never voided"
                )
        state = AttemptState.VOIDED
        with self._ledger.updating_sums(version):
            if known is None:
                self._begin(
                    attempt=attempt,
                    version=version,
                    state=state,
                    cohort_size=0,
                    model=UNKNOWN,
                )
            else:
                self._change(attempt, state=state)
            self._ledger.append(state, attempt=attempt, version=version)

    def _learn_charge(self, fact: Fact, known: AnyRow | None) -> bool:
        """Take a forgotten charge into the ledger, for ``learn``.

        ``known`` is its row here, or None. Return whether any of it was forgotten.
        """
        clients = {ClientId(name) for name in fact.clients}
        missing = clients - set(self._ledger.charged(fact.attempt))
        charged = known is not None and known.state in CHARGED
        if charged and not missing:
            return False
        state = AttemptState.LEARNED
        with self._ledger.updating_sums(fact.version):
            if known is None:
                self._begin(
                    attempt=fact.attempt,
                    version=fact.version,
                    state=state,
                    cohort_size=len(clients),
                    model=UNKNOWN,
                )
            elif not charged:
                self._change(fact.attempt, state=state)
            self._ledger.append(
                state, attempt=fact.attempt, version=fact.version, clients=missing
            )
        return True

    # --- what is shown of them --------------------------------------------------------

    def their_head(self) -> SignedMessage | None:
        """Return the other server's newest signed head, with the common history."""
        data = self._transaction.value(_THEIR_HEAD)
        return None if data is None else SignedMessage.from_json(data)

    def states(self, version: int | None = None) -> dict[int, AttemptState]:
        """Return the state of every attempt, or of a version's, in order."""
        query = select(_ATTEMPT.attempt, _ATTEMPT.state).order_by(_ATTEMPT.attempt)
        if version is not None:
            query = query.where(_ATTEMPT.version == version)
        return dict(self._transaction.rows(query))

    def by_state(self) -> dict[AttemptState, int]:
        """Return how many attempts are in each state."""
        query = select(_ATTEMPT.state, func.count()).group_by(_ATTEMPT.state)
        return dict(self._transaction.rows(query))

    def rejections(self) -> dict[Rejection, int]:
        """Return how many submissions were rejected, by reason."""
        query = select(_REJECTION.reason, func.count()).group_by(_REJECTION.reason)
        return dict(self._transaction.rows(query))

    def rejected_clients(self) -> dict[ClientId, int]:
        """Return how many submissions of each client were rejected, but for absence."""
        query = (
            select(_REJECTION.client, func.count())
            .where(_REJECTION.reason != Rejection.ABSENT)
            .group_by(_REJECTION.client)
        )
        return dict(self._transaction.rows(query))

    def _row(self, attempt: int) -> AnyRow | None:
        """Return the attempt's row, or None where this database doesn't know it."""
        return self._transaction.first(_ROW, attempt=attempt)

    def _state(self, attempt: int) -> AttemptState | None:
        row = self._row(attempt)
        return None if row is None else row.state

    def _begin(self, **values: object) -> None:
        """Insert an attempt with these values by column."""
        self._transaction.execute(insert(schema.attempts), values)

    def _change(self, attempt: int, **values: object) -> None:
        """Set these columns of an attempt."""
        self._transaction.execute(_CHANGE, {"changed": attempt, **values})
