"""A server's durable state: bound to its task, charged and released at once, never twice."""

import gc
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import create_engine, event, make_url, select, text
from sqlalchemy.exc import IntegrityError
from tests.rig.keys import seals

from precad.common.aggregator.round.journal import AttemptState, Word
from precad.common.aggregator.round.messages import CoinCommitment, Fact, VoidBody
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
from precad.common.identity.seal import Kind
from precad.common.task import Task

MODEL, NEXT, VALID_SET = Digest(b"\1" * 32), Digest(b"\2" * 32), Digest(b"\3" * 32)
A, B, C = (ClientId(name) for name in ("ward-a", "ward-b", "ward-c"))
SHARE = bytes(range(64))
VOID = VoidBody(task="00" * 32, version=0, attempt=0)
Opener = Callable[..., Store]
Prepare = Callable[..., None]
Bind = Callable[..., None]


def noisy_shares(store: Store) -> list[bytes | None]:
    rounds, kept = tables.attempts, tables.noisy_share
    with store._transaction() as connection:
        return list(
            connection.execute(
                select(kept.c.share).select_from(rounds.outerjoin(kept)).order_by(rounds.c.attempt)
            ).scalars()
        )


def test_no_statement_keeps_a_noisy_share(store: Store, prepared: Prepare) -> None:
    """A vector of a large model: neither SQLAlchemy's cache nor the driver's holds on to it."""
    share = np.arange(8, dtype=np.int64)
    seen = weakref.ref(share)
    prepared(store, share=share.data.cast("B"))
    assert noisy_shares(store) == [share.tobytes()]
    del share
    gc.collect()
    assert seen() is None


def test_what_owners_ask_is_as_new_as_the_last_write(store: Store, prepared: Prepare) -> None:
    """Looks are kept from one write to the next."""

    def asked() -> tuple[object, ...]:
        account = store.account_of(A, 1)
        return (
            (store.charges_of(A, 0), store.charges_of(C, 0)),
            (store.opened(0), account.opened, account.charged),
            (store.next_attempt(), store.promised_version()),
        )

    assert asked() == asked() == ((0, 0), (0, 0, ()), (0, 0))
    prepared(store)
    assert asked() == asked() == ((1, 0), (0, 0, (1,)), (1, 0))
    store.count_opened(0, 0)
    assert asked() == ((1, 0), (1, 1, (1,)), (1, 0))
    store.finish_attempt(0, NEXT)
    store.confirm(1)
    store.hear(6)
    assert asked() == asked() == ((1, 0), (1, 1, (1,)), (7, 1))


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


def test_two_databases_in_memory_are_two(opener: Opener, prepared: Prepare) -> None:
    one, other = opener("sqlite://"), opener("sqlite://", role=Role.SERVER_B)
    prepared(one)
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


def test_round_numbers_are_never_used_twice(store: Store, prepared: Prepare) -> None:
    assert store.next_attempt() == 0
    prepared(store, 4)
    assert store.next_attempt() == 5
    for number in (0, 4):
        with pytest.raises(PeerViolation, match="isn't above 4"):
            store.begin_attempt(number, 1, 3, MODEL)
    assert noisy_shares(store) == [SHARE]


def test_open_attempts_are_abandoned_and_others_stay(store: Store, prepared: Prepare) -> None:
    prepared(store, 0, version=0)
    store.finish_attempt(0, NEXT)
    prepared(store, 1, version=1)
    store.begin_attempt(2, 2, 3, NEXT)
    assert store.abandon_open() == 1
    assert store.states() == {
        0: AttemptState.DONE,
        1: AttemptState.PREPARED,
        2: AttemptState.ABANDONED,
    }
    with pytest.raises(AlreadyReleased):
        store.prepare(2, [A], VALID_SET, {}, SHARE)


def test_an_attempt_is_not_done_before_it_is_prepared(store: Store) -> None:
    store.begin_attempt(0, 0, 3, MODEL)
    store.finish_attempt(0, NEXT)
    assert store.states() == {0: AttemptState.OPEN}


# --- prepare -----------------------------------------------------------------------------------


