"""What tests write into a server's store: three wards' claims, and attempts."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from tests.rig import aggregators, keys

from precad.aggregator.server_messages import Fact
from precad.aggregator.store import Store
from precad.aggregator.store.schema import AttemptState
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.signatures import SignedKind
from precad.common.roster import Enrolment, Roster

MODEL, NEXT, VALID_SET = Digest(b"\1" * 32), Digest(b"\2" * 32), Digest(b"\3" * 32)
WARDS = A, B, C = tuple(ClientId(f"ward-{letter}") for letter in "abc")
RATES = (0.2, 0.1, 1 / 30)  # The third is one that no decimal writes exactly
ROSTER = Roster(
    {w: Enrolment(w, 100, rate) for w, rate in zip(WARDS, RATES, strict=True)}
)
SHARE = bytes(range(64))
Opener = Callable[..., Store]
Row: TypeAlias = tuple[Any, ...]  # Of a table, as SQLite gives it


def charge(attempt: int, version: int, *clients: ClientId) -> Fact:
    names = tuple(client.name for client in clients)
    return Fact(version=version, attempt=attempt, voided=False, clients=names)


def voided(attempt: int, version: int) -> Fact:
    return Fact(version=version, attempt=attempt, voided=True)


def tamper(url: str, *statements: str) -> None:
    """As whoever may write to the database."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def rows(database: Path | str, query: str) -> list[Row]:
    """Of a server's database, which may be in use; none before its tables are there.

    A path is SQLite's, a text a URL.
    """
    if isinstance(database, str):
        engine = create_engine(database)
        try:
            with engine.connect() as connection:
                return [tuple(row) for row in connection.execute(text(query))]
        except DBAPIError:
            return []
        finally:
            engine.dispose()
    if not database.exists():
        return []
    with closing(
        sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60)
    ) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise


def charges(database: Path | str) -> dict[int, set[str]]:
    """Who is charged for each attempt that isn't voided."""
    found = defaultdict[int, set[str]](set)
    query = (
        "SELECT attempt, client FROM charge JOIN attempt USING (attempt) "
        "WHERE state != 'voided'"
    )
    for number, client in rows(database, query):
        found[number].add(client)
    return found


def enrolled(store: Store) -> Store:
    for enrolment in ROSTER.values():
        store.enrolment.claim(enrolment)
    store.enrolment.freeze(ROSTER)
    return store


def attempt_of(
    store: Store,
    number: int,
    version: int,
    valid: Sequence[ClientId],
    rejections: Mapping[ClientId, Rejection],
    cohort_size: int,
) -> None:
    """Prepared, with these who count and these who don't."""
    store.attempts.begin(
        attempt=number, version=version, cohort_size=cohort_size, model=MODEL
    )
    store.attempts.prepare(number, valid, VALID_SET, rejections, SHARE)


def prepared(
    store: Store,
    number: int = 0,
    version: int = 0,
    share: bytes | memoryview = SHARE,
) -> None:
    """Two wards are valid, the third is absent."""
    store.attempts.begin(attempt=number, version=version, cohort_size=3, model=MODEL)
    store.attempts.prepare(number, [A, B], VALID_SET, {C: Rejection.ABSENT}, share)


def bound(
    store: Store, number: int = 0, version: int = 0, *, sent: bool = True
) -> None:
    """Both have countersigned, and the share has left."""
    head = aggregators.head_of(
        store.task.digest, version, number, valid_set=VALID_SET.value
    )
    other = keys.signatures(store.task.digest, Role.SERVER_B)
    store.attempts.countersign(number, head, other.sign(SignedKind.HEAD, head))
    if sent:
        store.attempts.sent(number, other.sign(SignedKind.COUNTERSIGNATURE, head))


def sent(store: Store, number: int = 0, version: int = 0, share: bytes = SHARE) -> None:
    """From the beginning to the word on which the share leaves."""
    prepared(store, number, version, share)
    bound(store, number, version)


def lost(store: Store, number: int = 0, version: int = 0) -> None:
    sent(store, number, version)
    store.attempts.end(number, AttemptState.WRITTEN_OFF)


def released(store: Store, number: int = 0, version: int = 0) -> None:
    sent(store, number, version)
    store.attempts.finish(number, NEXT)


def play(store: Store) -> None:
    """All in one: done, empty, abandoned, lost, learned, voided, sent."""
    released(enrolled(store))
    store.attempts.begin(attempt=1, version=1, cohort_size=2, model=NEXT)
    reasons = {A: Rejection.ABSENT, B: Rejection.NORM_EXCEEDED}
    store.attempts.prepare(1, [], VALID_SET, reasons, bytes(64))
    store.attempts.finish(1, NEXT)
    store.attempts.begin(attempt=2, version=2, cohort_size=3, model=NEXT)
    store.attempts.abandon_open()
    lost(store, 3, 2)
    store.attempts.learn([charge(5, 2, C)])
    prepared(store, 6, 2)
    store.attempts.void(2, 6)
    sent(store, 7, 2)
