"""What is kept of each version, told to owners and compared; and by every database
alike."""

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from tests.conftest import small_task
from tests.rig import keys, stores
from tests.rig.documents import Document
from tests.rig.stores import (
    MODEL,
    NEXT,
    ROSTER,
    SHARE,
    WARDS,
    A,
    B,
    C,
    Opener,
    charge,
    prepared,
    voided,
)

from precad.aggregator.server_messages import CoinCommitment, SignedMessage
from precad.aggregator.store import Store
from precad.aggregator.store.schema import AttemptState, Permission
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.signatures import SignedKind
from precad.common.task import Task


def test_what_owners_ask_is_as_new_as_the_last_write(store: Store) -> None:
    """Looks are kept from one write to the next."""

    def asked() -> list[object]:
        account = store.statements.account_of(A, 1, 1)
        found = [
            store.ledger.charges_in(0).get(A, 0),
            store.versions.opened(0),
            account.opened,
        ]
        found += [*account.charged, store.attempts.next_number()]
        return [*found, store.statements.promised_version()]

    assert asked() == asked() == [0, 0, 0, 0, 0]
    prepared(store)
    assert asked() == asked() == [1, 0, 0, 1, 1, 0]
    store.versions.count_opened(0, 0)
    assert asked() == [1, 1, 1, 1, 1, 0]
    store.attempts.finish(0, NEXT)
    store.versions.confirm(1)
    store.attempts.hear(6)
    assert asked() == asked() == [1, 1, 1, 1, 7, 1]


def test_counts_of_two_threads_never_fall(store: Store) -> None:
    """Owners' openings and the dealer's word come on two threads, each after a look of
    its own."""

    def between(part: object, name: str, other: Callable[[], None]) -> None:
        look = getattr(part, name)

        def looked(*given: int) -> int:
            found: int = look(*given)
            setattr(part, name, look)
            other()
            return found

        setattr(part, name, looked)

    between(store.attempts, "next_number", lambda: store.attempts.hear(20))
    store.attempts.hear(12)
    assert store.attempts.next_number() == 21
    between(store.versions, "opened", lambda: store.versions.raise_opened(1, 5))
    store.versions.raise_opened(1, 3)
    assert (store.versions.opened(1), store.versions.all_opened()) == (5, 5)


def test_a_look_that_fails_inside_of_a_change_breaks_the_change(store: Store) -> None:
    """PostgreSQL takes it back then without a word, whoever swallows the failure."""
    transaction = store.attempts._transaction
    with pytest.raises(AssertionError, match="after a part of it has failed"):  # noqa: PT012, SIM117
        with transaction.write():
            store.attempts.hear(4)
            with suppress(DBAPIError):
                transaction.value(text("SELECT nothing FROM nowhere"))
    assert store.attempts.next_number() == 0


def test_two_ledgers_with_the_same_facts_have_one_history_and_two_heads(
    opener: Opener,
) -> None:
    a, b = opener("sqlite://"), opener("sqlite://", role=Role.SERVER_B)

    def histories(store: Store) -> list[Digest]:
        return [store.ledger.history(t) for t in range(4)]

    assert a.attempts.their_head() is None
    for store in (a, b):
        stores.released(store)
    # Of the other server the newest head is kept, as soon as it is bound to it.
    theirs = a.attempts.their_head()
    prepared(a, 1, 1)
    assert a.attempts.their_head() == theirs is not None
    # One has voided, one has learned it: another order, the same facts.
    a.attempts.void(1, 1)
    b.attempts.learn([charge(2, 1, A), voided(1, 1)])
    a.attempts.learn([charge(2, 1, A)])
    before = histories(a)
    assert (before, len(set(before))) == (histories(b), 4)
    assert a.ledger.head().head != b.ledger.head().head
    # What is learned changes the history after it alone.
    a.attempts.learn([charge(5, 2, C)])
    after = histories(a)
    assert (before[:3] == after[:3], before[3] == after[3]) == (True, False)
    prepared(a, 6, 3)
    stores.bound(a, 6, 3)
    assert a.attempts.their_head() not in (None, theirs)


def test_opened_attempts_are_counted_and_words_kept_by_version(store: Store) -> None:
    versions = store.versions
    counted = [versions.count_opened(*each) for each in ((3, 0), (3, 1), (4, 2))]
    # The other server has counted more, or fewer: the larger number stays.
    versions.raise_opened(3, 5)
    versions.raise_opened(3, 2)
    found = [versions.opened(version) for version in (2, 3, 4)]
    assert (counted, found, versions.all_opened()) == ([1, 2, 1], [0, 5, 1], 6)
    # A word reaches as far as it says.
    for until in (7, 9):
        assert versions.allowed(Permission.ATTEMPTS, 2) == (-1 if until == 7 else 7)
        versions.allow(Permission.ATTEMPTS, 2, until)
    asked = ((Permission.ATTEMPTS, 2), (Permission.ATTEMPTS, 3), (Permission.COIN, 2))
    assert [versions.allowed(*each) for each in asked] == [9, -1, -1]