def test_preparing_charges_the_valid_and_counts_the_rejected(
    store: Store, prepared: Prepare
) -> None:
    assert store.pending() is None
    prepared(store, 0, version=7)
    assert store.participations() == {A: 1, B: 1}
    assert store.rejections() == {Rejection.ABSENT: 1}
    record = store.pending()
    assert record is not None
    assert (record.attempt, record.version, record.state) == (0, 7, AttemptState.PREPARED)
    assert (record.model, record.valid_set, record.valid) == (MODEL, VALID_SET, (A, B))
    assert record.rejections == {C: Rejection.ABSENT}
    assert (record.cohort_size, record.noisy_share) == (3, SHARE)


@pytest.mark.parametrize(
    ("valid", "share"), [([A, B], SHARE), ([A, B, C], SHARE), ([], bytes(64)), ([A], SHARE[::-1])]
)
def test_an_attempt_is_prepared_once(
    store: Store, prepared: Prepare, valid: list[ClientId], share: bytes
) -> None:
    prepared(store)
    with pytest.raises(AlreadyReleased):
        store.prepare(0, valid, Digest(bytes(32)), {}, share)
    assert store.participations() == {A: 1, B: 1}
    assert noisy_shares(store) == [SHARE]
    record = store.pending()
    assert record is not None
    assert record.valid_set == VALID_SET


def test_what_is_done_is_not_prepared_again(store: Store, prepared: Prepare) -> None:
    prepared(store)
    store.finish_attempt(0, NEXT)
    with pytest.raises(AlreadyReleased):
        store.prepare(0, [A], VALID_SET, {}, SHARE)
    assert store.states() == {0: AttemptState.DONE}


@pytest.mark.parametrize("earlier", ["prepared", "countersigned", "sent", "done"])
def test_a_model_gets_one_release_whatever_the_attempts_number(
    store: Store, prepared: Prepare, bind: Bind, earlier: str
) -> None:
    """A fresh noise on the same sum would average the noise away."""
    prepared(store, 0, version=5)
    if earlier != "prepared":
        bind(store, 0, 5, sent=earlier != "countersigned")
    if earlier == "done":
        store.finish_attempt(0, NEXT)
    assert store.states() == {0: AttemptState(earlier)}
    store.begin_attempt(1, 5, 3, MODEL)
    with pytest.raises(AlreadyReleased, match="version 5 has its release already, of attempt 0"):
        store.prepare(1, [A], VALID_SET, {}, SHARE[::-1])
    assert store.participations() == {A: 1, B: 1}
    # The database itself refuses too.
    with pytest.raises(IntegrityError), store._transaction() as connection:
        connection.execute(text("UPDATE attempt SET state = 'prepared' WHERE attempt = 1"))


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
    store: Store, prepared: Prepare, orphan: str
) -> None:
    prepared(store)
    with pytest.raises(IntegrityError), store._transaction() as connection:
        connection.execute(text(orphan))


def test_an_attempt_that_never_opened_is_not_prepared(store: Store) -> None:
    with pytest.raises(AlreadyReleased, match="never opened"):
        store.prepare(0, [A], VALID_SET, {}, SHARE)
    assert store.participations() == {}


@pytest.mark.parametrize(
    "broken",
    [
        {"valid": [A, B, A]},  # fails at the charge, after share and ledger entry are written
        {"rejections": {C: Rejection.ABSENT, A: None}},  # fails at the last statement
    ],
)
def test_a_failure_inside_prepare_leaves_nothing_of_it(
    store: Store, broken: dict[str, Any]
) -> None:
    """Share, charge and rejections are one transaction: no share without its charge."""
    store.begin_attempt(0, 0, 3, MODEL)
    given = {"valid": [A, B], "rejections": {C: Rejection.ABSENT}} | broken
    with pytest.raises((IntegrityError, AttributeError)):
        store.prepare(0, given["valid"], VALID_SET, given["rejections"], SHARE)
    assert noisy_shares(store) == [None]
    assert store.participations() == {}
    assert store.rejections() == {}
    assert store.states() == {0: AttemptState.OPEN}
    # And it can still be prepared, once.
    store.prepare(0, [A, B], VALID_SET, {C: Rejection.ABSENT}, SHARE)
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
        store.prepare(0, [A], VALID_SET, {}, SHARE)
    store.close()
    again = opener(durable_url)
    assert noisy_shares(again) == [None]
    assert again.states() == {0: AttemptState.OPEN}


