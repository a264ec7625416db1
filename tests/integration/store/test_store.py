"""A server's durable state: bound to its task, charged and released at once, never twice."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from tests.integration.store.conftest import (
    MODEL,
    NEXT,
    SHARE,
    VALID_SET,
    A,
    B,
    Bind,
    C,
    Opener,
    Prepare,
    charge,
    voided,
)
from tests.rig.keys import signatures

from precad.aggregator.server_messages import VoidBody
from precad.aggregator.store import Store, schema
from precad.aggregator.store.schema import AttemptState
from precad.common.errors import (
    AlreadyReleased,
    Misconfiguration,
    PeerViolation,
    Rejection,
    StorageFailure,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.signatures import SignedKind
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task


def noisy_shares(store: Store) -> list[bytes | None]:
    rounds, kept = schema.attempts, schema.noisy_share
    with store.transaction.write() as connection:
        return list(
            connection.execute(
                select(kept.c.share).select_from(rounds.outerjoin(kept)).order_by(rounds.c.attempt)
            ).scalars()
        )


def test_another_roles_or_tasks_database_is_refused(
    tmp_path: Path, opener: Opener, make_task: Any
) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    opener(url).close()
    with pytest.raises(Misconfiguration, match="server-b") as refused:
        opener(url, role=Role.SERVER_B)
    assert refused.value.field == "state"
    other: Task = make_task(8, {"privacy.noise_multiplier": 2.5})
    with pytest.raises(Misconfiguration, match=str(other.digest)):
        opener(url, task=other)
    # And its own task still opens it.
    opener(url).close()


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


UNCHARGED = ("unknown", "open", "abandoned", "voided")
PENDING = ("prepared", "countersigned", "sent")
OVER = ("done", "written-off", "learned")
STEPS = ("prepare", "countersign", "send", "finish", "settle", "write off", "void")
NO = "refused"
BECOMES: dict[str, tuple[str, ...]] = {
    #               prepare, countersign, send; finish, settle, write off; void
    "unknown": (NO, NO, NO, "unknown", "unknown", "unknown", "voided"),
    "open": ("prepared", NO, NO, "open", "open", "open", "voided"),
    "abandoned": (NO, NO, NO, "abandoned", "abandoned", "abandoned", "voided"),
    "voided": (NO, NO, NO, "voided", "voided", "voided", "voided"),
    "prepared": (NO, "countersigned", NO, "done", "learned", "written-off", "voided"),
    "countersigned": (NO, "countersigned", "sent", "done", "learned", "written-off", NO),
    "sent": (NO, "sent", "sent", "done", "learned", "written-off", NO),
    "done": (NO, NO, NO, "done", "done", "done", NO),
    "written-off": (NO, NO, NO, "written-off", "written-off", "written-off", NO),
}
"""What each step makes of an attempt in each state.

Nothing leaves that isn't durable. Who has countersigned never voids, because the other may have
sent its share on that word. What was voided here is never prepared here: the other voids on that.
"""
LEARNT: dict[str, tuple[str, str]] = {
    #  a charge of A and B; a void
    **dict.fromkeys(UNCHARGED, ("learned", "voided")),
    "prepared": ("prepared", "voided"),
    **{state: (state, state) for state in (*PENDING[1:], *OVER)},
}
"""What the other server's word makes of it: no charge is unlearned, none is taken twice."""