def coins(task: Task) -> list[SignedMessage]:
    other = keys.signatures(task.digest, Role.SERVER_B)
    bodies = (
        CoinCommitment(task=bytes(32), version=2, digest=d * 32) for d in (b"\1", b"\2")
    )
    return [other.sign(SignedKind.COIN_COMMITMENT, body) for body in bodies]


def test_the_first_commitment_to_a_coin_stays_until_discarded(
    store: Store, task: Task
) -> None:
    (first, second), versions = coins(task), store.versions

    def kept() -> tuple[SignedMessage | int | None, ...]:
        openings = (versions.coin_opening(2, own=own) for own in (False, True))
        return versions.commitment(2), *openings, versions.redrawn_coins()

    for each in (first, second):
        versions.keep_commitment(2, each)
    versions.keep_opening(2, first, own=False)
    versions.keep_opening(2, second, own=True)
    assert (versions.commitment(1), kept()) == (None, (first, first, second, 0))
    versions.discard_coin(2)
    assert kept() == (None, None, None, 1)
    versions.keep_commitment(2, second)
    assert versions.commitment(2) == second


def live(store: Store, task: Task) -> Store:
    attempts, versions, (first, second) = store.attempts, store.versions, coins(task)
    stores.play(store)
    attempts.end(7, AttemptState.LEARNED)
    attempts.learn([voided(8, 2)])
    versions.confirm(1)
    attempts.drop_shares(versions.confirmed())
    attempts.charge_unknown(charge(9, 0, A))
    attempts.hear(10)
    for number in (1, 2, 3):
        versions.count_opened(1, number)
    versions.raise_opened(1, 9)
    versions.allow(Permission.ATTEMPTS, 1, 9)
    versions.allow(Permission.COIN, 2, 4)
    for version, commitment in ((1, first), (2, first), (2, second)):
        versions.keep_commitment(version, commitment)
        versions.keep_opening(version, commitment, own=False)
    versions.discard_coin(1)
    versions.keep_model_seal(1, first)
    for batch in ((3, 0), (3, 1), (4, 0)):
        attempts.spend(*batch)
    stores.sent(store, 12, 2, SHARE[::-1])
    return store


def answers(store: Store) -> tuple[Document, Document]:
    """All that it can be asked; apart, what depends on random salts or is signed
    anew."""
    versions, attempts, ledger, kept = (
        range(4),
        store.attempts,
        store.ledger,
        store.versions,
    )
    roster, account_of = store.enrolment.roster(), store.statements.account_of
    alike = {
        "enrolment": (store.enrolment.claims().digest(), roster and roster.digest()),
        "attempts": (attempts.states(), attempts.by_state(), attempts.next_number()),
        "unused": (attempts.unused_here(), [attempts.count_of(t) for t in versions]),
        "pending": attempts.pending(),
        "cost": (ledger.participations(), ledger.re_releases()),
        "charges": [(dict(ledger.charges_in(t)), ledger.facts(t)) for t in versions],
        "owners": [
            (ledger.charges_in(1).get(c, 0), account_of(c, 3, 3)) for c in (A, B, C)
        ],
        "rejected": (attempts.rejections(), attempts.rejected_clients()),
        "history": [ledger.history(t) for t in versions],
        "length": ledger.head().length,
        "uncharged": ledger.uncharged_versions(3),
        "opened": [kept.opened(t) for t in versions],
        "redrawn": (kept.redrawn_coins(), [kept.was_redrawn(t) for t in versions]),
        "allowed": [kept.allowed(word, t) for word in Permission for t in versions],
        "said": (kept.confirmed(), store.statements.promised_version()),
    }
    return alike, {
        "coin": [
            (kept.commitment(t), kept.coin_opening(t, own=False)) for t in versions
        ],
        "model": kept.model_seal(1),
        "heads": (ledger.head(), attempts.their_head()),
    }


