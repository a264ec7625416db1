"""The ledger: a chain of hashes over who was charged for which release, and its sums.

Every attempt that is prepared, voided, written off or learned again makes one entry, in
the transaction that changes its state. An entry's hash covers its content, the clients
that it charges and the hash before it: a later edit, deletion or insertion breaks the
chain from there on. Somebody who may write to the database can compute a new chain; a
head that was noted elsewhere shows it (``audit``).

A round reads sums of charges and not the charges (table ``participation``). The sums
change in the transaction that changes what they count; ``precad ledger verify``
computes them anew.

Throughout, m counts a version's further releases: with m = 0 it was released once.
"""

import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

from sqlalchemy import (
    Integer,
    String,
    bindparam,
    case,
    cast,
    func,
    insert,
    select,
    text,
    type_coerce,
    union_all,
    update,
)

from precad.aggregator import Fact
from precad.aggregator.store import (
    CHARGED,
    AttemptState,
    Transaction,
    schema,
    set_version,
)
from precad.common import (
    ClientId,
    Digest,
    Rejection,
    Role,
    StorageFailure,
    Task,
    digest_of,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)

# Statements are put together once: SQLAlchemy takes longer over that than SQLite over
# running them.
_ATTEMPT = schema.attempts.c
_CHARGE = schema.charge.c
_VERSION = schema.versions.c
_SUM = schema.participation.c
_SHOWN = schema.shown_statement.c
_REJECTION = schema.rejection.c
_TASK = schema.task.c
_ATTEMPT_ASKED = bindparam("attempt", type_=Integer)
_VERSION_ASKED = bindparam("version", type_=Integer)
_CHARGES = schema.charge.join(schema.attempts, _CHARGE.attempt == _ATTEMPT.attempt)
_COUNTS = _ATTEMPT.state.in_(CHARGED)
_CHARGES_IN_VERSION = (
    select(_CHARGE.client, func.count())
    .select_from(_CHARGES)
    .where(_ATTEMPT.version == _VERSION_ASKED, _COUNTS)
    .group_by(_CHARGE.client)
)
# Not grouped here, but by who asks: to have groups in order SQLite would look through
# all charges.
_CHARGES_FROM_VERSION_ON = (
    select(_CHARGE.client, _ATTEMPT.version)
    .select_from(_CHARGES)
    .where(_ATTEMPT.version >= _VERSION_ASKED, _COUNTS)
)
_CHARGED_BY_ATTEMPT = (
    select(_CHARGE.client)
    .where(_CHARGE.attempt == _ATTEMPT_ASKED)
    .order_by(_CHARGE.client)
)
_ENTRIES = select(schema.ledger).order_by(schema.ledger.c.sequence)
_CHARGES_OF_ENTRY = select(_CHARGE.client, _CHARGE.record_rate).where(
    _CHARGE.sequence == bindparam("sequence")
)
_SUMS = select(_SUM.client, _SUM.re_releases, _SUM.versions).where(_SUM.versions > 0)
_FACTS = (
    select(_ATTEMPT.attempt, _ATTEMPT.state)
    .where(
        _ATTEMPT.version == _VERSION_ASKED,
        _ATTEMPT.state.in_((*CHARGED, AttemptState.VOIDED)),
    )
    .order_by(_ATTEMPT.attempt)
)
_NEWEST_HISTORY = (
    select(_VERSION.version, _VERSION.history)
    .where(_VERSION.version <= _VERSION_ASKED, _VERSION.history.is_not(None))
    .order_by(_VERSION.version.desc())
    .limit(1)
)
_HEAD = select(_TASK.ledger_length, _TASK.ledger_head)
_RATES = select(schema.enrolment.c.client, schema.enrolment.c.record_rate)
_ADD_TO_SUM = text(
    "INSERT INTO participation (client, re_releases, versions) "
    "VALUES (:client, :re_releases, :by) ON CONFLICT (client, re_releases) "
    "DO UPDATE SET versions = participation.versions + excluded.versions"
)
_ADD_TO_KNOWN = text(
    "UPDATE shown SET known = known + :by WHERE client = :client AND version > :version"
)
_ANY_SHOWN = select(_SHOWN.client).limit(1)
_SHOWN_SUMS = select(_SHOWN.client, _SHOWN.charged, _SHOWN.known)
_FOLLOWED = union_all(
    select(
        _ATTEMPT.version,
        _ATTEMPT.attempt,
        type_coerce(_CHARGE.client, String).label("owner"),
        func.coalesce(_CHARGE.submission, "").label("submission"),
        case(
            (_ATTEMPT.state == AttemptState.DONE, "counted"),
            else_=cast(_ATTEMPT.state, String),
        ).label("verdict"),
    ).select_from(_CHARGES),
    select(
        _ATTEMPT.version,
        _ATTEMPT.attempt,
        type_coerce(_REJECTION.client, String),
        func.coalesce(_REJECTION.submission, ""),
        cast(_REJECTION.reason, String),
    ).join_from(schema.attempts, schema.rejection),
).subquery()