class Ward:
    """Attempt after attempt of one store, each of a version of its own and in a chosen state."""

    def __init__(self, store: Store, prepared: Prepare, bind: Bind) -> None:
        self.store, self.prepared, self.bind = store, prepared, bind
        self.number = -1

    def bring(self, state: str) -> int:
        self.number += 1
        number, store = self.number, self.store
        if state in ("open", "abandoned"):
            store.attempts.begin(number, number, 3, MODEL)
        elif state in (*PENDING, "done", "written-off"):
            self.prepared(store, number, number)
        elif state == "voided":
            store.attempts.void(number, number)
        elif state == "learned":
            store.attempts.learn([charge(number, number, A, B)])
        if state in ("countersigned", "sent", "written-off"):
            self.bind(store, number, number, sent=state != "countersigned")
        if state == "abandoned":
            store.attempts.abandon_open()
        elif state == "done":
            store.attempts.finish(number, NEXT)
        elif state == "written-off":
            store.attempts.write_off(number)
        assert self.state(number) == state
        return number

    def state(self, number: int) -> str:
        states = self.store.attempts.states()
        return states[number].value if number in states else "unknown"

    def take(self, step: str, number: int) -> None:
        store = self.store
        other = signatures(store.task.digest, Role.SERVER_B)
        body = VoidBody(task="00" * 32, version=number, attempt=number)
        {
            "prepare": lambda: store.attempts.prepare(number, [A, B], VALID_SET, {}, SHARE),
            "countersign": lambda: self.bind(store, number, number, sent=False),
            "send": lambda: store.attempts.sent(
                number, other.sign(SignedKind.COUNTERSIGNATURE, body)
            ),
            "finish": lambda: store.attempts.finish(number, NEXT),
            "settle": lambda: store.attempts.settle(number),
            "write off": lambda: store.attempts.write_off(number),
            "void": lambda: store.attempts.void(number, number),
        }[step]()


def test_an_attempt_goes_one_way(each_store: Store, prepared: Prepare, bind: Bind) -> None:
    """And costs A and B one participation as soon as it is prepared, until it is voided."""
    ward, store = Ward(each_store, prepared, bind), each_store
    for state, outcomes in BECOMES.items():
        for step, outcome in zip(STEPS, outcomes, strict=True):
            number = ward.bring(state)
            head = store.ledger.head()
            try:
                ward.take(step, number)
            except AlreadyReleased:
                assert outcome == NO, (state, step)
                assert store.ledger.head() == head
            else:
                assert ward.state(number) == outcome, (state, step)
            now = ward.state(number)
            assert outcome != NO or now == state, (state, step)
            cost = {} if now in UNCHARGED else {A: 1, B: 1}
            assert store.ledger.charges_in(number) == cost, (state, step)
            # A step that comes again changes nothing, and stands once in the ledger.
            head = store.ledger.head()
            if outcome not in (NO, "prepared"):
                ward.take(step, number)
            assert (ward.state(number), store.ledger.head()) == (now, head), (state, step)
            store.attempts.finish(number, NEXT)


def test_what_the_other_server_shows_is_learned_once_and_no_charge_is_unlearned(
    each_store: Store, prepared: Prepare, bind: Bind
) -> None:
    ward, store = Ward(each_store, prepared, bind), each_store
    for state, outcomes in LEARNT.items():
        for told, outcome in zip((charge, voided), outcomes, strict=True):
            number = ward.bring(state)
            fact = charge(number, number, A, B) if told is charge else voided(number, number)
            assert store.attempts.learn([fact]) == (outcome != state), (state, fact)
            assert ward.state(number) == outcome
            assert store.ledger.charges_in(number) == ({} if outcome in UNCHARGED else {A: 1, B: 1})
            assert store.ledger.facts(number)[0].voided is (outcome == "voided")
            head = store.ledger.head()
            assert (store.attempts.learn([fact]), store.ledger.head()) == (0, head)
            if outcome == "learned":
                with pytest.raises(AlreadyReleased):
                    ward.take("prepare", number)
            if outcome not in UNCHARGED:
                # Somebody whom this ledger lacks is charged beside the others.
                assert store.attempts.learn([charge(number, number, A, B, C)]) == 1
                assert store.ledger.charges_in(number) == {A: 1, B: 1, C: 1}
            store.attempts.finish(number, NEXT)


