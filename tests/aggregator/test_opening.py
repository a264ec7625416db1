"""Opening and settling an attempt: whom both ledgers allow, and what servers refuse."""

import dataclasses
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TaskMaker
from tests.rig.aggregators import aggregator
from tests.rig.rounds import roster_of

from precad.accounting.exact import record_epsilon
from precad.aggregator.collect.matching import Places
from precad.aggregator.peer_link import memory_pair
from precad.aggregator.release import aggregate
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.rounds.start_attempt import (
    OPENED_CAP,
    NeedsOperators,
    answer,
    doubt,
    propose,
    say_over,
)
from precad.aggregator.rounds.states import Matched, Opened, Summed
from precad.aggregator.server_messages import Cohort, Fact, OpenedCount, Verdict
from precad.aggregator.store import Store, open_store
from precad.aggregator.store.schema import AttemptState, Permission
from precad.aggregator.training.training_loop import count_opened
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import ATTEMPTS, ClientId, Digest, Role, Secret
from precad.common.wire.messages import encode

MODEL, OTHER_MODEL = Digest(b"\1" * 32), Digest(b"\2" * 32)
Pair = tuple[Aggregator, Aggregator]
NAMES = [ClientId(f"c{i}") for i in range(5)]


def states(server: Aggregator) -> dict[int, AttemptState]:
    assert isinstance(server.store, Store)
    return server.store.attempts.states()


@pytest.fixture
def pair(make_task: TaskMaker, tmp_path: Path) -> Pair:
    task = make_task()
    made = []
    for role, end in zip((Role.SERVER_A, Role.SERVER_B), memory_pair(), strict=True):
        store = open_store(f"sqlite:///{tmp_path}/{role.value}.db", task, role)
        given = {"roster": roster_of(NAMES), "store": store, "set_secret": Secret(bytes(32))}
        made.append(aggregator(task, role, end, **given))
    return made[0], made[1]


def opened(pair: Pair, cohort: list[ClientId], at_b: Any, attempt: int = 4) -> Any:
    """What A's and B's sides return or raise; B's coin drew everybody."""

    def play(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (PeerViolation, NeedsOperators) as error:
            return error

    calls = (
        lambda: propose(pair[0], attempt, 3, cohort, MODEL),
        lambda: answer(pair[1], 3, NAMES, MODEL, before_agreeing=at_b),
    )
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(play, calls))


def test_both_open_the_same_round(pair: Pair) -> None:
    told = []
    a, b = opened(pair, [NAMES[3], NAMES[0]], lambda *given: told.append(given))
    assert a == b
    assert (a.attempt, a.version, a.cohort, a.model) == (4, 3, (NAMES[0], NAMES[3]), MODEL)
    assert a.counted == frozenset(a.cohort)
    assert told == [(b,)]
    for server in pair:
        assert states(server) == {4: AttemptState.OPEN}


def never(*_: object) -> None:
    raise AssertionError("a refused round must not open")


def steps(*clients: str) -> tuple[int, ...]:
    return Places(NAMES).steps(map(ClientId, clients))


def proposed(pair: Pair, **proposal: Any) -> None:
    """A sends it, which may be dishonest."""
    honest: dict[str, Any] = {"attempt": 4, "clients": steps("c0"), "model": str(MODEL)}
    pair[0].link.send("cohort", Cohort(**honest | proposal).to_bytes())


def refuses(pair: Pair, words: str) -> None:
    """B does, for four drawn clients, and tells A why."""
    with pytest.raises(PeerViolation, match=words):
        answer(pair[1], 3, NAMES[:4], MODEL, before_agreeing=never)
    assert states(pair[1]) == {}


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        ({"clients": steps("c0", "c4")}, r"coin didn't draw \['c4'\]"),
        ({"model": str(OTHER_MODEL)}, str(OTHER_MODEL)),
    ],
)
def test_b_refuses_and_says_why(pair: Pair, proposal: dict[str, Any], words: str) -> None:
    proposed(pair, **proposal)
    refuses(pair, words)
    assert re.search(words, Verdict.from_bytes(pair[0].link.receive("cohort")).refusal)


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        # Behind the last, and nobody.
        ({"clients": (1, 1, 4)}, "isn't among 5 clients"),
        ({"clients": (6,)}, "isn't among 5 clients"),
        # Else a server that cheats would use up all numbers at once, for ever.
        ({"attempt": ATTEMPTS}, "the last number that there is"),
    ],
)
def test_b_takes_no_part_in_what_can_not_be(
    pair: Pair, proposal: dict[str, Any], words: str
) -> None:
    proposed(pair, **proposal)
    refuses(pair, words)