def kept(store: Store) -> dict[int, bool]:
    return {number: share is not None for number, share in enumerate(noisy_shares(store))}


def confirm(store: Store, version: int) -> None:
    """And then, while others upload."""
    store.confirm(version)
    store.drop_shares()


def test_noisy_shares_go_once_both_servers_hold_the_model(
    store: Store, prepared: Prepare, bind: Bind
) -> None:
    prepared(store, 0, version=0)
    store.finish_attempt(0, NEXT)
    assert kept(store) == {0: True}
    prepared(store, 1, version=1)
    bind(store, 1, version=1)
    confirm(store, 1)
    # The other server may still ask for the one that is pending, and is sent these bytes.
    assert kept(store) == {0: False, 1: True}
    confirm(store, 2)
    assert kept(store) == {0: False, 1: True}
    record = store.pending()
    assert record is not None
    assert record.noisy_share == SHARE
    store.finish_attempt(1, NEXT)
    confirm(store, 2)
    assert kept(store) == {0: False, 1: False}
    # What was charged for stays charged, and is still sound.
    assert store.participations() == {A: 2, B: 2}


@pytest.mark.parametrize("end", ["void", "write-off", "learn"])
def test_a_noisy_share_of_an_attempt_that_came_to_nothing_goes_with_its_version(
    store: Store, prepared: Prepare, bind: Bind, end: str
) -> None:
    prepared(store, 0, version=0)
    if end == "void":
        store.void(0, 0)
    elif end == "write-off":
        bind(store, 0, version=0)
        store.write_off(0)
    else:
        store.settle(0)
    prepared(store, 1, version=0)
    store.finish_attempt(1, NEXT)
    assert kept(store) == {0: True, 1: True}
    confirm(store, 1)
    assert kept(store) == {0: False, 1: False}


def test_of_many_noisy_shares_a_few_go_with_each_version(store: Store, prepared: Prepare) -> None:
    """As a version before left them: no round waits for all."""
    for number in range(20):
        prepared(store, number, version=number)
        store.finish_attempt(number, NEXT)
    left = []
    for version in (20, 20, 20):
        confirm(store, version)
        left.append(sum(kept(store).values()))
    assert left == [12, 4, 0]


def test_the_disk_of_a_long_training_does_not_grow_by_a_share_a_round(
    tmp_path: Path, opener: Opener, prepared: Prepare
) -> None:
    store, share = opener(f"sqlite:///{tmp_path}/state.db"), bytes(1 << 18)
    for number in range(40):
        prepared(store, number, version=number, share=share)
        store.finish_attempt(number, NEXT)
        confirm(store, number + 1)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20 * len(share)


def test_an_empty_attempt_is_prepared_too(store: Store) -> None:
    store.begin_attempt(0, 0, 0, MODEL)
    store.prepare(0, [], VALID_SET, {}, SHARE)
    assert noisy_shares(store) == [SHARE]
    assert store.participations() == {}


def test_the_ledger_counts_every_version(store: Store) -> None:
    for number in range(5):
        store.begin_attempt(number, number, 3, MODEL)
        valid = [A] if number % 2 else [A, B]
        store.prepare(number, valid, VALID_SET, {C: Rejection.NORM_EXCEEDED}, SHARE)
        store.finish_attempt(number, NEXT)
    assert store.participations() == {A: 5, B: 3}
    assert store.rejections() == {Rejection.NORM_EXCEEDED: 5}
    assert store.rejected_clients() == {C: 5}


def test_absence_is_not_held_against_a_client(store: Store, prepared: Prepare) -> None:
    prepared(store)
    assert store.rejected_clients() == {}


@pytest.mark.parametrize("spoilt", [SHARE[:-1], SHARE[::-1], b""])
def test_a_share_that_changed_in_the_database_is_never_sent_again(
    store: Store, prepared: Prepare, spoilt: bytes
) -> None:
    prepared(store)
    with store._transaction() as connection:
        connection.execute(tables.noisy_share.update().values(share=spoilt))
    with pytest.raises(StorageFailure, match="attempt 0"):
        store.pending()


# --- countersign, send -------------------------------------------------------------------------