_UNSALTED_EVENTS = {
    AttemptState.PREPARED: "released",
    AttemptState.WRITTEN_OFF: "forfeited",
}
"""What schemas before 0003 called the events, in their entries' hashes."""


@dataclass(frozen=True, slots=True, order=True)
class LedgerCharge:
    """One participation of one client, as an entry charges it."""

    client: ClientId
    record_rate: float
    """p_i at the time of the charge."""


@frozen_kw_only_dataclass
class LedgerEntry:
    """One link of the chain."""

    sequence: int
    """1, 2, 3, …, without gaps."""
    event: AttemptState
    """PREPARED: charged, and the noisy share is persisted. LEARNED: a charge that was
    forgotten, or an attempt whose version is over. VOIDED: the attempt costs nothing.
    WRITTEN_OFF: given up, and its charge stands."""
    attempt: int
    version: int
    noise_multiplier: float
    """σ of this server's noise."""
    valid_set: Digest | None
    share_digest: Digest | None
    """SHA-256 of the persisted noisy share; it never leaves the database."""
    salt: bytes | None
    """32 random bytes: the hash leaves this server, and must not tell who was
    charged. None in entries of schemas before 0003, whose hashes stayed there."""
    charges: tuple[LedgerCharge, ...]
    """In the order of clients; without those whom the attempt had charged before."""
    previous: Digest
    """``hash`` of the entry before, or ``ledger_start``."""
    hash: Digest

    def content_hash(self) -> Digest:
        """Return what ``hash`` must be: SHA-256 over everything else in the entry."""
        valid_set = b"" if self.valid_set is None else self.valid_set.value
        share_digest = b"" if self.share_digest is None else self.share_digest.value
        event = self.event.value
        if self.salt is None:
            event = _UNSALTED_EVENTS.get(self.event, event)
        parts: list[bytes | int] = [
            self.previous.value,
            self.sequence,
            event.encode(),
            self.attempt,
            self.version,
            self.noise_multiplier.hex().encode(),
            valid_set,
            share_digest,
        ]
        if self.salt is not None:
            parts.append(self.salt)
        for charge in self.charges:
            parts += [charge.client.encoded(), charge.record_rate.hex().encode()]
        return digest_of("ledger-entry", *parts)


@frozen_kw_only_dataclass
class FollowedSubmission:
    """What became of one owner's submission, by the words of every party's log."""

    version: int
    attempt: int
    owner: str
    submission: str
    """Its id. Empty where nothing whole came, or the ledger has only the charge."""
    verdict: str
    """``counted``, the reason why it was rejected, or the state of an attempt that
    isn't done."""


@frozen_dataclass
class Head:
    """Where a ledger ends."""

    length: int
    """How many entries it has."""
    head: Digest
    """``hash`` of the newest entry, or ``ledger_start``."""


def ledger_start(task: Digest, role: Role) -> Digest:
    """Return the ``previous`` of the first entry of a server's ledger for ``task``."""
    return digest_of("ledger", task.value, role.value.encode())