@pytest.mark.parametrize("earlier", [*PENDING, "done"])
def test_a_model_gets_one_release_whatever_the_attempts_number(
    each_store: Store, prepared: Prepare, bind: Bind, earlier: str
) -> None:
    """A fresh noise on the same sum would average the noise away."""
    store = each_store
    version = Ward(store, prepared, bind).bring(earlier)
    store.attempts.begin(1, version, 3, MODEL)
    with pytest.raises(AlreadyReleased, match="version 0 has its release already, of attempt 0"):
        store.attempts.prepare(1, [A], VALID_SET, {}, SHARE[::-1])
    assert store.ledger.participations() == {A: 1, B: 1}
    # The database itself refuses too.
    with pytest.raises(IntegrityError), store.transaction.write() as connection:
        connection.execute(text("UPDATE attempt SET state = 'prepared' WHERE attempt = 1"))


def test_attempts_numbers_are_never_used_twice_and_the_model_that_the_first_began_from_is_known(
    store: Store, prepared: Prepare
) -> None:
    assert (store.attempts.start(), store.attempts.next_number()) == (None, 0)
    prepared(store, 4)
    assert (store.attempts.start(), store.attempts.next_number()) == (MODEL, 5)
    # The other server has named a newer one.
    store.attempts.void(1, 6)
    assert store.attempts.next_number() == 7
    for number in (0, 4, 6):
        with pytest.raises(PeerViolation, match="isn't above 6"):
            store.attempts.begin(number, 1, 3, MODEL)


def test_an_attempt_of_another_version_is_neither_voided_nor_learned(
    store: Store, prepared: Prepare
) -> None:
    prepared(store, 0, version=1)
    with pytest.raises(AlreadyReleased):
        store.attempts.void(0, 0)
    with pytest.raises(StorageFailure, match="attempt 0 stands here for another version"):
        store.attempts.learn([charge(1, 1, A), charge(0, 2, A)])
    # All of it or nothing.
    assert store.attempts.states() == {0: AttemptState.PREPARED}
    assert store.ledger.participations() == {A: 1, B: 1}


def test_a_version_that_is_released_again_is_one_participation_and_an_upgrade(
    store: Store, prepared: Prepare, bind: Bind
) -> None:
    for number in range(3):
        prepared(store, number, version=4)
        bind(store, number, 4)
        store.attempts.write_off(number)
        assert store.attempts.pending() is None
    store.attempts.begin(3, 4, 3, MODEL)
    store.attempts.prepare(3, [B, C], VALID_SET, {A: Rejection.ABSENT}, SHARE)
    assert store.ledger.participations() == {A: 1, B: 1, C: 1}
    assert store.ledger.re_releases() == {A: {2: 1}, B: {3: 1}}
    assert (store.ledger.charges_in(4), store.ledger.charges_in(3)) == ({A: 3, B: 4, C: 1}, {})
    account = store.statements.account_of(B, 5, 5)
    assert (account.charged, account.counted) == ((0, 0, 0, 1), True)
    assert store.statements.account_of(B, 4, 4).charged == ()


def test_preparing_charges_the_valid_and_counts_the_rejected(
    store: Store, prepared: Prepare
) -> None:
    assert store.attempts.pending() is None
    prepared(store, 0, version=7)
    assert store.ledger.participations() == {A: 1, B: 1}
    assert store.attempts.rejections() == {Rejection.ABSENT: 1}
    # Absence is not held against a client.
    assert store.attempts.rejected_clients() == {}
    record = store.attempts.pending()
    assert record is not None
    assert (record.attempt, record.version, record.state) == (0, 7, AttemptState.PREPARED)
    assert (record.model, record.valid_set, record.valid) == (MODEL, VALID_SET, (A, B))
    assert record.rejections == {C: Rejection.ABSENT}
    assert (record.cohort_size, record.noisy_share) == (3, SHARE)
    # Whatever is asked afterwards: the first stays.
    for valid, share in (([A, B, C], SHARE), ([], bytes(64)), ([A], SHARE[::-1])):
        with pytest.raises(AlreadyReleased):
            store.attempts.prepare(0, valid, Digest(bytes(32)), {}, share)
    assert (store.ledger.participations(), noisy_shares(store)) == ({A: 1, B: 1}, [SHARE])
    assert store.attempts.pending() == record