@pytest.mark.parametrize("number", [0, 3, 4])
def test_b_refuses_an_attempt_that_was_used(pair: Pair, number: int) -> None:
    pair[1].store.attempts.begin(4, 0, 0, MODEL)
    proposed(pair, attempt=number)
    # An owner may just have shown B a later one: the servers meet again, and nothing stops.
    with pytest.raises(PeerUnavailable, match=f"attempt {number} was used"):
        answer(pair[1], 3, NAMES, MODEL, before_agreeing=never)
    verdict = Verdict.from_bytes(pair[0].link.receive("cohort"))
    assert "used before" in verdict.refusal
    assert verdict.used


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_attempts_were_opened_than_there_are_numbers_so_far(pair: Pair, more: int) -> None:
    """The larger count is kept: a false one would never go again."""
    server, number = pair[1], 4
    pair[0].link.send("opened", OpenedCount(count=number + 1 + more).to_bytes())
    attempt = Opened(number, 3, (), MODEL, frozenset())
    if more:
        with pytest.raises(PeerViolation, match=f"{number + 2} opened attempts of version 3"):
            count_opened(server, attempt)
        assert server.store.versions.opened(3) == 1
    else:
        count_opened(server, attempt)
        assert server.store.versions.opened(3) == number + 1


def test_a_proposal_that_names_one_twice_or_a_number_beyond_all_is_none() -> None:
    good = {"attempt": 4, "clients": [1], "model": str(MODEL)}
    for field, bad in (("clients", [1, 0]), ("attempt", ATTEMPTS + 1), ("model", "00")):
        with pytest.raises(PeerViolation, match=f"unreadable Cohort .*: {field}"):
            Cohort.from_bytes(encode("Cohort", good | {field: bad}))


@pytest.mark.parametrize("tight", [0, 1], ids=["A", "B"])
def test_only_whom_both_ledgers_allow_takes_part(
    pair: Pair, make_task: TaskMaker, tight: int
) -> None:
    """One server's ledger has forgotten charges, or was never told: the other's stands."""
    once = record_epsilon(record_rate=0.1, noise_multiplier=2.0, participations=1, delta=1e-5)
    limit = once * 1.001
    task = make_task(8, {"privacy.epsilon_limit": limit})
    servers = [dataclasses.replace(each, task=task, cap=PrivacyCap(task)) for each in pair]
    fact = Fact(version=0, attempt=0, voided=False, clients=("c1",))
    several = [fact.model_copy(update={"version": t, "attempt": t}) for t in range(3)]
    journal = servers[tight].store
    journal.attempts.learn(several)
    assert journal.ledger.participations() == {NAMES[1]: 3}
    assert servers[tight].within_budget(NAMES, 3) == (NAMES[0], *NAMES[2:])
    assert servers[1 - tight].within_budget(NAMES, 3) == tuple(NAMES)
    a, b = opened((servers[0], servers[1]), NAMES, lambda _: None)
    assert a == b
    assert a.counted == {NAMES[0], *NAMES[2:]}


def test_with_cover_everybody_uploads_and_the_drawn_count(pair: Pair, make_task: TaskMaker) -> None:
    task = make_task(8, {"privacy.cover_uploads": True})
    at_a, at_b = (dataclasses.replace(each, task=task) for each in pair)
    a, b = opened((at_a, at_b), [NAMES[3], NAMES[0]], lambda _: None)
    assert a == b
    assert a.cohort == tuple(NAMES)
    assert a.counted == {NAMES[0], NAMES[3]}


def test_a_takes_nobody_whom_it_did_not_propose(pair: Pair) -> None:
    pair[1].link.send("cohort", Verdict(clients=steps("c0", "c1")).to_bytes())
    with pytest.raises(PeerViolation, match="that A proposed"):
        propose(pair[0], 4, 3, [NAMES[0]], MODEL)
    assert states(pair[0]) == {}


NO_PLACES = b'{"attempt":4,"clients":["../x"],"model":"' + b"00" * 32 + b'"}'


@pytest.mark.parametrize("data", [b"", b"{}", NO_PLACES, b'{"clients":3}', b"\xff"])
def test_an_unreadable_proposal_is_a_violation(pair: Pair, data: bytes) -> None:
    pair[0].link.send("cohort", data)
    with pytest.raises(PeerViolation, match="Cohort"):
        answer(pair[1], 3, NAMES, MODEL, before_agreeing=never)


def test_the_end_of_training_opens_nothing(pair: Pair) -> None:
    proposed(pair, clients=(), over=True)
    assert answer(pair[1], 3, NAMES, MODEL, before_agreeing=never) is None
    assert states(pair[1]) == {}


