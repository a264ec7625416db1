"""A server's durable state: bound to its task, charged and released at once, never twice."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import AlreadyReleased, Misconfiguration, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.store import RoundState, Store, open_store
from precad.common.task import Task

MODEL, NEXT, VALID_SET = Digest(b"\1" * 32), Digest(b"\2" * 32), Digest(b"\3" * 32)
A, B, C = (ClientId(name) for name in ("ward-a", "ward-b", "ward-c"))
SHARE = bytes(range(64))


@pytest.fixture(scope="module")
def task(make_task: Any) -> Task:
    made: Task = make_task()
    return made


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/a.db"


@pytest.fixture
def store(url: str, task: Task) -> Iterator[Store]:
    store = open_store(url, task, Role.SERVER_A)
    yield store
    store.close()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


def begin(store: Store, number: int = 0, version: int | None = None) -> None:
    """Open a round, from the model of its own number unless told otherwise."""
    store.begin_round(number, number if version is None else version, 3, MODEL)


def released(store: Store, number: int = 0, share: bytes = SHARE) -> None:
    begin(store, number)
    store.release(number, [A, B], VALID_SET, {C: Rejection.ABSENT}, share)


def roster(*names: ClientId) -> Roster:
    return Roster({name: Enrolment(name, 100, 0.1) for name in names})


# --- whose database it is ----------------------------------------------------------------------


def test_another_role_is_refused(file_url: str, task: Task) -> None:
    open_store(file_url, task, Role.SERVER_A).close()
    with pytest.raises(Misconfiguration, match="server-b") as refused:
        open_store(file_url, task, Role.SERVER_B)
    assert refused.value.field == "state"


def test_another_task_is_refused(file_url: str, task: Task, make_task: Any) -> None:
    open_store(file_url, task, Role.SERVER_A).close()
    other = make_task(8, {"privacy.noise_multiplier": 2.5})
    with pytest.raises(Misconfiguration, match=str(other.digest)):
        open_store(file_url, other, Role.SERVER_A)
    # And its own task still opens it.
    open_store(file_url, task, Role.SERVER_A).close()


def test_two_databases_in_memory_are_two(task: Task) -> None:
    one = open_store("sqlite://", task, Role.SERVER_A)
    other = open_store("sqlite://", task, Role.SERVER_B)
    released(one)
    assert other.states() == {}


def test_a_commit_survives_a_power_cut(file_url: str, task: Task) -> None:
    store = open_store(file_url, task, Role.SERVER_A)
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


# --- releases ----------------------------------------------------------------------------------


def test_a_release_charges_the_valid_and_counts_the_rejected(store: Store) -> None:
    released(store)
    assert store.participations() == {A: 1, B: 1}
    assert store.rejections() == {Rejection.ABSENT: 1}
    record = store.release_of(0)
    assert record is not None
    assert (record.number, record.state) == (0, RoundState.RELEASED)
    assert (record.valid, record.valid_set) == ((A, B), VALID_SET)
    assert record.rejections == {C: Rejection.ABSENT}
    assert record.noisy_share == SHARE
    assert SHARE.hex()[:16] not in repr(record)
    assert repr(SHARE)[2:20] not in repr(record)


def noisy_shares(store: Store) -> list[bytes | None]:
    with store._engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT noisy_share FROM training_round").all()
    return [row[0] for row in rows]


@pytest.mark.parametrize(
    ("valid", "share"), [([A, B], SHARE), ([A, B, C], SHARE), ([], bytes(64)), ([A], SHARE[::-1])]
)
def test_a_round_releases_once(store: Store, valid: list[ClientId], share: bytes) -> None:
    released(store)
    with pytest.raises(AlreadyReleased):
        store.release(0, valid, Digest(bytes(32)), {}, share)
    assert store.participations() == {A: 1, B: 1}
    assert noisy_shares(store) == [SHARE]
    record = store.release_of(0)
    assert record is not None
    assert record.valid_set == VALID_SET


def test_a_finished_round_does_not_release_again(store: Store) -> None:
    released(store)
    store.finish_round(0, NEXT)
    with pytest.raises(AlreadyReleased):
        store.release(0, [A], VALID_SET, {}, SHARE)
    assert store.states()[0] is RoundState.DONE


def test_a_round_that_never_opened_does_not_release(store: Store) -> None:
    with pytest.raises(AlreadyReleased, match="never opened"):
        store.release(0, [A], VALID_SET, {}, SHARE)
    assert store.participations() == {}


@pytest.mark.parametrize(
    "broken",
    [
        {"valid": [A, B, A]},  # fails at the charge, after the share is written
        {"rejections": {C: Rejection.ABSENT, A: None}},  # fails at the last statement
    ],
)
def test_a_failure_inside_a_release_leaves_nothing_of_it(
    store: Store, broken: dict[str, Any]
) -> None:
    """Share, charge and rejections are one transaction: no share without its charge."""
    begin(store)
    whole = {"valid": [A, B], "rejections": {C: Rejection.ABSENT}}
    given = whole | broken
    with pytest.raises((IntegrityError, AttributeError)):
        store.release(0, given["valid"], VALID_SET, given["rejections"], SHARE)
    assert noisy_shares(store) == [None]
    assert store.participations() == {}
    assert store.rejections() == {}
    assert store.states()[0] is RoundState.OPEN
    # And it can still be released, once.
    store.release(0, [A, B], VALID_SET, {C: Rejection.ABSENT}, SHARE)
    assert store.participations() == {A: 1, B: 1}


def test_a_charge_that_cannot_be_written_keeps_the_share_from_being_written(
    file_url: str, task: Task, tmp_path: Path
) -> None:
    store = open_store(file_url, task, Role.SERVER_A)
    begin(store)
    with sqlite3.connect(tmp_path / "state.db") as direct:
        direct.execute(
            "CREATE TRIGGER full BEFORE INSERT ON charge BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    with pytest.raises(IntegrityError, match="full"):
        store.release(0, [A], VALID_SET, {}, SHARE)
    store.close()
    again = open_store(file_url, task, Role.SERVER_A)
    assert noisy_shares(again) == [None]
    assert again.states()[0] is RoundState.OPEN


def test_an_empty_round_releases_too(store: Store) -> None:
    begin(store)
    store.release(0, [], VALID_SET, {}, SHARE)
    assert noisy_shares(store) == [SHARE]
    assert store.participations() == {}


@pytest.mark.parametrize("number", [0, 3, 4])
def test_round_numbers_only_rise(store: Store, number: int) -> None:
    released(store, 4)
    assert store.next_number() == 5
    with pytest.raises(PeerViolation, match="newest"):
        begin(store, number, version=9)
    assert store.states() == {4: RoundState.RELEASED}
    begin(store, 5)


def test_a_round_is_not_done_before_it_is_released(store: Store) -> None:
    begin(store)
    store.finish_round(0, NEXT)
    assert store.states() == {0: RoundState.OPEN}


def test_a_round_that_broke_off_never_releases(store: Store) -> None:
    released(store, 0)
    begin(store, 1)
    assert store.abandon_open() == 1
    with pytest.raises(AlreadyReleased):
        store.release(1, [A], VALID_SET, {}, SHARE)
    # What was released isn't touched.
    assert store.states() == {0: RoundState.RELEASED, 1: RoundState.ABANDONED}
    assert store.participations() == {A: 1, B: 1}


def test_a_forfeited_round_stays_charged(store: Store) -> None:
    released(store)
    store.forfeit(0, 0, 3, MODEL, [A, B, C])
    assert store.states() == {0: RoundState.FORFEITED}
    assert store.participations() == {A: 1, B: 1, C: 1}
    assert store.release_of(0) is None
    # Again, and it changes nothing.
    store.forfeit(0, 0, 3, MODEL, [A, B, C])
    assert store.participations() == {A: 1, B: 1, C: 1}
    with pytest.raises(AlreadyReleased):
        store.release(0, [A], VALID_SET, {}, SHARE)


def test_a_round_that_only_the_other_server_knew_is_charged_here_too(store: Store) -> None:
    store.forfeit(6, 2, 3, MODEL, [A, C])
    assert store.participations() == {A: 1, C: 1}
    assert store.next_number() == 7


def test_a_done_round_is_not_forfeited(store: Store) -> None:
    released(store)
    store.finish_round(0, NEXT)
    with pytest.raises(AlreadyReleased, match="done"):
        store.forfeit(0, 0, 3, MODEL, [A, B])
    assert store.states() == {0: RoundState.DONE}


def test_the_ledger_counts_every_release(store: Store) -> None:
    for number in range(5):
        begin(store, number)
        valid = [A] if number % 2 else [A, B]
        store.release(number, valid, VALID_SET, {C: Rejection.OUT_OF_RANGE}, SHARE)
    assert store.participations() == {A: 5, B: 3}
    assert store.rejections() == {Rejection.OUT_OF_RANGE: 5}


# --- correlated randomness ---------------------------------------------------------------------


def test_randomness_is_spent_once(store: Store) -> None:
    store.spend(0, 0)
    store.spend(0, 1)
    store.spend(1, 0)
    for number, batch in ((0, 0), (0, 1), (1, 0)):
        with pytest.raises(PeerViolation, match="spent before"):
            store.spend(number, batch)


def test_what_was_spent_stays_spent_after_a_restart(file_url: str, task: Task) -> None:
    store = open_store(file_url, task, Role.SERVER_A)
    store.spend(7, 3)
    store.close()
    with pytest.raises(PeerViolation, match="spent before"):
        open_store(file_url, task, Role.SERVER_A).spend(7, 3)


# --- the roster ---------------------------------------------------------------------------------


def claimed(store: Store, roster: Roster) -> None:
    for enrolment in roster.values():
        store.claim(enrolment)


def test_the_roster_is_frozen(store: Store) -> None:
    claimed(store, roster(A, B, C))
    assert store.roster() is None
    store.freeze(roster(A, B))
    store.freeze(roster(B, A))
    for other in (roster(A), roster(A, B, C), Roster({A: Enrolment(A, 101, 0.1)})):
        with pytest.raises(PeerViolation, match="frozen"):
            store.freeze(other)
    kept = store.roster()
    assert kept is not None
    assert kept.digest() == roster(A, B).digest()


def test_rates_are_kept_to_the_last_bit(store: Store) -> None:
    rates = [0.1, 1 / 3, 5e-324, 0.30000000000000004]
    names = [ClientId(f"c{i}") for i in range(len(rates))]
    given = Roster({n: Enrolment(n, 1, p) for n, p in zip(names, rates, strict=True)})
    claimed(store, given)
    assert store.claims().digest() == given.digest()
    store.freeze(given)
    kept = store.roster()
    assert kept is not None
    assert [e.record_rate for e in kept.values()] == rates


# --- restart -----------------------------------------------------------------------------------


def test_everything_survives_a_restart(file_url: str, task: Task) -> None:
    store = open_store(file_url, task, Role.SERVER_A)
    claimed(store, roster(A, B, C))
    store.freeze(roster(A, B, C))
    released(store, 0)
    store.finish_round(0, NEXT)
    released(store, 1, SHARE[::-1])
    begin(store, 2)

    def kept(store: Store) -> tuple[object, ...]:
        frozen = store.roster()
        return (
            store.states(),
            store.release_of(0),
            store.release_of(1),
            store.participations(),
            store.rejections(),
            store.next_number(),
            None if frozen is None else frozen.digest(),
        )

    before = kept(store)
    store.close()
    again = open_store(file_url, task, Role.SERVER_A)
    assert kept(again) == before
    assert list(again.states().values()) == [
        RoundState.DONE,
        RoundState.RELEASED,
        RoundState.OPEN,
    ]
    assert kept(again)[-1] == roster(A, B, C).digest()
    with pytest.raises(AlreadyReleased):
        again.release(1, [A], VALID_SET, {}, SHARE)
    again.close()