def test_the_ledger_counts_every_version_and_an_empty_one(store: Store) -> None:
    for number in range(6):
        store.attempts.begin(number, number, 3, MODEL)
        valid = [] if number == 5 else [A] if number % 2 else [A, B]
        store.attempts.prepare(number, valid, VALID_SET, {C: Rejection.NORM_EXCEEDED}, SHARE)
        store.attempts.finish(number, NEXT)
    assert store.ledger.participations() == {A: 5, B: 3}
    assert store.attempts.rejections() == {Rejection.NORM_EXCEEDED: 6}
    assert store.attempts.rejected_clients() == {C: 6}


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
    each_store: Store, prepared: Prepare, orphan: str
) -> None:
    prepared(each_store)
    with pytest.raises(IntegrityError), each_store.transaction.write() as connection:
        connection.execute(text(orphan))


@pytest.mark.parametrize(
    "broken",
    [
        {"valid": [A, B, A]},  # fails at the charge, after share and ledger entry are written
        {"rejections": {C: Rejection.ABSENT, A: None}},  # fails at the last statement
    ],
)
def test_a_failure_inside_prepare_leaves_nothing_of_it(
    each_store: Store, broken: dict[str, Any]
) -> None:
    """Share, charge and rejections are one transaction: no share without its charge."""
    store = each_store
    store.attempts.begin(0, 0, 3, MODEL)
    given = {"valid": [A, B], "rejections": {C: Rejection.ABSENT}} | broken
    with pytest.raises((IntegrityError, AttributeError)):
        store.attempts.prepare(0, given["valid"], VALID_SET, given["rejections"], SHARE)
    assert noisy_shares(store) == [None]
    assert (store.ledger.participations(), store.attempts.rejections()) == ({}, {})
    assert store.attempts.states() == {0: AttemptState.OPEN}
    # And it can still be prepared, once.
    store.attempts.prepare(0, [A, B], VALID_SET, {C: Rejection.ABSENT}, SHARE)
    assert store.ledger.participations() == {A: 1, B: 1}


def test_no_statement_keeps_a_noisy_share(each_store: Store, prepared: Prepare) -> None:
    """A vector of a large model: neither SQLAlchemy's cache nor the driver's holds on to it."""
    share = np.arange(8, dtype=np.int64)
    seen = weakref.ref(share)
    prepared(each_store, share=share.data.cast("B"))
    assert noisy_shares(each_store) == [share.tobytes()]
    del share
    gc.collect()
    assert seen() is None


def kept(store: Store) -> dict[int, bool]:
    return {number: share is not None for number, share in enumerate(noisy_shares(store))}


def confirm(store: Store, version: int) -> None:
    """And then, while others upload."""
    store.versions.confirm(version)
    store.attempts.drop_shares(store.versions.confirmed())


def test_noisy_shares_go_once_both_servers_hold_the_model(
    store: Store, prepared: Prepare, bind: Bind
) -> None:
    prepared(store, 0, version=0)
    store.attempts.finish(0, NEXT)
    assert kept(store) == {0: True}
    prepared(store, 1, version=1)
    bind(store, 1, version=1)
    confirm(store, 1)
    # The other server may still ask for the one that is pending, and is sent these bytes.
    assert kept(store) == {0: False, 1: True}
    confirm(store, 2)
    assert kept(store) == {0: False, 1: True}
    record = store.attempts.pending()
    assert record is not None
    assert record.noisy_share == SHARE
    store.attempts.finish(1, NEXT)
    confirm(store, 2)
    assert kept(store) == {0: False, 1: False}
    # What was charged for stays charged, and is still sound.
    assert store.ledger.participations() == {A: 2, B: 2}