def test_an_attempt_goes_one_way(store: Store, prepared: Prepare, bind: Bind) -> None:
    """Each step needs the one before: nothing leaves that isn't durable."""
    with pytest.raises(AlreadyReleased, match="isn't prepared here"):
        bind(store)
    store.begin_attempt(0, 0, 3, MODEL)
    with pytest.raises(AlreadyReleased, match="isn't prepared here"):
        bind(store)
    prepared(store, 1)
    head = store.head()
    bind(store, 1, sent=False)
    assert store.states()[1] is AttemptState.COUNTERSIGNED
    bind(store, 1)
    assert store.states()[1] is AttemptState.SENT
    # Asked again after a break, both words are given again, and nothing is charged anew.
    bind(store, 1)
    assert store.states()[1] is AttemptState.SENT
    assert store.head() == head
    record = store.pending()
    assert record is not None
    assert record.noisy_share == SHARE
    store.finish_attempt(1, NEXT)
    assert store.pending() is None
    with pytest.raises(AlreadyReleased):
        bind(store, 1)


def test_nothing_is_sent_that_was_not_countersigned(
    store: Store, prepared: Prepare, task: Task
) -> None:
    prepared(store)
    word = seals(task.digest, Role.SERVER_B).write(Kind.COUNTERSIGNATURE, VOID)
    with pytest.raises(AlreadyReleased, match="isn't countersigned"):
        store.sent(0, word)
    assert store.states() == {0: AttemptState.PREPARED}


def test_the_witness_is_the_newest_head_of_the_other_server(
    store: Store, prepared: Prepare, bind: Bind
) -> None:
    assert store.witness() is None
    prepared(store, 0)
    bind(store, 0)
    first = store.witness()
    assert first is not None
    store.finish_attempt(0, NEXT)
    prepared(store, 1, version=1)
    assert store.witness() == first
    bind(store, 1, 1)
    assert store.witness() not in (None, first)


# --- void --------------------------------------------------------------------------------------


def test_a_voided_attempt_costs_nothing_and_stands_in_the_ledger(
    store: Store, prepared: Prepare
) -> None:
    prepared(store)
    before = store.head().length
    store.void(0, 0)
    assert store.states() == {0: AttemptState.VOIDED}
    assert store.participations() == {}
    assert store.charges_of(A, 0) == 0
    assert store.pending() is None
    assert store.facts(0) == (Fact(version=0, attempt=0, voided=True),)
    assert store.head().length == before + 1
    # Again after a break: the same, and no second entry.
    store.void(0, 0)
    assert store.head().length == before + 1
    # The version is free for another attempt.
    prepared(store, 1)
    assert store.participations() == {A: 1, B: 1}


@pytest.mark.parametrize("sent", [False, True])
def test_a_server_that_has_countersigned_never_voids(
    store: Store, prepared: Prepare, bind: Bind, *, sent: bool
) -> None:
    """The other may have sent its share on that word."""
    prepared(store)
    bind(store, sent=sent)
    with pytest.raises(AlreadyReleased, match="never voided"):
        store.void(0, 0)
    store.finish_attempt(0, NEXT)
    with pytest.raises(AlreadyReleased, match="never voided"):
        store.void(0, 0)
    assert store.participations() == {A: 1, B: 1}


@pytest.mark.parametrize("before", ["unknown", "open", "abandoned"])
def test_what_was_voided_here_is_never_prepared_here(store: Store, before: str) -> None:
    """The other was prepared alone: it voids only on this server's durable word."""
    if before != "unknown":
        store.begin_attempt(0, 0, 3, MODEL)
    if before == "abandoned":
        store.abandon_open()
    store.void(0, 0)
    assert store.states() == {0: AttemptState.VOIDED}
    assert store.next_attempt() == 1
    with pytest.raises(AlreadyReleased):
        store.prepare(0, [A], VALID_SET, {}, SHARE)
    with pytest.raises(PeerViolation, match="isn't above"):
        store.begin_attempt(0, 0, 3, MODEL)


def test_an_attempt_of_another_version_is_not_voided(store: Store, prepared: Prepare) -> None:
    prepared(store, 0, version=1)
    with pytest.raises(AlreadyReleased):
        store.void(0, 0)
    assert store.participations() == {A: 1, B: 1}


# --- write off ---------------------------------------------------------------------------------


