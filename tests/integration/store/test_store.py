"""A server's durable state: bound to its task, charged and released at once, never twice."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import IntegrityError

from precad.common.aggregator.round.journal import AttemptState
from precad.common.aggregator.store import Store, tables
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import (
    AlreadyReleased,
    Misconfiguration,
    PeerViolation,
    Rejection,
    StorageFailure,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.task import Task

MODEL, NEXT, VALID_SET = Digest(b"\1" * 32), Digest(b"\2" * 32), Digest(b"\3" * 32)
A, B, C = (ClientId(name) for name in ("ward-a", "ward-b", "ward-c"))
SHARE = bytes(range(64))
Opener = Callable[..., Store]
Release = Callable[..., None]


def noisy_shares(store: Store) -> list[bytes | None]:
    rounds = tables.attempts
    with store._transaction() as connection:
        return list(
            connection.execute(select(rounds.c.noisy_share).order_by(rounds.c.attempt)).scalars()
        )


# --- whose database it is ----------------------------------------------------------------------


def test_another_role_is_refused(durable_url: str, opener: Opener) -> None:
    opener(durable_url).close()
    with pytest.raises(Misconfiguration, match="server-b") as refused:
        opener(durable_url, role=Role.SERVER_B)
    assert refused.value.field == "state"


def test_another_task_is_refused(durable_url: str, opener: Opener, make_task: Any) -> None:
    opener(durable_url).close()
    other: Task = make_task(8, {"privacy.noise_multiplier": 2.5})
    with pytest.raises(Misconfiguration, match=str(other.digest)):
        opener(durable_url, task=other)
    # And its own task still opens it.
    opener(durable_url).close()


def test_two_databases_in_memory_are_two(opener: Opener, released: Release) -> None:
    one, other = opener("sqlite://"), opener("sqlite://", role=Role.SERVER_B)
    released(one)
    assert other.states() == {}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root:secret@host/precad", "mysql"),
        ("no url at all, secret", "SQLAlchemy URL"),
        ("sqlite:////nowhere/at/all/state.db", "can't be opened"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(url: str, says: str, opener: Opener) -> None:
    with pytest.raises(Misconfiguration, match=says) as refused:
        opener(url)
    assert "secret" not in str(refused.value)


# --- rounds ------------------------------------------------------------------------------------


def test_round_numbers_are_never_used_twice(store: Store, released: Release) -> None:
    assert store.next_attempt() == 0
    released(store, 4)
    assert store.next_attempt() == 5
    for number in (0, 4):
        with pytest.raises(PeerViolation, match="isn't above 4"):
            store.begin_attempt(number, 1, 3, MODEL)
    assert noisy_shares(store) == [SHARE]


def test_open_rounds_are_abandoned_and_others_stay(store: Store, released: Release) -> None:
    released(store, 0, version=0)
    store.finish_attempt(0, NEXT)
    released(store, 1, version=1)
    store.begin_attempt(2, 2, 3, NEXT)
    assert store.abandon_open() == 1
    assert store.states() == {
        0: AttemptState.DONE,
        1: AttemptState.RELEASED,
        2: AttemptState.ABANDONED,
    }
    with pytest.raises(AlreadyReleased):
        store.release(2, [A], VALID_SET, {}, SHARE)


def test_a_round_is_not_done_before_it_is_released(store: Store) -> None:
    store.begin_attempt(0, 0, 3, MODEL)
    store.finish_attempt(0, NEXT)
    assert store.states() == {0: AttemptState.OPEN}


# --- releases ----------------------------------------------------------------------------------


def test_a_release_charges_the_valid_and_counts_the_rejected(
    store: Store, released: Release
) -> None:
    released(store, 0, version=7)
    assert store.participations() == {A: 1, B: 1}
    assert store.rejections() == {Rejection.ABSENT: 1}
    record = store.release_of(7)
    assert record is not None
    assert (record.attempt, record.version, record.state) == (0, 7, AttemptState.RELEASED)
    assert (record.model, record.valid_set, record.valid) == (MODEL, VALID_SET, (A, B))
    assert record.rejections == {C: Rejection.ABSENT}
    assert (record.cohort_size, record.noisy_share) == (3, SHARE)
    assert store.release_of(6) is None


@pytest.mark.parametrize(
    ("valid", "share"), [([A, B], SHARE), ([A, B, C], SHARE), ([], bytes(64)), ([A], SHARE[::-1])]
)
def test_a_round_releases_once(
    store: Store, released: Release, valid: list[ClientId], share: bytes
) -> None:
    released(store)
    with pytest.raises(AlreadyReleased):
        store.release(0, valid, Digest(bytes(32)), {}, share)
    assert store.participations() == {A: 1, B: 1}
    assert noisy_shares(store) == [SHARE]
    record = store.release_of(0)
    assert record is not None
    assert record.valid_set == VALID_SET


def test_a_finished_round_does_not_release_again(store: Store, released: Release) -> None:
    released(store)
    store.finish_attempt(0, NEXT)
    with pytest.raises(AlreadyReleased):
        store.release(0, [A], VALID_SET, {}, SHARE)
    assert store.states() == {0: AttemptState.DONE}


@pytest.mark.parametrize("done", [False, True])
def test_a_model_gets_one_release_whatever_the_rounds_number(
    store: Store, released: Release, *, done: bool
) -> None:
    """A fresh noise on the same sum would average the noise away."""
    released(store, 0, version=5)
    if done:
        store.finish_attempt(0, NEXT)
    store.begin_attempt(1, 5, 3, MODEL)
    with pytest.raises(AlreadyReleased, match="model 5"):
        store.release(1, [A], VALID_SET, {}, SHARE[::-1])
    assert store.participations() == {A: 1, B: 1}
    # The database itself refuses too.
    with pytest.raises(IntegrityError), store._transaction() as connection:
        connection.execute(text("UPDATE attempt SET state = 'released' WHERE attempt = 1"))


@pytest.mark.parametrize(
    "orphan",
    [
        "INSERT INTO charge (attempt, client, record_rate, sequence) VALUES (0, 'ward-c', 0.1, 9)",
        "INSERT INTO rejection (attempt, client, reason) VALUES (9, 'ward-c', 'absent')",
        "UPDATE ledger SET attempt = 9",
        "DELETE FROM ledger",
        "DELETE FROM attempt",
    ],
)
def test_the_database_refuses_what_belongs_to_nothing(
    store: Store, released: Release, orphan: str
) -> None:
    released(store)
    with pytest.raises(IntegrityError), store._transaction() as connection:
        connection.execute(text(orphan))


def test_a_model_may_be_released_after_its_round_was_forfeited(
    store: Store, released: Release
) -> None:
    released(store, 0, version=5)
    store.forfeit(0, 5, 3, MODEL, [A, B])
    released(store, 1, version=5)
    record = store.release_of(5)
    assert record is not None
    assert record.attempt == 1
    assert store.participations() == {A: 2, B: 2}


def test_a_round_that_never_opened_does_not_release(store: Store) -> None:
    with pytest.raises(AlreadyReleased, match="never opened"):
        store.release(0, [A], VALID_SET, {}, SHARE)
    assert store.participations() == {}


@pytest.mark.parametrize(
    "broken",
    [
        {"valid": [A, B, A]},  # fails at the charge, after share and ledger entry are written
        {"rejections": {C: Rejection.ABSENT, A: None}},  # fails at the last statement
    ],
)
def test_a_failure_inside_a_release_leaves_nothing_of_it(
    store: Store, broken: dict[str, Any]
) -> None:
    """Share, charge and rejections are one transaction: no share without its charge."""
    store.begin_attempt(0, 0, 3, MODEL)
    given = {"valid": [A, B], "rejections": {C: Rejection.ABSENT}} | broken
    with pytest.raises((IntegrityError, AttributeError)):
        store.release(0, given["valid"], VALID_SET, given["rejections"], SHARE)
    assert noisy_shares(store) == [None]
    assert store.participations() == {}
    assert store.rejections() == {}
    assert store.states() == {0: AttemptState.OPEN}
    # And it can still be released, once.
    store.release(0, [A, B], VALID_SET, {C: Rejection.ABSENT}, SHARE)
    assert store.participations() == {A: 1, B: 1}


@pytest.mark.parametrize("broken_at", ["INSERT INTO ledger", "INSERT INTO charge", "UPDATE task"])
def test_a_charge_that_cannot_be_written_keeps_the_share_from_being_written(
    durable_url: str, opener: Opener, broken_at: str
) -> None:
    store = opener(durable_url)
    store.begin_attempt(0, 0, 3, MODEL)

    def fail(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith(broken_at):
            raise OSError("no")

    event.listen(store._engine, "before_cursor_execute", fail)
    with pytest.raises(OSError, match="no"):
        store.release(0, [A], VALID_SET, {}, SHARE)
    store.close()
    again = opener(durable_url)
    assert noisy_shares(again) == [None]
    assert again.states() == {0: AttemptState.OPEN}


def test_an_empty_round_releases_too(store: Store) -> None:
    store.begin_attempt(0, 0, 0, MODEL)
    store.release(0, [], VALID_SET, {}, SHARE)
    assert noisy_shares(store) == [SHARE]
    assert store.participations() == {}


def test_the_ledger_counts_every_release(store: Store) -> None:
    for number in range(5):
        store.begin_attempt(number, number, 3, MODEL)
        valid = [A] if number % 2 else [A, B]
        store.release(number, valid, VALID_SET, {C: Rejection.OUT_OF_RANGE}, SHARE)
    assert store.participations() == {A: 5, B: 3}
    assert store.rejections() == {Rejection.OUT_OF_RANGE: 5}
    assert store.rejected_clients() == {C: 5}


def test_absence_is_not_held_against_a_client(store: Store, released: Release) -> None:
    released(store)
    assert store.rejected_clients() == {}


@pytest.mark.parametrize("spoilt", [SHARE[:-1], SHARE[::-1], b""])
def test_a_share_that_changed_in_the_database_is_never_sent_again(
    store: Store, released: Release, spoilt: bytes
) -> None:
    released(store)
    with store._transaction() as connection:
        connection.execute(tables.attempts.update().values(noisy_share=spoilt))
    with pytest.raises(StorageFailure, match="attempt 0"):
        store.release_of(0)


# --- forfeits ----------------------------------------------------------------------------------


def test_a_forfeit_of_an_unknown_round_charges_it(store: Store) -> None:
    store.forfeit(9, 4, 3, MODEL, [A, C])
    assert store.states() == {9: AttemptState.FORFEITED}
    assert store.participations() == {A: 1, C: 1}
    assert store.next_attempt() == 10
    assert store.release_of(4) is None


def test_a_forfeit_charges_nobody_twice(store: Store, released: Release) -> None:
    released(store)
    store.forfeit(0, 0, 3, MODEL, [A, B, C])
    store.forfeit(0, 0, 3, MODEL, [A, B, C])
    assert store.participations() == {A: 1, B: 1, C: 1}
    assert store.states() == {0: AttemptState.FORFEITED}


@pytest.mark.parametrize("before", [AttemptState.OPEN, AttemptState.ABANDONED])
def test_a_round_that_only_the_other_released_is_charged_here(
    store: Store, before: AttemptState
) -> None:
    store.begin_attempt(0, 0, 3, MODEL)
    if before is AttemptState.ABANDONED:
        store.abandon_open()
    store.forfeit(0, 0, 3, MODEL, [A])
    assert store.participations() == {A: 1}
    with pytest.raises(AlreadyReleased):
        store.release(0, [A], VALID_SET, {}, SHARE)


def test_a_done_round_cannot_be_forfeited(store: Store, released: Release) -> None:
    released(store)
    store.finish_attempt(0, NEXT)
    with pytest.raises(AlreadyReleased, match="done"):
        store.forfeit(0, 0, 3, MODEL, [A, B, C])
    assert store.states() == {0: AttemptState.DONE}
    assert store.participations() == {A: 1, B: 1}


# --- correlated randomness ---------------------------------------------------------------------


def test_randomness_is_spent_once(store: Store) -> None:
    store.spend(0, 0)
    store.spend(0, 1)
    store.spend(1, 0)
    for number, batch in ((0, 0), (0, 1), (1, 0)):
        with pytest.raises(PeerViolation, match="spent before"):
            store.spend(number, batch)


def test_what_was_spent_stays_spent_after_a_restart(durable_url: str, opener: Opener) -> None:
    store = opener(durable_url)
    store.spend(7, 3)
    store.close()
    with pytest.raises(PeerViolation, match="spent before"):
        opener(durable_url).spend(7, 3)


# --- enrolment ---------------------------------------------------------------------------------


def test_a_client_claims_once(store: Store) -> None:
    store.claim(Enrolment(A, 100, 0.1))
    with pytest.raises(IntegrityError):
        store.claim(Enrolment(A, 200, 0.1))
    assert store.claims()[A].records == 100
    assert store.roster() is None


def test_the_roster_is_frozen(store: Store, roster: Roster) -> None:
    for enrolment in roster.values():
        store.claim(enrolment)
    smaller = Roster({A: roster[A], B: roster[B]})
    store.freeze(smaller)
    store.freeze(smaller)
    for other in (roster, Roster({A: roster[A]}), Roster({**smaller, A: Enrolment(A, 101, 0.2)})):
        with pytest.raises(PeerViolation, match="frozen"):
            store.freeze(other)
    kept = store.roster()
    assert kept is not None
    assert kept.digest() == smaller.digest()
    assert store.claims().digest() == roster.digest()


@pytest.mark.parametrize("claimed", [None, Enrolment(B, 100, 0.1000001)])
def test_only_claims_that_were_kept_here_are_frozen(
    store: Store, roster: Roster, claimed: Enrolment | None
) -> None:
    store.claim(roster[A])
    if claimed is not None:
        store.claim(claimed)
    with pytest.raises(PeerViolation, match="ward-b"):
        store.freeze(Roster({A: roster[A], B: roster[B]}))
    assert store.roster() is None


def test_rates_are_kept_to_the_last_bit(store: Store) -> None:
    rates = [0.1, 1 / 3, 5e-324, 0.30000000000000004]
    for number, rate in enumerate(rates):
        store.claim(Enrolment(ClientId(f"c{number}"), 1, rate))
    assert [e.record_rate for e in store.claims().values()] == rates


# --- restart -----------------------------------------------------------------------------------


def test_everything_survives_a_restart(
    durable_url: str,
    opener: Opener,
    enrolled: Callable[[Store], Store],
    released: Release,
    roster: Roster,
) -> None:
    def all_of(store: Store) -> tuple[object, ...]:
        kept = store.roster()
        return (
            None if kept is None else kept.digest(),
            store.states(),
            store.participations(),
            store.rejections(),
            noisy_shares(store),
            store.release_of(0),
            store.release_of(1),
        )

    store = enrolled(opener(durable_url))
    released(store, 0, version=0)
    store.finish_attempt(0, NEXT)
    released(store, 1, version=1, share=SHARE[::-1])
    store.begin_attempt(2, 2, 3, NEXT)
    before = all_of(store)
    store.close()
    again = opener(durable_url)
    assert all_of(again) == before
    assert before[0] == roster.digest()
    with pytest.raises(AlreadyReleased):
        again.release(1, [A], VALID_SET, {}, SHARE)