@pytest.mark.parametrize("end", ["voided", "written-off", "learned"])
def test_a_noisy_share_of_an_attempt_that_came_to_nothing_goes_with_its_version(
    store: Store, prepared: Prepare, bind: Bind, end: str
) -> None:
    prepared(store, 0, version=0)
    ward = Ward(store, prepared, bind)
    ward.take({"voided": "void", "written-off": "write off", "learned": "settle"}[end], 0)
    assert ward.state(0) == end
    prepared(store, 1, version=0)
    store.attempts.finish(1, NEXT)
    assert kept(store) == {0: True, 1: True}
    confirm(store, 1)
    assert kept(store) == {0: False, 1: False}


def test_of_many_noisy_shares_a_few_go_with_each_version(store: Store, prepared: Prepare) -> None:
    """As a version before left them: no round waits for all."""
    for number in range(20):
        prepared(store, number, version=number)
        store.attempts.finish(number, NEXT)
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
        store.attempts.finish(number, NEXT)
        confirm(store, number + 1)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20 * len(share)


@pytest.mark.parametrize("spoilt", [SHARE[:-1], SHARE[::-1], b""])
def test_a_share_that_changed_in_the_database_is_never_sent_again(
    store: Store, prepared: Prepare, spoilt: bytes
) -> None:
    prepared(store)
    with store.transaction.write() as connection:
        connection.execute(schema.noisy_share.update().values(share=spoilt))
    with pytest.raises(StorageFailure, match="attempt 0"):
        store.attempts.pending()


def test_randomness_is_spent_once_and_stays_spent_after_a_restart(
    durable_url: str, opener: Opener
) -> None:
    store = opener(durable_url)
    spent = ((0, 0), (0, 1), (1, 0))
    for number, batch in spent:
        store.attempts.spend(number, batch)
    for again in range(2):
        for number, batch in spent:
            with pytest.raises(PeerViolation, match="spent before"):
                store.attempts.spend(number, batch)
        if not again:
            store.close()
            store = opener(durable_url)


def test_a_client_claims_once(each_store: Store) -> None:
    first, other = Enrolment(A, 100, 0.1), Enrolment(A, 200, 0.1)
    assert [each_store.enrolment.claim(each) for each in (first, first, other)] == [first] * 3
    assert each_store.enrolment.claims() == {A: first}


def test_the_roster_is_frozen(store: Store, roster: Roster) -> None:
    for enrolment in roster.values():
        store.enrolment.claim(enrolment)
    smaller = Roster({A: roster[A], B: roster[B]})
    store.enrolment.freeze(smaller)
    store.enrolment.freeze(smaller)
    for other in (roster, Roster({A: roster[A]}), Roster({**smaller, A: Enrolment(A, 101, 0.2)})):
        with pytest.raises(PeerViolation, match="frozen"):
            store.enrolment.freeze(other)
    kept = store.enrolment.roster()
    assert kept is not None
    assert (kept.digest(), store.enrolment.claims().digest()) == (smaller.digest(), roster.digest())


@pytest.mark.parametrize("claimed", [None, Enrolment(B, 100, 0.1000001)])
def test_only_claims_that_were_kept_here_are_frozen(
    store: Store, roster: Roster, claimed: Enrolment | None
) -> None:
    store.enrolment.claim(roster[A])
    if claimed is not None:
        store.enrolment.claim(claimed)
    with pytest.raises(PeerViolation, match="ward-b"):
        store.enrolment.freeze(Roster({A: roster[A], B: roster[B]}))
    assert store.enrolment.roster() is None


def test_rates_are_kept_to_the_last_bit(each_store: Store) -> None:
    rates = [0.1, 1 / 3, 5e-324, 0.30000000000000004]
    for number, rate in enumerate(rates):
        each_store.enrolment.claim(Enrolment(ClientId(f"c{number}"), 1, rate))
    assert [e.record_rate for e in each_store.enrolment.claims().values()] == rates
