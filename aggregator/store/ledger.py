"""The ledger: who was charged for which release, as a chain of hashes, and sums of its charges.

Every attempt that is prepared, voided, written off or learned again makes one entry, in
the transaction that changes its state. An entry's hash covers its content, the clients
that it charges and the hash before it: a later edit, deletion or insertion breaks the
chain from there on. Somebody who may write to the database can compute a new chain:
against that helps a head that was noted elsewhere (``audit``).

What a round asks of charges are sums (table ``participation``), which change in the
transaction that changes what they count; ``precad ledger verify`` computes them anew.
"""

import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import Integer, bindparam, func, insert, select, text, update

from precad.aggregator.server_messages import Fact
from precad.aggregator.store import schema
from precad.aggregator.store.schema import CHARGED, AttemptState
from precad.aggregator.store.transaction import Transaction
from precad.aggregator.store.versions import set_version
from precad.common.errors import StorageFailure
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.ring import encode_context
from precad.common.task import Task

# Put together once: SQLAlchemy takes longer over a statement than SQLite.
_ATTEMPT = schema.attempts.c
_CHARGE = schema.charge.c
_VERSION = schema.versions.c
_SUM = schema.participation.c
_SHOWN = schema.shown_statement.c
_TASK = schema.task.c
_CHARGES = schema.charge.join(schema.attempts, _CHARGE.attempt == _ATTEMPT.attempt)
_OF = bindparam("of", type_=Integer)
_COUNTS = _ATTEMPT.state.in_(CHARGED)
_CHARGED_IN = select(_CHARGE.client, func.count()).select_from(_CHARGES)
_IN_VERSION = _CHARGED_IN.where(_ATTEMPT.version == _OF, _COUNTS).group_by(
    _CHARGE.client
)
# Grouped later and not there: to have groups in order SQLite would look through all
# charges.
_VERSIONS_OF = select(_CHARGE.client, _ATTEMPT.version).select_from(_CHARGES)
_FROM_VERSION_ON = _VERSIONS_OF.where(_ATTEMPT.version >= _OF, _COUNTS)
_OF_ATTEMPT = (
    select(_CHARGE.client).where(_CHARGE.attempt == _OF).order_by(_CHARGE.client)
)
_ENTRIES = select(schema.ledger).order_by(schema.ledger.c.sequence)
_OF_ENTRY = select(_CHARGE.client, _CHARGE.record_rate).where(_CHARGE.sequence == _OF)
_SUMS = select(_SUM.client, _SUM.re_releases, _SUM.versions).where(_SUM.versions > 0)
_STATED = (_ATTEMPT.version == _OF, _ATTEMPT.state.in_((*CHARGED, AttemptState.VOIDED)))
_FACTS = (
    select(_ATTEMPT.attempt, _ATTEMPT.state).where(*_STATED).order_by(_ATTEMPT.attempt)
)
_KNOWN = (_VERSION.version <= _OF, _VERSION.history.is_not(None))
_HISTORIES = select(_VERSION.version, _VERSION.history).where(*_KNOWN)
_NEWEST_HISTORY = _HISTORIES.order_by(_VERSION.version.desc()).limit(1)
_HEAD = select(_TASK.ledger_length, _TASK.ledger_head)
_RATES = select(schema.enrolment.c.client, schema.enrolment.c.record_rate)
_ADD_TO_SUM = text(
    "INSERT INTO participation (client, re_releases, versions) "
    "VALUES (:client, :re_releases, :by) ON CONFLICT (client, re_releases) "
    "DO UPDATE SET versions = participation.versions + excluded.versions"
)
_KNOWN_SINCE = text(
    "UPDATE shown SET known = known + :by WHERE client = :client AND version > :version"
)
_SHOWN_AT_ALL = select(_SHOWN.client).limit(1)
_SHOWN_SUMS = select(_SHOWN.client, _SHOWN.charged, _SHOWN.known)