def test_what_is_written_off_stays_charged_and_is_never_used(
    store: Store, prepared: Prepare, bind: Bind
) -> None:
    prepared(store)
    bind(store)
    store.write_off(0)
    assert store.states() == {0: AttemptState.WRITTEN_OFF}
    assert store.participations() == {A: 1, B: 1}
    assert store.pending() is None
    length = store.head().length
    store.write_off(0)
    assert store.head().length == length
    store.finish_attempt(0, NEXT)
    assert store.states() == {0: AttemptState.WRITTEN_OFF}
    with pytest.raises(AlreadyReleased):
        bind(store)


def test_a_version_that_is_released_again_is_one_participation_and_an_upgrade(
    store: Store, prepared: Prepare, bind: Bind
) -> None:
    for number in range(3):
        prepared(store, number, version=4)
        bind(store, number, 4)
        store.write_off(number)
    store.begin_attempt(3, 4, 3, MODEL)
    store.prepare(3, [B, C], VALID_SET, {A: Rejection.ABSENT}, SHARE)
    assert store.participations() == {A: 1, B: 1, C: 1}
    assert store.upgrades() == {A: {2: 1}, B: {3: 1}}
    assert [store.charges_of(ward, 4) for ward in (A, B, C)] == [3, 4, 1]
    assert store.charges_in(4) == {A: 3, B: 4, C: 1}
    assert store.charges_in(3) == {}
    assert [store.charges_of(ward, 3) for ward in (A, B, C)] == [0, 0, 0]
    account = store.account_of(B, 5)
    assert (account.charged, account.counted) == ((0, 0, 0, 1), True)
    assert store.account_of(B, 4).charged == ()


# --- learn -------------------------------------------------------------------------------------


def charge(attempt: int, version: int, *clients: ClientId) -> Fact:
    names = tuple(client.name for client in clients)
    return Fact(version=version, attempt=attempt, voided=False, clients=names)


def voided(attempt: int, version: int) -> Fact:
    return Fact(version=version, attempt=attempt, voided=True)


def test_a_charge_that_was_forgotten_is_learned_once(store: Store) -> None:
    assert store.learn([charge(9, 4, A, C)]) == 1
    assert store.states() == {9: AttemptState.LEARNED}
    assert store.participations() == {A: 1, C: 1}
    assert store.next_attempt() == 10
    assert store.pending() is None
    assert store.facts(4) == (charge(9, 4, A, C),)
    length = store.head().length
    assert store.learn([charge(9, 4, A, C)]) == 0
    assert store.head().length == length


@pytest.mark.parametrize("before", ["open", "abandoned", "voided"])
def test_an_attempt_that_seemed_to_cost_nothing_is_charged_when_it_is_learned(
    store: Store, prepared: Prepare, before: str
) -> None:
    if before == "voided":
        prepared(store)
        store.void(0, 0)
    else:
        store.begin_attempt(0, 0, 3, MODEL)
    if before == "abandoned":
        store.abandon_open()
    assert store.learn([charge(0, 0, A, B)]) == 1
    assert store.states() == {0: AttemptState.LEARNED}
    assert store.participations() == {A: 1, B: 1}
    with pytest.raises(AlreadyReleased):
        store.prepare(0, [A], VALID_SET, {}, SHARE)


@pytest.mark.parametrize("state", ["prepared", "countersigned", "sent", "done", "written-off"])
def test_what_the_ledger_holds_is_not_learned_again(
    store: Store, prepared: Prepare, bind: Bind, state: str
) -> None:
    prepared(store)
    if state != "prepared":
        bind(store, sent=state != "countersigned")
    if state == "done":
        store.finish_attempt(0, NEXT)
    elif state == "written-off":
        store.write_off(0)
    before = store.head()
    assert store.learn([charge(0, 0, A, B)]) == 0
    assert store.states() == {0: AttemptState(state)}
    assert store.head() == before
    # Somebody whom this ledger lacks is charged beside the others.
    assert store.learn([charge(0, 0, A, B, C)]) == 1
    assert store.participations() == {A: 1, B: 1, C: 1}


