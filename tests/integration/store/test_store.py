"""A server's durable state: bound to its task, charged and released at once, never
twice."""

import gc
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from tests.conftest import small_task
from tests.rig import keys, stores
from tests.rig.stores import (
    MODEL,
    NEXT,
    ROSTER,
    SHARE,
    VALID_SET,
    A,
    B,
    C,
    Opener,
    prepared,
)

from precad.aggregator.server_messages import VoidBody
from precad.aggregator.store import Store, audit_ledger, schema
from precad.aggregator.store.attempts import ReleaseRecord
from precad.aggregator.store.schema import AttemptState
from precad.common import errors
from precad.common.identifiers import ClientId, Role
from precad.common.identity.signatures import SignedKind
from precad.common.roster import Enrolment, Roster


def shares(store: Store) -> list[bytes | None]:
    return [store.attempts.noisy_share(number) for number in store.attempts.states()]


@pytest.mark.parametrize(
    "name",
    [
        "a#b",
        "neu [1]",
        "50% done",
        "p%40",
        "what?now",
        "x?mode=memory&cache=shared",
    ],
)
def test_a_database_lies_in_the_folder_that_is_named(
    tmp_path: Path, opener: Opener, name: str
) -> None:
    folder = tmp_path / name / "state"
    folder.mkdir(parents=True)
    opener(f"sqlite:///{folder / 'state.db'}").close()
    assert (folder / "state.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert audit_ledger(f"sqlite:///{folder / 'state.db'}").findings == ()


def test_another_roles_or_tasks_database_is_refused(url: str, opener: Opener) -> None:
    opener(url).close()
    other = small_task(8, {"privacy.noise_multiplier": 2.5})
    with pytest.raises(errors.Misconfiguration, match="server-b") as refused:
        opener(url, role=Role.SERVER_B)
    assert refused.value.field == "state"
    with pytest.raises(errors.Misconfiguration, match=str(other.digest)):
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
def test_a_database_that_cannot_be_used_is_refused(
    url: str, says: str, opener: Opener
) -> None:
    with pytest.raises(errors.Misconfiguration, match=says) as refused:
        opener(url)
    assert "secret" not in str(refused.value)


TOLD = ("learn", "learn of a void")
STEPS = (
    "prepare",
    "countersign",
    "send",
    "finish",
    "settle",
    "write off",
    "void",
    *TOLD,
)
NO, ENDS = "refused", ("done", "learned", "written-off")
BECOMES: dict[str, tuple[str, ...]] = {
    #  prepare, countersign, send; finish, settle, write off; void; learn of a charge,
    #  of a void
    "unknown": (NO, NO, NO, *["unknown"] * 3, "voided", "learned", "voided"),
    "open": ("prepared", NO, NO, *["open"] * 3, "voided", "learned", "voided"),
    "abandoned": (NO, NO, NO, *["abandoned"] * 3, "voided", "learned", "voided"),
    "voided": (NO, NO, NO, *["voided"] * 3, "voided", "learned", "voided"),
    "prepared": (NO, "countersigned", NO, *ENDS, "voided", "prepared", "voided"),
    "countersigned": (NO, "countersigned", "sent", *ENDS, NO, *["countersigned"] * 2),
    "sent": (NO, "sent", "sent", *ENDS, NO, "sent", "sent"),
    "done": (NO, NO, NO, *["done"] * 3, NO, "done", "done"),
    "written-off": (NO, NO, NO, *["written-off"] * 3, NO, *["written-off"] * 2),
    "learned": (NO, NO, NO, *["learned"] * 3, "voided", "learned", "learned"),
}
"""What each step makes of an attempt in each state, and what the other server's word
does.

Nothing leaves that isn't durable. Who has countersigned never voids, because the other
may have sent its share on that word. What was voided here is never prepared here: the
other voids on that. No charge is unlearned, none is taken twice."""
SENT = ("begin", "prepare", "countersign", "send")
WAYS: dict[str, tuple[str, ...]] = {
    "unknown": (),
    "open": ("begin",),
    "voided": ("void",),
}
WAYS |= {"abandoned": ("begin", "abandon"), "learned": ("learn",), "prepared": SENT[:2]}
WAYS |= {"countersigned": SENT[:3], "sent": SENT, "written-off": (*SENT, "write off")}
WAYS |= {"done": ("begin", "prepare", "finish")}
"""How an attempt comes there."""


def take(store: Store, step: str, number: int) -> object:
    other, attempts = keys.signatures(store.task.digest, Role.SERVER_B), store.attempts
    body = VoidBody(task=bytes(32), version=number, attempt=number)
    steps: dict[str, Callable[[], object]] = {
        "begin": lambda: attempts.begin(
            attempt=number, version=number, cohort_size=3, model=MODEL
        ),
        "abandon": attempts.abandon_open,
        "prepare": lambda: attempts.prepare(number, [A, B], VALID_SET, {}, SHARE),
        "countersign": lambda: stores.bound(store, number, number, sent=False),
        "send": lambda: attempts.sent(
            number, other.sign(SignedKind.COUNTERSIGNATURE, body)
        ),
        "finish": lambda: attempts.finish(number, NEXT),
        "settle": lambda: attempts.end(number, AttemptState.LEARNED),
        "write off": lambda: attempts.end(number, AttemptState.WRITTEN_OFF),
        "void": lambda: attempts.void(number, number),
        "learn": lambda: attempts.learn([stores.charge(number, number, A, B)]),
        "learn of a void": lambda: attempts.learn([stores.voided(number, number)]),
    }
    return steps[step]()


def taken(store: Store, number: int, *steps: str) -> str:
    for step in steps:
        take(store, step, number)
    found = store.attempts.states().get(number)
    return "unknown" if found is None else found.value


def test_an_attempt_goes_one_way(each_store: Store) -> None:
    """And costs A and B one participation as soon as it is prepared, until it is
    voided."""
    store = each_store
    cases = [
        (s, *each) for s in BECOMES for each in zip(STEPS, BECOMES[s], strict=True)
    ]
    for number, (state, step, outcome) in enumerate(cases):
        assert taken(store, number, *WAYS[state]) == state
        before, learned = store.ledger.head(), None
        try:
            learned = take(store, step, number)
        except errors.AlreadyReleased:
            assert (outcome, store.ledger.head()) == (NO, before), (state, step)
        now = taken(store, number)
        assert now == (state if outcome == NO else outcome), (state, step)
        assert step not in TOLD or learned == (now != state)
        cost = {} if now in ("unknown", "open", "abandoned", "voided") else {A: 1, B: 1}
        facts = [fact.voided for fact in store.ledger.facts(number)]
        assert store.ledger.charges_in(number) == cost, (state, step)
        assert facts == ([True] if now == "voided" else [False] if cost else []), (
            state,
            step,
        )
        # A step that comes again changes nothing, and stands once in the ledger.
        head = store.ledger.head()
        if outcome != NO and step != "prepare":
            assert not take(store, step, number)
        assert (taken(store, number), store.ledger.head()) == (now, head), (state, step)
        if cost:
            # Somebody whom this ledger lacks is charged beside the others.
            assert store.attempts.learn([stores.charge(number, number, A, B, C)]) == 1
            assert store.ledger.charges_in(number) == {A: 1, B: 1, C: 1}
        store.attempts.finish(number, NEXT)


@pytest.mark.parametrize("earlier", ["prepared", "countersigned", "sent", "done"])
def test_a_model_gets_one_release_in_all_its_attempts(
    each_store: Store, earlier: str
) -> None:
    """A fresh noise on the same sum would average the noise away."""
    store = each_store
    assert taken(store, 0, *WAYS[earlier]) == earlier
    store.attempts.begin(attempt=1, version=0, cohort_size=3, model=MODEL)
    with pytest.raises(
        errors.AlreadyReleased, match=r"version 0 has its .* of attempt 0"
    ):
        store.attempts.prepare(1, [A], VALID_SET, {}, SHARE[::-1])
    assert store.ledger.participations() == {A: 1, B: 1}
    # The database itself refuses too.
    with pytest.raises(IntegrityError), store.transaction.write() as connection:
        connection.execute(
            text("UPDATE attempt SET state = 'prepared' WHERE attempt = 1")
        )


def test_an_attempts_number_is_of_one_version_and_never_used_twice(
    store: Store,
) -> None:
    attempts = store.attempts
    assert (attempts.start(), attempts.next_number()) == (None, 0)
    prepared(store, 4, 1)
    with pytest.raises(errors.AlreadyReleased):
        attempts.void(0, 4)
    with pytest.raises(
        errors.StorageFailure, match="attempt 4 stands here for another version"
    ):
        attempts.learn([stores.charge(1, 1, A), stores.charge(4, 2, A)])
    # All of it or nothing.
    assert (attempts.states(), attempts.next_number()) == (
        {4: schema.AttemptState.PREPARED},
        5,
    )
    assert store.ledger.participations() == {A: 1, B: 1}
    # The other server has named a newer one.
    attempts.void(0, 6)
    assert attempts.next_number() == 7
    for number in (0, 4, 6):
        with pytest.raises(errors.PeerViolation, match="isn't above 6"):
            attempts.begin(attempt=number, version=1, cohort_size=3, model=MODEL)


def test_a_version_that_is_released_again_is_one_participation_and_an_upgrade(
    store: Store,
) -> None:
    for number in range(3):
        stores.lost(store, number, 4)
        assert store.attempts.pending() is None
    store.attempts.begin(attempt=3, version=4, cohort_size=3, model=MODEL)
    store.attempts.prepare(3, [B, C], VALID_SET, {A: errors.Rejection.ABSENT}, SHARE)
    ledger, account_of = store.ledger, store.statements.account_of
    assert ledger.participations() == {A: 1, B: 1, C: 1}
    assert ledger.re_releases() == {A: {2: 1}, B: {3: 1}}
    assert (ledger.charges_in(4), ledger.charges_in(3)) == ({A: 3, B: 4, C: 1}, {})
    account = account_of(B, 5, 5)
    assert (account.charged, account.counted) == ((0, 0, 0, 1), True)
    assert account_of(B, 4, 4).charged == ()


@pytest.mark.parametrize(
    "orphan",
    [
        (
            "INSERT INTO charge (attempt, client, record_rate, sequence) VALUES (0,"
            " 'ward-c', 0.1, 9)"
        ),
        (
            "INSERT INTO rejection (attempt, client, reason) VALUES (9, 'ward-c',"
            " 'absent')"
        ),
        "UPDATE ledger SET attempt = 9",
        "DELETE FROM ledger",
        "DELETE FROM attempt",
    ],
)
def test_the_database_refuses_what_belongs_to_nothing(
    each_store: Store, orphan: str
) -> None:
    prepared(each_store)
    with pytest.raises(IntegrityError), each_store.transaction.write() as connection:
        connection.execute(text(orphan))


@pytest.mark.parametrize(
    ("valid", "rejections"),
    [
        # At the charge, after share and ledger entry; and at the last statement.
        ([A, B, A], {C: errors.Rejection.ABSENT}),
        ([A, B], {C: errors.Rejection.ABSENT, A: None}),
    ],
    ids=["charge", "rejection"],
)
def test_a_failure_inside_prepare_leaves_nothing_of_it(
    each_store: Store,
    valid: list[ClientId],
    rejections: Mapping[ClientId, errors.Rejection],
) -> None:
    """Share, charge and rejections are one transaction: no share without its charge."""
    store = each_store
    store.attempts.begin(attempt=0, version=0, cohort_size=3, model=MODEL)
    with pytest.raises((IntegrityError, AttributeError)):
        store.attempts.prepare(0, valid, VALID_SET, rejections, SHARE)
    assert shares(store) == [None]
    assert (store.ledger.participations(), store.attempts.rejections()) == ({}, {})
    assert store.attempts.states() == {0: schema.AttemptState.OPEN}
    # And it can still be prepared, once; whatever is asked afterwards, the first stays.
    store.attempts.prepare(0, [A, B], VALID_SET, {C: errors.Rejection.ABSENT}, SHARE)
    state, rejected = schema.AttemptState.PREPARED, {C: errors.Rejection.ABSENT}
    record = ReleaseRecord(
        attempt=0,
        version=0,
        state=state,
        model=MODEL,
        valid_set=VALID_SET,
        valid=(A, B),
        rejections=rejected,
        noisy_share=SHARE,
    )
    for again, share in (([A, B, C], SHARE), ([], bytes(64)), ([A], SHARE[::-1])):
        with pytest.raises(errors.AlreadyReleased):
            store.attempts.prepare(0, again, MODEL, {}, share)
    assert (store.attempts.pending(), shares(store)) == (record, [SHARE])
    assert store.ledger.participations() == {A: 1, B: 1}
    assert store.attempts.rejections() == {errors.Rejection.ABSENT: 1}


def test_no_statement_keeps_a_noisy_share(each_store: Store) -> None:
    """A vector of a large model: neither SQLAlchemy's cache nor the driver's holds on
    to it."""
    share = np.arange(8, dtype=np.int64)
    seen = weakref.ref(share)
    prepared(each_store, share=share.data.cast("B"))
    assert shares(each_store) == [share.tobytes()]
    del share
    gc.collect()
    assert seen() is None


def test_noisy_shares_go_once_both_servers_hold_the_model(store: Store) -> None:
    def kept(version: int) -> list[int]:
        """The attempts whose shares are there once both hold that model, while others
        upload."""
        store.versions.confirm(version)
        store.attempts.drop_shares(store.versions.confirmed())
        return [
            n
            for n in store.attempts.states()
            if store.attempts.noisy_share(n) is not None
        ]

    prepared(store)
    store.attempts.finish(0, NEXT)
    assert shares(store) == [SHARE]
    stores.sent(store, 1, 1)
    # The other server may still ask for the one that is pending, and is sent these
    # bytes.
    assert [kept(version) for version in (1, 2)] == [[1], [1]]
    assert getattr(store.attempts.pending(), "noisy_share", None) == SHARE
    store.attempts.finish(1, NEXT)
    assert kept(2) == []
    # Also of attempts that came to nothing, though not before their version has its
    # model.
    for number, end in enumerate(("void", "write off", "settle"), 2):
        prepared(store, number, 2)
        assert taken(store, number, end) in ("voided", "written-off", "learned")
    prepared(store, 5, 2)
    store.attempts.finish(5, NEXT)
    assert [kept(version) for version in (2, 3)] == [[2, 3, 4, 5], []]
    # Of many, as a version before left them, a few go with each version: no round waits
    # for all.
    for number in range(6, 26):
        prepared(store, number, number)
        store.attempts.finish(number, NEXT)
    assert [len(kept(26)) for _ in range(3)] == [12, 4, 0]


def test_the_disk_does_not_grow_by_a_share_a_round(
    tmp_path: Path, opener: Opener
) -> None:
    store, share = opener(f"sqlite:///{tmp_path}/state.db"), bytes(1 << 18)
    for number in range(40):
        prepared(store, number, number, share)
        store.attempts.finish(number, NEXT)
        store.versions.confirm(number + 1)
        store.attempts.drop_shares(number + 1)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20 * len(share)


def test_a_client_claims_once_and_the_roster_is_of_claims_kept_here(
    each_store: Store,
) -> None:
    """To the last bit of their rates; and frozen."""
    enrolment, smaller = each_store.enrolment, Roster({A: ROSTER[A], B: ROSTER[B]})
    for first in ROSTER.values():
        other = Enrolment(first.client, 200, first.record_rate)
        assert [enrolment.claim(each) for each in (first, first, other)] == [first] * 3
    for stranger in (
        Enrolment(ClientId("ward-d"), 100, 0.1),
        Enrolment(B, 100, 0.1000001),
    ):
        with pytest.raises(
            errors.PeerViolation, match=f"{stranger.client} didn't enrol here"
        ):
            enrolment.freeze(Roster({A: ROSTER[A], stranger.client: stranger}))
    assert enrolment.roster() is None
    for _ in range(2):
        enrolment.freeze(smaller)
    others = [
        ROSTER,
        Roster({A: ROSTER[A]}),
        Roster({**smaller, A: Enrolment(A, 101, 0.2)}),
    ]
    for another in others:
        with pytest.raises(errors.PeerViolation, match="frozen"):
            enrolment.freeze(another)
    rates = [1 / 3, 5e-324, 0.30000000000000004]
    odd = {
        ClientId(f"c{n}"): Enrolment(ClientId(f"c{n}"), 1, r)
        for n, r in enumerate(rates)
    }
    for claim in odd.values():
        enrolment.claim(claim)
    assert (enrolment.roster(), enrolment.claims()) == (
        smaller,
        Roster({**ROSTER, **odd}),
    )
