"""Opening and settling an attempt: whom both ledgers allow, and what servers refuse."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.rig.aggregators import SERVERS, aggregator
from tests.rig.parties import at_both
from tests.rig.rounds import roster_of
from tests.rig.tasks import task_with

from precad.accounting.exact import record_epsilon
from precad.aggregator.collect.matching import Places
from precad.aggregator.peer_link import memory_pair
from precad.aggregator.rounds import start_attempt
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.rounds.states import Opened
from precad.aggregator.server_messages import Fact, OpenedCount, Verdict
from precad.aggregator.store import open_store
from precad.aggregator.store.schema import AttemptState, Permission
from precad.aggregator.training.training_loop import count_opened
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import ATTEMPTS, ClientId, Digest
from precad.common.wire.messages import encode

MODEL, OTHER_MODEL = Digest(b"\1" * 32), Digest(b"\2" * 32)
Pair = tuple[Aggregator, Aggregator]
NAMES = [ClientId(f"c{i}") for i in range(5)]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    task = task_with({})
    made = []
    for role, end in zip(SERVERS, memory_pair(), strict=True):
        store = open_store(f"sqlite:///{tmp_path}/{role.value}.db", task, role)
        made.append(aggregator(task, role, end, roster=roster_of(NAMES), store=store))
    return made[0], made[1]


def of_task(pair: Pair, changes: dict[str, Any]) -> Pair:
    task = task_with(changes)
    a, b = (replace(each, task=task, cap=PrivacyCap(task)) for each in pair)
    return a, b


def states(server: Aggregator) -> dict[int, AttemptState]:
    store: Any = server.store
    found: dict[int, AttemptState] = store.attempts.states()
    return found


never = Mock(side_effect=AssertionError("a refused round must not open"))


def answered(pair: Pair, drawn: Sequence[ClientId] = NAMES, then: Any = never) -> Opened | None:
    """What B makes of A's proposal, for these drawn clients."""
    return start_attempt.answer(pair[1], 3, drawn, MODEL, before_agreeing=then)


def opened(pair: Pair, cohort: list[ClientId], then: Any = never, attempt: int = 4) -> Any:
    """What A's and B's sides return or raise; B's coin drew everybody."""
    return at_both(
        lambda: start_attempt.propose(pair[0], attempt, 3, cohort, MODEL),
        lambda: answered(pair, then=then),
    )


@pytest.mark.parametrize("cover", [0, 1])
def test_both_open_the_same_round(pair: Pair, cover: int) -> None:
    """With cover everybody uploads, and the drawn ones count."""
    pair, told = of_task(pair, {"privacy.cover_uploads": bool(cover)}), []
    a, b = opened(pair, [NAMES[3], NAMES[0]], lambda *given: told.append(given))
    drawn = (NAMES[0], NAMES[3])
    cohort = tuple(NAMES) if cover else drawn
    assert a == b == Opened(4, 3, cohort, MODEL, frozenset(drawn)) == told[0][0]
    assert [states(server) for server in pair] == [{4: AttemptState.OPEN}] * 2


def steps(*clients: str) -> tuple[int, ...]:
    return Places(NAMES).steps(map(ClientId, clients))


def proposed(pair: Pair, **proposal: Any) -> None:
    honest: dict[str, Any] = {"attempt": 4, "clients": steps("c0"), "model": str(MODEL)}
    pair[0].link.send("cohort", encode("Cohort", honest | proposal))


@pytest.mark.parametrize(
    ("proposal", "words", "told"),
    [
        ({"clients": steps("c0", "c4")}, r"coin didn't draw \['c4'\]", 1),
        ({"model": str(OTHER_MODEL)}, str(OTHER_MODEL), 1),
        # Behind the last, and nobody.
        *(({"clients": places}, "isn't among 5 clients", 0) for places in ((1, 1, 4), (6,))),
        # Else a server that cheats would use up all numbers at once, for ever.
        ({"attempt": ATTEMPTS}, "the last number that there is", 0),
        ({"attempt": ATTEMPTS + 1}, "unreadable Cohort .*: attempt", 0),
        ({"clients": (1, 0)}, "unreadable Cohort .*: clients", 0),
        ({"model": "00"}, "unreadable Cohort .*: model", 0),
    ],
)
def test_b_refuses_and_says_why(pair: Pair, proposal: Any, words: str, told: int) -> None:
    proposed(pair, **proposal)
    with pytest.raises(PeerViolation, match=words):
        answered(pair, NAMES[:4])
    assert states(pair[1]) == {}
    if told:
        assert re.search(words, Verdict.from_bytes(pair[0].link.receive("cohort")).refusal)


@pytest.mark.parametrize("number", [0, 3, 4])
def test_b_refuses_an_attempt_that_was_used(pair: Pair, number: int) -> None:
    pair[1].store.attempts.begin(4, 0, 0, MODEL)
    proposed(pair, attempt=number)
    # An owner may just have shown B a later one: the servers meet again, and nothing stops.
    with pytest.raises(PeerUnavailable, match=f"attempt {number} was used"):
        answered(pair)
    verdict = Verdict.from_bytes(pair[0].link.receive("cohort"))
    assert (verdict.used, "used before" in verdict.refusal) == (True, True)