@pytest.mark.parametrize("before", ["unknown", "open", "prepared"])
def test_a_forgotten_void_is_learned_like_a_charge(
    store: Store, prepared: Prepare, before: str
) -> None:
    if before == "open":
        store.begin_attempt(0, 0, 3, MODEL)
    elif before == "prepared":
        prepared(store)
    assert store.learn([voided(0, 0)]) == 1
    assert store.states() == {0: AttemptState.VOIDED}
    assert store.participations() == {}
    assert store.facts(0) == (voided(0, 0),)
    assert store.learn([voided(0, 0)]) == 0


@pytest.mark.parametrize("state", ["countersigned", "sent", "done", "learned"])
def test_no_charge_is_unlearned(store: Store, prepared: Prepare, bind: Bind, state: str) -> None:
    if state == "learned":
        store.learn([charge(0, 0, A, B)])
    else:
        prepared(store)
        bind(store, sent=state != "countersigned")
    if state == "done":
        store.finish_attempt(0, NEXT)
    store.learn([voided(0, 0)])
    assert store.states() == {0: AttemptState(state)}
    assert store.participations() == {A: 1, B: 1}


def test_an_attempt_that_stands_for_another_version_is_not_learned(
    store: Store, prepared: Prepare
) -> None:
    prepared(store, 0, version=1)
    with pytest.raises(StorageFailure, match="attempt 0 stands here for another version"):
        store.learn([charge(1, 1, A), charge(0, 2, A)])
    # All of it or nothing.
    assert store.states() == {0: AttemptState.PREPARED}


# --- what both ledgers hold alike --------------------------------------------------------------


def test_two_ledgers_with_the_same_facts_have_one_history_and_two_heads(
    opener: Opener, prepared: Prepare, bind: Bind
) -> None:
    a, b = opener("sqlite://"), opener("sqlite://", role=Role.SERVER_B)
    for store in (a, b):
        prepared(store, 0)
        bind(store, 0)
        store.finish_attempt(0, NEXT)
    # One has voided, one has learned it: another order, the same facts.
    prepared(a, 1, version=1)
    a.void(1, 1)
    b.learn([charge(2, 1, A), voided(1, 1)])
    a.learn([charge(2, 1, A)])
    assert [a.history(t) for t in range(4)] == [b.history(t) for t in range(4)]
    assert len({a.history(t) for t in range(4)}) == 4
    assert a.head().head != b.head().head


def test_what_is_learned_changes_the_history_after_it_alone(
    store: Store, prepared: Prepare
) -> None:
    prepared(store, 0)
    store.finish_attempt(0, NEXT)
    before = [store.history(t) for t in range(4)]
    store.learn([charge(5, 2, C)])
    after = [store.history(t) for t in range(4)]
    assert before[:3] == after[:3]
    assert before[3] != after[3]


def test_the_head_does_not_tell_who_was_charged(opener: Opener) -> None:
    """Two databases with the same entry: whoever sees heads can test no guess."""
    heads = set()
    for _ in range(3):
        store = opener("sqlite://")
        store.learn([charge(0, 0, A)])
        heads.add(store.head().head)
    assert len(heads) == 3


# --- versions: opened attempts, coins, the operators' word -------------------------------------


def test_opened_attempts_are_counted_by_version(store: Store) -> None:
    assert store.opened(3) == 0
    assert [store.count_opened(3, attempt) for attempt in (0, 1)] == [1, 2]
    assert store.count_opened(4, 2) == 1
    # The other server has counted more, or fewer: the larger number stays.
    store.raise_opened(3, 5)
    store.raise_opened(3, 2)
    assert [store.opened(t) for t in (3, 4)] == [5, 1]
    assert store.account_of(A, 0).opened == 6


def test_a_word_reaches_as_far_as_it_says(store: Store) -> None:
    assert store.allowed(Word.ATTEMPTS, 2) == -1
    store.allow(Word.ATTEMPTS, 2, 7)
    store.allow(Word.ATTEMPTS, 2, 9)
    assert store.allowed(Word.ATTEMPTS, 2) == 9
    assert store.allowed(Word.ATTEMPTS, 3) == store.allowed(Word.COIN, 2) == -1