def history_start(task: Digest) -> Digest:
    """Return the history before version 0, on which ``history_after`` builds."""
    return digest_of("history", task.value)


def history_after(before: Digest, facts: Iterable[Fact]) -> Digest:
    """Return the history after one more version, whose ``facts`` come in any order.

    Both ledgers hold the same facts, and the digest of all of them stands in every head
    that a server signs. So a server that has lost its newest entries recognises its own
    signature over them. Nobody can make it learn other facts, except for an attempt
    that the other server alone remembers.
    """
    parts: list[bytes | int] = [before.value]
    for fact in sorted(facts, key=lambda fact: (fact.attempt, fact.voided)):
        names = sorted(ClientId(name).encoded() for name in fact.clients)
        parts += [fact.version, fact.attempt, int(fact.voided), len(names), *names]
    return digest_of("history-of-a-version", *parts)


class Ledger:
    """One server's ledger: its chain, its facts of each version, and sums by client.

    Each method is one transaction.
    """

    def __init__(self, transaction: Transaction, task: Task) -> None:
        self._transaction = transaction
        self._task = task

    # --- the chain --------------------------------------------------------------------

    def head(self) -> Head:
        """Return how many entries there are, and the newest one's hash."""
        ((length, head),) = self._transaction.rows(_HEAD)
        return Head(length=length, head=head)

    def append(
        self,
        event: AttemptState,
        *,
        attempt: int,
        version: int,
        clients: Collection[ClientId] = (),
        valid_set: Digest | None = None,
        share_digest: Digest | None = None,
        submissions: Mapping[ClientId, str] = MappingProxyType({}),
    ) -> None:
        """Add an entry that charges ``clients``.

        Call it in the transaction that changes the attempt's state, and where charges
        change within ``updating_sums``. A client that isn't enrolled here is charged at
        the task's rate, which is the highest that a client may have. ``submissions``
        are ids of the clients' submissions.
        """
        transaction = self._transaction
        mechanism = self._task.mechanism
        with transaction.write():
            rates = dict(transaction.rows(_RATES)) if clients else {}
            newest = self.head()
            charges = tuple(
                LedgerCharge(client, rates.get(client, mechanism.unit_rate))
                for client in sorted(clients)
            )
            draft = LedgerEntry(
                sequence=newest.length + 1,
                event=event,
                attempt=attempt,
                version=version,
                noise_multiplier=mechanism.noise_multiplier,
                valid_set=valid_set,
                share_digest=share_digest,
                salt=secrets.token_bytes(32),
                charges=charges,
                previous=newest.head,
                hash=newest.head,
            )
            entry = replace(draft, hash=draft.content_hash())
            entry_row = {
                column.name: getattr(entry, column.name) for column in schema.ledger.c
            }
            transaction.execute(insert(schema.ledger), entry_row)
            charge_rows = [
                {
                    "attempt": attempt,
                    "sequence": entry.sequence,
                    "client": charge.client,
                    "record_rate": charge.record_rate,
                    "submission": submissions.get(charge.client),
                }
                for charge in charges
            ]
            transaction.execute(insert(schema.charge), charge_rows)
            head = {"ledger_length": entry.sequence, "ledger_head": entry.hash}
            transaction.execute(update(schema.task), head)

    def reject(
        self,
        attempt: int,
        rejections: Mapping[ClientId, Rejection],
        submissions: Mapping[ClientId, str],
    ) -> None:
        """Keep why an attempt doesn't count some clients, with submissions' ids.

        Call it in the transaction that charges the others.
        """
        rejection_rows = [
            {
                "attempt": attempt,
                "client": client,
                "reason": reason,
                "submission": submissions.get(client),
            }
            for client, reason in rejections.items()
        ]
        self._transaction.execute(insert(schema.rejection), rejection_rows)

    @contextmanager
    def updating_sums(self, version: int) -> Iterator[None]:
        """Run a block that changes which charges of ``version`` count, then the sums.

        Both are one transaction.
        """
        transaction = self._transaction
        with transaction.write():
            before = dict(transaction.rows(_CHARGES_IN_VERSION, version=version))
            yield
            after = dict(transaction.rows(_CHARGES_IN_VERSION, version=version))
            # By client and m: in how many more versions it was released 1 + m times.
            changes: Counter[tuple[ClientId, int]] = Counter()
            for client in before.keys() | after.keys():
                changes[client, after.get(client, 0) - 1] += 1
                changes[client, before.get(client, 0) - 1] -= 1
            sum_rows = [
                {"client": client.name, "re_releases": m, "by": change}
                for (client, m), change in changes.items()
                if change and m >= 0
            ]
            transaction.execute(_ADD_TO_SUM, sum_rows)
            known_rows = [
                {
                    "client": client.name,
                    "version": version,
                    "by": 1 if client in after else -1,
                }
                for client in before.keys() ^ after.keys()
            ]
            if transaction.first(_ANY_SHOWN) is not None:
                transaction.execute(_ADD_TO_KNOWN, known_rows)

    def entries(self) -> Iterator[LedgerEntry]:
        """Yield all entries in order as they stand, unchecked.

        Raises StorageFailure: one is unreadable.
        """
        length = 0
        try:
            with self._transaction.read() as connection:
                for row in connection.execute(_ENTRIES):
                    charge_rows = connection.execute(
                        _CHARGES_OF_ENTRY, {"sequence": row.sequence}
                    )
                    charges = [
                        LedgerCharge(client, float(rate))
                        for client, rate in charge_rows
                    ]
                    yield LedgerEntry(
                        # SQLite keeps a text in a column of numbers too, where somebody
                        # put one.
                        sequence=int(row.sequence),
                        event=row.event,
                        attempt=int(row.attempt),
                        version=int(row.version),
                        noise_multiplier=float(row.noise_multiplier),
                        valid_set=row.valid_set,
                        share_digest=row.share_digest,
                        salt=None if row.salt is None else bytes(row.salt),
                        charges=tuple(sorted(charges)),
                        previous=row.previous,
                        hash=row.hash,
                    )
                    length += 1
        except (ValueError, TypeError, StorageFailure) as error:
            raise StorageFailure(
                f"ledger entry {length + 1} can't be read: {error}"
            ) from None

    def submissions(self, **wanted: int | str | None) -> list[FollowedSubmission]:
        """Return what became of submissions, in the order of attempts and owners.

        ``wanted`` are values of FollowedSubmission's fields; None is any value.
        """
        query = select(_FOLLOWED).order_by(_FOLLOWED.c.attempt, _FOLLOWED.c.owner)
        for name, value in wanted.items():
            if value is not None:
                query = query.where(_FOLLOWED.c[name] == value)
        rows = self._transaction.rows(query)
        return [FollowedSubmission(**row._mapping) for row in rows]  # noqa: SLF001

    # --- versions ---------------------------------------------------------------------

    def facts(self, version: int) -> tuple[Fact, ...]:
        """Return what the ledger holds of ``version``, in the order of attempts."""
        facts = []
        with self._transaction.read():
            for attempt, state in self._transaction.rows(_FACTS, version=version):
                voided = state is AttemptState.VOIDED
                clients = () if voided else self.charged(attempt)
                facts.append(
                    Fact(
                        version=version,
                        attempt=attempt,
                        voided=voided,
                        clients=tuple(client.name for client in clients),
                    )
                )
        return tuple(facts)

    def history(self, version: int) -> Digest:
        """Return the digest of all facts of the versions before ``version``.

        Histories that aren't kept yet are computed and kept.
        """
        kept_version = 0
        digest = history_start(self._task.digest)
        newest = self._transaction.first(_NEWEST_HISTORY, version=version)
        if newest is not None:
            kept_version, digest = newest
        if kept_version < version:
            with self._transaction.write():
                for earlier in range(kept_version, version):
                    digest = history_after(digest, self.facts(earlier))
                    set_version(self._transaction, earlier + 1, history=digest)
        return digest

    def uncharged_versions(self, version: int) -> tuple[int, ...]:
        """Return the versions before ``version`` without any attempt that counts.

        A version whose release charged nobody isn't one of them.
        """
        query = select(_ATTEMPT.version).where(_COUNTS).distinct()
        charged = {row.version for row in self._transaction.rows(query)}
        return tuple(earlier for earlier in range(version) if earlier not in charged)

    # --- clients ----------------------------------------------------------------------

    def charged(self, attempt: int) -> tuple[ClientId, ...]:
        """Return the clients that an attempt's entries charge, in order."""
        rows = self._transaction.rows(_CHARGED_BY_ATTEMPT, attempt=attempt)
        return tuple(sorted(row.client for row in rows))

    def charges_in(self, version: int) -> dict[ClientId, int]:
        """Return, by client, how many releases of ``version`` may have left with it."""
        return self._transaction.cached(
            ("charges", version),
            lambda: dict(self._transaction.rows(_CHARGES_IN_VERSION, version=version)),
        )

    def participations(self) -> dict[ClientId, int]:
        """Return T_i so far: in how many versions each client was charged.

        Versions that this server has forgotten and an owner's statement names count.
        """
        counts: Counter[ClientId] = Counter(self.forgotten())
        for (client, _), versions in self.sums().items():
            counts[client] += versions
        return dict(counts)

    def re_releases(self) -> dict[ClientId, Mapping[int, int]]:
        """Return, by client and m ≥ 1, how many versions were released 1 + m times.

        Clients without such a version are left out.
        """
        repeated: dict[ClientId, dict[int, int]] = defaultdict(dict)
        query = _SUMS.where(_SUM.re_releases > 0)
        for client, m, versions in self._transaction.rows(query):
            repeated[client][m] = versions
        return dict(repeated)

    def charged_before(self, version: int) -> Mapping[ClientId, Mapping[int, int]]:
        """Return, by client and m, how many versions before ``version`` charged it."""

        def compute() -> Mapping[ClientId, Mapping[int, int]]:
            by_client: dict[ClientId, Counter[int]] = defaultdict(Counter)
            for (client, m), versions in self.sums().items():
                by_client[client][m] = versions
            for (client, _), releases in self._releases_from(version).items():
                by_client[client][releases - 1] -= 1
            # A Counter's unary plus leaves zeros out.
            return {client: +by_m for client, by_m in by_client.items()}

        return self._transaction.cached(("charged before", version), compute)

    def forgotten(self) -> Mapping[ClientId, int]:
        """Return, by client, how many charged versions this server has forgotten.

        An owner has shown them in a statement that this server itself signed.

        Raises StorageFailure: what is kept of a statement can't be read.
        """

        def compute() -> Mapping[ClientId, int]:
            lost: dict[ClientId, int] = {}
            for client, charged, known in self._transaction.rows(_SHOWN_SUMS):
                try:
                    missing = sum(int(count) for count in json.loads(charged)) - known
                except (ValueError, TypeError):
                    raise StorageFailure(
                        "a statement that an owner showed can't be read"
                    ) from None
                if missing > 0:
                    lost[client] = missing
            return lost

        return self._transaction.cached("forgotten", compute)

    def sums(self) -> dict[tuple[ClientId, int], int]:
        """Return, by client and m, how many versions were released 1 + m times.

        As the table has them; what may have left counts as released.
        """
        return {
            (client, m): versions
            for client, m, versions in self._transaction.rows(_SUMS)
        }

    def computed_sums(self) -> dict[tuple[ClientId, int], int]:
        """Return what ``sums`` must be, computed from all charges."""
        releases_by_version = self._releases_from(0).items()
        return dict(
            Counter(
                (client, releases - 1) for (client, _), releases in releases_by_version
            )
        )

    def _releases_from(self, version: int) -> Counter[tuple[ClientId, int]]:
        """Return, by client and version, how many releases charged the client.

        Only of ``version`` and those that follow it.
        """
        rows = self._transaction.rows(_CHARGES_FROM_VERSION_ON, version=version)
        return Counter((client, charged_version) for client, charged_version in rows)