def test_no_more_attempts_were_opened_than_there_are_numbers_so_far(pair: Pair) -> None:
    """The larger count is kept: a false one would never go again."""
    (a, b), attempt = pair, Opened(4, 3, (), MODEL, frozenset())
    for count in (6, 5):
        a.link.send("opened", OpenedCount(count=count).to_bytes())
    with pytest.raises(PeerViolation, match="6 opened attempts of version 3"):
        count_opened(b, attempt)
    assert b.store.versions.opened(3) == 1
    count_opened(b, attempt)
    assert b.store.versions.opened(3) == 5


@pytest.mark.parametrize("tight", [0, 1], ids=["A", "B"])
def test_only_whom_both_ledgers_allow_takes_part(pair: Pair, tight: int) -> None:
    """One server's ledger has forgotten charges, or was never told: the other's stands."""
    once = record_epsilon(record_rate=0.1, noise_multiplier=2.0, participations=1, delta=1e-5)
    servers = of_task(pair, {"privacy.epsilon_limit": once * 1.001})
    servers[tight].store.attempts.learn([spent(t, t, "c1") for t in range(3)])
    others = (NAMES[0], *NAMES[2:])
    within = [server.within_budget(NAMES, 3) for server in servers]
    assert (within[tight], within[1 - tight]) == (others, tuple(NAMES))
    a, b = opened(servers, NAMES, Mock())
    assert (a, a.counted) == (b, set(others))


def test_a_takes_nobody_whom_it_did_not_propose(pair: Pair) -> None:
    pair[1].link.send("cohort", Verdict(clients=steps("c0", "c1")).to_bytes())
    with pytest.raises(PeerViolation, match="that A proposed"):
        start_attempt.propose(pair[0], 4, 3, [NAMES[0]], MODEL)
    assert states(pair[0]) == {}


def test_the_end_of_training_opens_nothing_and_is_no_end_for_a_before_b_agrees(pair: Pair) -> None:
    proposed(pair, clients=(), over=True)
    assert answered(pair) is None
    assert states(pair[1]) == {}
    pair[0].link.receive("cohort")
    a, b = at_both(lambda: start_attempt.say_over(pair[0], 4, OTHER_MODEL), lambda: answered(pair))
    for error, says in ((a, "server B refused the training's end: A's model"), (b, "A's model is")):
        assert isinstance(error, PeerViolation)
        assert says in str(error)


def spent(version: int, attempt: int, client: str) -> Fact:
    return Fact(version=version, attempt=attempt, voided=False, clients=(client,))


def tried_often(journal: Any) -> None:
    for attempt in range(10):
        journal.attempts.begin(attempt, 3, 0, MODEL)
    journal.attempts.abandon_open()


OPENINGS = range(start_attempt.OPENED_CAP)
CAUSES: dict[str, tuple[Callable[[Any], object], int]] = {
    "may have left": (lambda journal: journal.attempts.learn([spent(3, 1, "c0")]), 4),
    "were opened": (lambda journal: [journal.versions.count_opened(3, n) for n in OPENINGS], 4),
    "attempts failed": (tried_often, 12),
}


@pytest.mark.parametrize("at", [0, 1], ids=["A", "B"])
@pytest.mark.parametrize("why", CAUSES)
def test_another_attempt_needs_both_operators_word(pair: Pair, why: str, at: int) -> None:
    """Whichever server knows of the reason: neither opens before both may."""
    cause, attempt = CAUSES[why]
    servers = of_task(pair, {"training.attempts": 10})
    store: Any = servers[at].store
    cause(store)
    before = [states(each) for each in servers]
    go = partial(opened, servers, NAMES, Mock(), attempt)
    for error in go():
        assert isinstance(error, start_attempt.NeedsOperators)
        assert (error.permission, error.version) == (Permission.ATTEMPTS, 3)
        assert why in str(error)
        assert "precad allow attempts HOST:PORT --server a|b --version 3" in str(error)
    assert [states(each) for each in servers] == before
    # The word of the one who knows is what is missing: for this version, and so far.
    store.versions.allow(Permission.ATTEMPTS, 2, 100)
    store.versions.allow(Permission.WRITE_OFF, 3, 100)
    store.versions.allow(Permission.ATTEMPTS, 3, attempt - 1)
    assert isinstance(go()[0], start_attempt.NeedsOperators)
    store.versions.allow(Permission.ATTEMPTS, 3, attempt)
    a, b = go()
    assert (a.attempt, a) == (attempt, b)
    if why == "were opened":
        # With proofs nobody is asked: what a server that departs from the protocol hears in each
        # attempt, it could have computed.
        shares, proofs = (task_with({"validation": check}) for check in ("crypten", "proof"))
        assert why in start_attempt.doubt(store, shares, attempt + 1, 3)
        assert start_attempt.doubt(store, proofs, attempt + 1, 3) == ""