def test_the_first_commitment_to_a_coin_stays_until_both_operators_discard_it(
    store: Store, task: Task
) -> None:
    other = seals(task.digest, Role.SERVER_B)
    first, second = (
        other.write(Kind.COIN_COMMITMENT, CoinCommitment(task="00" * 32, version=2, digest=d * 32))
        for d in ("01", "02")
    )
    store.keep_commitment(2, first)
    store.keep_commitment(2, second)
    assert store.commitment(2) == first
    assert store.commitment(1) is None
    store.keep_opening(2, first, own=False)
    store.keep_opening(2, second, own=True)
    assert (store.coin_opening(2, own=False), store.coin_opening(2, own=True)) == (first, second)
    assert store.redrawn_coins() == 0
    store.discard_coin(2)
    assert store.redrawn_coins() == 1
    assert store.commitment(2) is None
    assert store.coin_opening(2, own=False) is None
    assert store.coin_opening(2, own=True) is None
    store.keep_commitment(2, second)
    assert store.commitment(2) == second


# --- the journal beside the database -----------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return tmp_path / "outside" / "journal.jsonl"


@pytest.fixture
def old_copy(tmp_path: Path, opener: Opener, outside: Path) -> Callable[[], str]:
    """Put the database back from before anything happened; the file outside stays."""
    outside.parent.mkdir()
    opener(f"sqlite:///{tmp_path}/state.db", outside=outside).close()
    shutil.copy(tmp_path / "state.db", tmp_path / "copy.db")

    def put_back() -> str:
        for file in tmp_path.glob("state.db*"):
            file.unlink()
        shutil.copy(tmp_path / "copy.db", tmp_path / "state.db")
        return f"sqlite:///{tmp_path}/state.db"

    return put_back


def test_a_database_from_an_old_copy_learns_what_this_server_countersigned(
    old_copy: Callable[[], str], opener: Opener, outside: Path, prepared: Prepare, bind: Bind
) -> None:
    store = opener(old_copy(), outside=outside)
    prepared(store, 2)
    bind(store, 2)
    store.finish_attempt(2, NEXT)
    store.begin_attempt(5, 1, 3, NEXT)
    store.count_opened(1, 5)
    store.close()
    again = opener(old_copy(), outside=outside)
    assert again.states() == {2: AttemptState.LEARNED}
    assert again.participations() == {A: 1, B: 1}
    assert (again.opened(0), again.opened(1)) == (0, 1)
    # Its number was used, though the database doesn't know.
    assert again.next_attempt() == 6
    with pytest.raises(PeerViolation, match="isn't above 5"):
        again.begin_attempt(5, 1, 3, NEXT)
    length = again.head().length
    again.close()
    assert opener(f"sqlite:///{outside.parent.parent}/state.db", outside=outside).head().length == (
        length
    )


def test_what_was_never_countersigned_is_not_in_the_file(
    old_copy: Callable[[], str], opener: Opener, outside: Path, prepared: Prepare
) -> None:
    store = opener(old_copy(), outside=outside)
    prepared(store)
    store.close()
    assert opener(old_copy(), outside=outside).states() == {}