@dataclass(frozen=True, slots=True, order=True)
class LedgerCharge:
    """One participation of one client."""

    client: ClientId
    record_rate: float
    """p_i at the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One link of the chain."""

    sequence: int
    """1, 2, 3, …, without gaps."""
    event: AttemptState
    """PREPARED: charged, the noisy share is persisted. LEARNED: a charge that was
    forgotten. VOIDED: the attempt costs nothing. WRITTEN_OFF: given up, and its charge
    stands."""
    attempt: int
    version: int
    noise_multiplier: float
    """σ of this server's noise."""
    valid_set: Digest | None
    share_digest: Digest | None
    """SHA-256 of the persisted noisy share; it never leaves the database."""
    salt: bytes
    """32 random bytes: the hash leaves this server, and must not tell who was charged.
    """
    charges: tuple[LedgerCharge, ...]
    """By client. None of those whom the attempt had charged before."""
    previous: Digest
    hash: Digest

    def content_hash(self) -> Digest:
        """Return what ``hash`` must be: SHA-256 over everything else in the entry."""
        parts: list[bytes | int] = [
            self.previous.value,
            self.sequence,
            self.event.value.encode(),
            self.attempt,
            self.version,
            self.noise_multiplier.hex().encode(),
            b"" if self.valid_set is None else self.valid_set.value,
            b"" if self.share_digest is None else self.share_digest.value,
            self.salt,
        ]
        for charge in self.charges:
            parts += [charge.client.encoded(), charge.record_rate.hex().encode()]
        return Digest.of(encode_context("ledger-entry", *parts))


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry of a ledger."""

    length: int
    head: Digest


def ledger_start(task: Digest, role: Role) -> Digest:
    """Return what the first entry follows on."""
    return Digest.of(encode_context("ledger", task.value, role.value.encode()))


def history_start(task: Digest) -> Digest:
    """Before version 0."""
    return Digest.of(encode_context("history", task.value))


def history_after(before: Digest, facts: Iterable[Fact]) -> Digest:
    """The history after the facts of one more version, in whatever order they come.

    Both ledgers hold facts alike, and their digest stands in every head that a server
    signs: one that has lost its newest entries knows its own signature over them again,
    and but for an attempt that the other alone remembers nobody can make it learn
    others.
    """
    parts: list[bytes | int] = [before.value]
    for fact in sorted(facts, key=lambda fact: (fact.attempt, fact.voided)):
        names = sorted(ClientId(name).encoded() for name in fact.clients)
        parts += [fact.version, fact.attempt, int(fact.voided), len(names), *names]
    return Digest.of(encode_context("history-of-a-version", *parts))


class Ledger:
    """One server's ledger: its chain, what it says of each version, and sums by client."""

    def __init__(self, transaction: Transaction, task: Task) -> None:
        self._transaction = transaction
        self._task = task

    # --- the chain
    # ---------------------------------------------------------------------------

    def head(self) -> Head:
        """Return the newest entry's place and hash."""
        ((length, head),) = self._transaction.rows(_HEAD)
        return Head(length, head)

    def append(
        self,
        event: AttemptState,
        *,
        attempt: int,
        version: int,
        clients: Collection[ClientId] = (),
        valid_set: Digest | None = None,
        share_digest: Digest | None = None,
    ) -> None:
        """Add an entry and its charges, in one ``changing`` with the attempt's change of state.

        A client that isn't enrolled here is charged at the task's rate, which no
        client's passes.
        """
        privacy = self._task.privacy
        with self._transaction.write() as connection:
            rates = dict(connection.execute(_RATES).all()) if clients else {}
            newest = self.head()
            by_client = (
                (each, rates.get(each, privacy.record_rate)) for each in sorted(clients)
            )
            draft = LedgerEntry(
                sequence=newest.length + 1,
                event=event,
                attempt=attempt,
                version=version,
                noise_multiplier=privacy.noise_multiplier,
                valid_set=valid_set,
                share_digest=share_digest,
                salt=secrets.token_bytes(32),
                charges=tuple(LedgerCharge(client, rate) for client, rate in by_client),
                previous=newest.head,
                hash=newest.head,
            )
            entry = replace(draft, hash=draft.content_hash())
            fields = {
                column.name: getattr(entry, column.name) for column in schema.ledger.c
            }
            connection.execute(insert(schema.ledger), fields)
            of = {"attempt": attempt, "sequence": entry.sequence}
            charges = [
                of | {"client": c.client, "record_rate": c.record_rate}
                for c in entry.charges
            ]
            if charges:
                connection.execute(insert(schema.charge), charges)
            head = {"ledger_length": entry.sequence, "ledger_head": entry.hash}
            connection.execute(update(schema.task), head)

    @contextmanager
    def changing(self, version: int) -> Iterator[None]:
        """A block in which charges of ``version`` come, or count no more: the sums follow."""
        with self._transaction.write() as connection:
            before = dict(self._transaction.rows(_IN_VERSION, of=version))
            yield
            after = dict(self._transaction.rows(_IN_VERSION, of=version))
            by: Counter[tuple[ClientId, int]] = Counter()
            for client in before.keys() | after.keys():
                by[client, after.get(client, 0) - 1] += 1
                by[client, before.get(client, 0) - 1] -= 1
            changes = [
                {
                    "client": client.name,
                    "re_releases": m,
                    "by": change,
                }
                for (client, m), change in by.items()
                if change and m >= 0
            ]
            if changes:
                connection.execute(_ADD_TO_SUM, changes)
            known = [
                {
                    "client": client.name,
                    "version": version,
                    "by": 1 if client in after else -1,
                }
                for client in before.keys() ^ after.keys()
            ]
            if known and connection.execute(_SHOWN_AT_ALL).first() is not None:
                connection.execute(_KNOWN_SINCE, known)

    def entries(self) -> Iterator[LedgerEntry]:
        """Yield all entries as they stand, unchecked.

        Raises StorageFailure: one is unreadable.
        """
        length = 0
        try:
            with self._transaction.read() as connection:
                for row in connection.execute(_ENTRIES):
                    charges = connection.execute(_OF_ENTRY, {"of": row.sequence})
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
                        salt=bytes(row.salt),
                        charges=tuple(
                            sorted(LedgerCharge(c, float(rate)) for c, rate in charges)
                        ),
                        previous=row.previous,
                        hash=row.hash,
                    )
                    length += 1
        except (ValueError, TypeError, StorageFailure) as error:
            raise StorageFailure(
                f"ledger entry {length + 1} can't be read: {error}"
            ) from None

    # --- versions
    # ----------------------------------------------------------------------------

    def facts(self, version: int) -> tuple[Fact, ...]:
        """Return what the ledger holds of ``version``, by attempt."""
        found = []
        with self._transaction.read():
            for attempt, state in self._transaction.rows(_FACTS, of=version):
                voided = state is AttemptState.VOIDED
                names = (
                    ()
                    if voided
                    else tuple(client.name for client in self.charged(attempt))
                )
                found.append(
                    Fact(
                        version=version,
                        attempt=attempt,
                        voided=voided,
                        clients=names,
                    )
                )
        return tuple(found)

    def history(self, version: int) -> Digest:
        """Return the digest of all facts of the versions before ``version``."""
        known = self._transaction.first(_NEWEST_HISTORY, of=version)
        at, digest = (0, history_start(self._task.digest)) if known is None else known
        if at < version:
            with self._transaction.write() as connection:
                for each in range(at, version):
                    digest = history_after(digest, self.facts(each))
                    set_version(connection, each + 1, history=digest)
        return digest

    def uncharged_versions(self, version: int) -> tuple[int, ...]:
        """Return versions before ``version`` without any charge, not even of nobody."""
        query = select(_ATTEMPT.version).where(_COUNTS).distinct()
        charged = {row.version for row in self._transaction.rows(query)}
        return tuple(sorted(set(range(version)) - charged))

    # --- clients
    # -----------------------------------------------------------------------------

    def charged(self, attempt: int) -> tuple[ClientId, ...]:
        """Return whom an attempt's entries name, in order."""
        return tuple(
            sorted(
                row.client for row in self._transaction.rows(_OF_ATTEMPT, of=attempt)
            )
        )

    def charges_in(self, version: int) -> dict[ClientId, int]:
        """Return how many releases of ``version`` may have left with each client in them."""
        rows = self._transaction.rows
        what = ("charges", version)
        return self._transaction.look(what, lambda: dict(rows(_IN_VERSION, of=version)))

    def participations(self) -> dict[ClientId, int]:
        """Return T_i so far: how many versions each client was charged for, forgotten ones too."""
        counts: Counter[ClientId] = Counter(self.forgotten())
        for (client, _), versions in self.sums().items():
            counts[client] += versions
        return dict(counts)

    def re_releases(self) -> dict[ClientId, Mapping[int, int]]:
        """Return, of clients with a version that was released again, versions by m ≥ 1."""
        found: dict[ClientId, dict[int, int]] = defaultdict(dict)
        for client, m, versions in self._transaction.rows(
            _SUMS.where(_SUM.re_releases > 0)
        ):
            found[client][m] = versions
        return dict(found)

    def charged_before(self, version: int) -> Mapping[ClientId, Mapping[int, int]]:
        """Return how many versions before ``version`` each client was charged for, by m."""

        def find() -> Mapping[ClientId, Mapping[int, int]]:
            found: dict[ClientId, Counter[int]] = defaultdict(Counter)
            for (client, m), versions in self.sums().items():
                found[client][m] = versions
            for (client, _), releases in self._releases_from(version).items():
                found[client][releases - 1] -= 1
            return {client: +counts for client, counts in found.items()}

        return self._transaction.look(("charged before", version), find)

    def forgotten(self) -> Mapping[ClientId, int]:
        """Return versions that clients were charged for by this server's own word alone."""

        def find() -> Mapping[ClientId, int]:
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

        return self._transaction.look("forgotten", find)

    def sums(self) -> dict[tuple[ClientId, int], int]:
        """Return, by client and m, in how many versions it may have been released 1 + m times."""
        return {
            (client, m): versions
            for client, m, versions in self._transaction.rows(_SUMS)
        }

    def computed_sums(self) -> dict[tuple[ClientId, int], int]:
        """Return what ``sums`` must be, from all charges."""
        found = self._releases_from(0).items()
        return dict(Counter((client, releases - 1) for (client, _), releases in found))

    def _releases_from(self, version: int) -> Counter[tuple[ClientId, int]]:
        """Count releases by client and version, of ``version`` and what follows it."""
        rows = self._transaction.rows(_FROM_VERSION_ON, of=version)
        return Counter((client, of) for client, of in rows)