def test_the_end_of_training_is_no_end_for_a_before_b_agrees(pair: Pair) -> None:
    with ThreadPoolExecutor(1) as threads:
        at_a = threads.submit(say_over, pair[0], 4, OTHER_MODEL)
        with pytest.raises(PeerViolation, match="A's model is"):
            answer(pair[1], 3, NAMES, MODEL, before_agreeing=never)
        with pytest.raises(PeerViolation, match="server B refused the training's end: A's model"):
            at_a.result()


# --- the operators' word -----------------------------------------------------------------------


def may_have_left(journal: Any) -> None:
    journal.attempts.learn([Fact(version=3, attempt=1, voided=False, clients=("c0",))])


def opened_often(journal: Any) -> None:
    for attempt in range(OPENED_CAP):
        journal.versions.count_opened(3, attempt)


def tried_often(journal: Any, tries: int = 10) -> None:
    for attempt in range(tries):
        journal.attempts.begin(attempt, 3, 0, MODEL)
    journal.attempts.abandon_open()


def test_with_proofs_attempts_are_counted_and_nobody_is_asked(
    pair: Pair, make_task: TaskMaker
) -> None:
    """What a server that departs from the protocol hears in each, it could have computed."""
    journal: Any = pair[0].store
    opened_often(journal)
    assert journal.versions.opened(3) == OPENED_CAP
    shares, proofs = (make_task(8, {"validation": check}) for check in ("crypten", "proof"))
    assert "were opened" in doubt(journal, shares, 4, 3)
    assert doubt(journal, proofs, 4, 3) == ""


CAUSES = {
    "may have left": (may_have_left, 4),
    "were opened": (opened_often, 4),
    "attempts failed": (tried_often, 12),
}


@pytest.mark.parametrize("at", [0, 1], ids=["A", "B"])
@pytest.mark.parametrize("why", CAUSES)
def test_another_attempt_needs_both_operators_word(
    pair: Pair, make_task: TaskMaker, why: str, at: int
) -> None:
    """Whichever server knows of the reason: neither opens before both may."""
    cause, attempt = CAUSES[why]
    task = make_task(8, {"training.attempts": 10})
    servers = [dataclasses.replace(each, task=task, cap=PrivacyCap(task)) for each in pair]
    cause(servers[at].store)
    before = [states(each) for each in servers]

    def go() -> Any:
        return opened((servers[0], servers[1]), NAMES, lambda _: None, attempt)

    for error in go():
        assert isinstance(error, NeedsOperators)
        assert (error.permission, error.version) == (Permission.ATTEMPTS, 3)
        assert why in str(error)
        assert "precad allow attempts HOST:PORT --server a|b --version 3" in str(error)
    assert [states(each) for each in servers] == before
    # The word of the one who knows is what is missing; it reaches no further than it says.
    servers[at].store.versions.allow(Permission.ATTEMPTS, 3, attempt - 1)
    assert isinstance(go()[0], NeedsOperators)
    servers[at].store.versions.allow(Permission.ATTEMPTS, 3, attempt)
    a, b = go()
    assert a == b
    assert a.attempt == attempt


def test_a_word_for_another_version_allows_nothing(pair: Pair) -> None:
    opened_often(pair[0].store)
    pair[0].store.versions.allow(Permission.ATTEMPTS, 2, 100)
    pair[0].store.versions.allow(Permission.WRITE_OFF, 3, 100)
    for error in opened(pair, NAMES, never):
        assert isinstance(error, NeedsOperators)


# --- one valid set -------------------------------------------------------------------------------


def settled(pair: Pair, *numbers: int) -> list[Summed | PeerViolation]:
    """What each server makes of an empty round, under the number that it takes it for."""

    def play(server: Aggregator, number: int) -> Summed | PeerViolation:
        opened = Opened(number, 3, (ClientId("c0"),), MODEL, frozenset())
        try:
            return aggregate(server, Matched(opened, {}, {}))
        except PeerViolation as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(play, pair, numbers))


def test_servers_that_settle_one_round_agree_on_its_set(pair: Pair) -> None:
    a, b = settled(pair, 7, 7)
    assert isinstance(a, Summed)
    assert isinstance(b, Summed)
    assert a.counted.valid_set == b.counted.valid_set


def test_the_same_clients_of_another_round_are_another_set(pair: Pair) -> None:
    """Else a round's agreement, or its charge, would pass for the next one's."""
    for error in settled(pair, 7, 8):
        assert isinstance(error, PeerViolation)
        assert "'valid-set'" in str(error)