def test_what_the_file_holds_is_never_voided(
    tmp_path: Path, opener: Opener, prepared: Prepare, bind: Bind
) -> None:
    """Killed after the file's line and before the database's: the word may have left."""
    url, outside = f"sqlite:///{tmp_path}/state.db", tmp_path / "journal.jsonl"
    store = opener(url, outside=outside)
    prepared(store)

    def fail(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("UPDATE attempt"):
            raise OSError("no")

    event.listen(store._engine, "before_cursor_execute", fail)
    with pytest.raises(OSError, match="no"):
        bind(store)
    event.remove(store._engine, "before_cursor_execute", fail)
    assert store.states() == {0: AttemptState.PREPARED}
    store.close()
    again = opener(url, outside=outside)
    assert again.states() == {0: AttemptState.COUNTERSIGNED}
    with pytest.raises(AlreadyReleased, match="never voided"):
        again.void(0, 0)


def test_no_word_leaves_that_the_file_could_not_take(
    tmp_path: Path, opener: Opener, prepared: Prepare, bind: Bind
) -> None:
    folder = tmp_path / "outside"
    store = opener(f"sqlite:///{tmp_path}/state.db", outside=folder / "journal.jsonl")
    prepared(store)
    for attempt in (lambda: bind(store), lambda: store.count_opened(0, 0)):
        with pytest.raises(StorageFailure, match="can't be written"):
            attempt()
    assert store.states() == {0: AttemptState.PREPARED}
    assert store.opened(0) == 0
    folder.mkdir()
    bind(store)
    assert store.states() == {0: AttemptState.SENT}


@pytest.mark.parametrize("cut", [1, 10])
def test_a_line_that_a_crash_cut_short_is_dropped(
    old_copy: Callable[[], str],
    opener: Opener,
    outside: Path,
    prepared: Prepare,
    bind: Bind,
    cut: int,
) -> None:
    """It was never answered for: its word left only after the whole line was on the disk."""
    store = opener(old_copy(), outside=outside)
    prepared(store, 0)
    bind(store, 0)
    whole = outside.read_bytes()
    store.finish_attempt(0, NEXT)
    prepared(store, 1, version=1)
    bind(store, 1, 1)
    store.close()
    outside.write_bytes(outside.read_bytes()[:-cut])
    again = opener(old_copy(), outside=outside)
    assert again.states() == {0: AttemptState.LEARNED}
    assert outside.read_bytes() == whole
    # What is written next is a line of its own.
    prepared(again, 1, version=1)
    bind(again, 1, 1)
    again.close()
    assert len(opener(old_copy(), outside=outside).states()) == 2


OWN = b'{"task":"TASK",'


@pytest.mark.parametrize(
    "line",
    [
        b"x",
        b"[]",
        b'{"task": "f00"',
        b"\xff",
        b"[" * 100_000,
        OWN + b'"version":1}',
        OWN + b'"version":-1,"attempt":0}',
        OWN + b'"version":1,"attempt":99999999999999999999}',
        OWN + b'"version":1,"attempt":2,"clients":["No Client"]}',
        OWN + b'"version":1,"attempt":2,"clients":3}',
    ],
    ids=lambda line: line[:60].decode(errors="replace"),
)
def test_a_file_that_no_server_wrote_is_refused(
    tmp_path: Path, opener: Opener, task: Task, line: bytes
) -> None:
    outside = tmp_path / "journal.jsonl"
    outside.write_bytes(line.replace(b"TASK", str(task.digest).encode()) + b"\n")
    with pytest.raises(Misconfiguration, match="newest file back"):
        opener(f"sqlite:///{tmp_path}/state.db", outside=outside)


def test_another_tasks_lines_do_not_count(
    tmp_path: Path, opener: Opener, make_task: Any, prepared: Prepare, bind: Bind
) -> None:
    outside = tmp_path / "journal.jsonl"
    other: Task = make_task(8, {"privacy.noise_multiplier": 2.5})
    store = opener(f"sqlite:///{tmp_path}/other.db", task=other, outside=outside)
    prepared(store, 3)
    bind(store, 3)
    assert opener(f"sqlite:///{tmp_path}/state.db", outside=outside).next_attempt() == 0


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
    prepared: Prepare,
    bind: Bind,
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
            store.pending(),
            store.head(),
            store.witness(),
            [store.facts(version) for version in range(3)],
            store.history(2),
            store.opened(1),
            store.allowed(Word.ATTEMPTS, 1),
        )

    store = enrolled(opener(durable_url))
    prepared(store, 0, version=0)
    store.finish_attempt(0, NEXT)
    prepared(store, 1, version=1, share=SHARE[::-1])
    bind(store, 1, 1)
    store.begin_attempt(2, 2, 3, NEXT)
    store.count_opened(1, 1)
    store.allow(Word.ATTEMPTS, 1, 9)
    before = all_of(store)
    store.close()
    again = opener(durable_url)
    assert all_of(again) == before
    assert before[0] == roster.digest()
    with pytest.raises(AlreadyReleased):
        again.prepare(1, [A], VALID_SET, {}, SHARE)


def test_a_database_without_an_encoding_of_its_own_serves(postgres: str, opener: Opener) -> None:
    """One made without a locale is SQL_ASCII, whose text the driver would give back as bytes."""
    engine = create_engine(
        postgres, isolation_level="AUTOCOMMIT", connect_args={"client_encoding": "utf8"}
    )
    with engine.connect() as connection:
        connection.exec_driver_sql(
            "CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    engine.dispose()
    url = make_url(postgres).set(database="plain").render_as_string(hide_password=False)
    store = opener(url)
    store.begin_attempt(0, 0, 1, MODEL)
    store.close()
    assert opener(url).next_attempt() == 1