def test_every_database_answers_alike(
    durable_url: str, opener: Opener, task: Task
) -> None:
    """So what the other tests show of one in memory holds for each."""
    expected, _ = answers(live(opener("sqlite://"), task))
    store = live(opener(durable_url), task)
    found = answers(store)
    assert expected["enrolment"] == (ROSTER.digest(), ROSTER.digest())
    assert (found[0], None in found[1]["heads"]) == (expected, False)
    # And randomness is spent once and for all.
    for _ in range(2):
        for spent in ((3, 0), (3, 1), (4, 0)):
            with pytest.raises(PeerViolation, match="spent before"):
                store.attempts.spend(*spent)
        store.close()
        store = opener(durable_url)
        assert answers(store) == found


def test_a_database_without_an_encoding_of_its_own_serves(
    postgres: str, opener: Opener
) -> None:
    """One made without a locale is SQL_ASCII, whose text the driver would give back as
    bytes."""
    made = "CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
    engine = create_engine(
        postgres,
        isolation_level="AUTOCOMMIT",
        connect_args={"client_encoding": "utf8"},
    )
    with engine.connect() as connection:
        connection.exec_driver_sql(made)
    engine.dispose()
    url = make_url(postgres).set(database="plain").render_as_string(hide_password=False)
    store = opener(url)
    store.attempts.begin(attempt=0, version=0, cohort_size=1, model=MODEL)
    store.close()
    assert opener(url).attempts.next_number() == 1


def test_a_round_takes_as_many_steps_of_the_database_after_many_rounds(
    store: Store,
) -> None:
    """Sums and indexes: no earlier round's charges are looked through."""

    def steps_of(version: int) -> int:
        with store.transaction.read() as connection:
            driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        steps = count()
        # True would interrupt it.
        driver.set_progress_handler(lambda: next(steps) < 0, 1)
        prepared(store, version, version)
        assert (store.ledger.participations()[A], store.ledger.re_releases()) == (
            version + 1,
            {},
        )
        assert store.ledger.charges_in(version) == {A: 1, B: 1}
        store.ledger.history(version)
        store.attempts.finish(version, NEXT)
        store.versions.confirm(version + 1)
        store.attempts.drop_shares(version + 1)
        assert store.statements.account_of(A, version + 1, version + 1).charged == (
            version + 1,
        )
        assert store.attempts.next_number() == version + 1
        assert set(store.attempts.states(version)) == {version}
        assert len(store.ledger.submissions(version=version)) == 3
        driver.set_progress_handler(None, 0)
        return next(steps)

    steps = [steps_of(version) for version in range(120)]
    assert sum(steps[-10:]) < 1.1 * sum(steps[10:20])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("rate", "covered"), [(1.0, False), (0.4, False), (0.4, True)])
def test_asleep_is_who_was_absent_in_the_last_two_versions_that_it_was_asked_in(
    durable_url: str, opener: Opener, seed: int, rate: float, *, covered: bool
) -> None:
    """Against a plain count over histories by chance; the same after a restart."""
    random = Random(f"{seed} {rate} {covered}")
    mechanism = small_task(
        8, {"privacy.client_rate": rate, "privacy.cover_uploads": covered}
    ).mechanism
    store = stores.enrolled(opener(durable_url))
    missed: Counter[ClientId] = Counter()
    attempt = 0
    for version in range(14):
        asleep = {client for client in WARDS if missed[client] >= 2}
        assert store.versions.asleep(version, mechanism) == asleep
        drawn = [client for client in WARDS if random.random() < rate]
        asked = WARDS if covered else tuple(drawn)
        absent = {c: Rejection.ABSENT for c in asked if random.random() < 0.6}
        wrong = [c for c in asked if c not in absent and random.random() < 0.2]
        valid = [c for c in drawn if c not in absent and c not in wrong]
        reasons = absent | dict.fromkeys(wrong, Rejection.NORM_EXCEEDED)
        if random.random() < 0.2:
            # It is played again: a voided attempt is nobody's miss.
            stores.attempt_of(store, attempt, version, valid, reasons, len(asked))
            store.attempts.void(version, attempt)
            attempt += 1
        if not valid and covered:
            # One version that nobody counted in says nothing of the two in a row.
            valid = [WARDS[0]]
            reasons.pop(WARDS[0], None)
        stores.attempt_of(store, attempt, version, valid, reasons, len(asked))
        stores.bound(store, attempt, version)
        store.attempts.finish(attempt, NEXT)
        attempt += 1
        if valid:
            for client in asked:
                gone = reasons.get(client) is Rejection.ABSENT
                missed[client] = missed[client] + 1 if gone else 0
        elif rate == 1:
            # Nobody came: the next two versions are looked at anew.
            missed.clear()
    store.close()
    again = opener(durable_url)
    asleep = {client for client in WARDS if missed[client] >= 2}
    assert again.versions.asleep(14, mechanism) == asleep
