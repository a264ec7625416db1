"""Opening a round: who is drawn, and what B refuses of A's proposal."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.cohort import select_cohort
from precad.common.aggregator.round.journal import AttemptState
from precad.common.aggregator.round.messages import Cohort, Verdict
from precad.common.aggregator.round.opening import answer, propose, require_enough, say_over
from precad.common.aggregator.store import Store, open_store
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.link import PeerLink, memory_pair
from precad.common.secret import Secret
from precad.common.task import Task

MODEL, OTHER_MODEL = Digest(b"\1" * 32), Digest(b"\2" * 32)
NAMES = [ClientId(f"c{i}") for i in range(5)]


def roster(names: list[ClientId]) -> Roster:
    return Roster({name: Enrolment(name, 100, 0.1) for name in names})


class _Unused:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"opening a round needs no {name}")


def states(server: Aggregator) -> dict[int, AttemptState]:
    assert isinstance(server.journal, Store)
    return server.journal.states()


@pytest.fixture
def pair(make_task: Callable[..., Task], tmp_path: Path) -> tuple[Aggregator, Aggregator]:
    task = make_task()
    made = []
    for role, end in zip((Role.SERVER_A, Role.SERVER_B), memory_pair(), strict=True):
        aggregator = Aggregator(
            task=task,
            role=role,
            roster=roster(NAMES),
            link=PeerLink(end, task.digest, max_message_bytes=1 << 20, timeout_s=5),
            dealing=_Unused(),
            dealer_key=Secret(bytes(32)),
            row_secret=Secret(bytes(32)),
            noise=_Unused(),
            journal=open_store(f"sqlite:///{tmp_path}/{role.value}.db", task, role),
        )
        made.append(aggregator)
    return made[0], made[1]


def opened(pair: tuple[Aggregator, Aggregator], cohort: list[ClientId], at_b: Any) -> Any:
    """What A's and B's sides return or raise."""

    def play(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except PeerViolation as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        a = threads.submit(play, lambda: propose(pair[0], 4, 3, cohort, MODEL))
        b = threads.submit(play, lambda: answer(pair[1], 3, MODEL, before_agreeing=at_b))
        return a.result(), b.result()


def test_both_open_the_same_round(pair: tuple[Aggregator, Aggregator]) -> None:
    told = []
    a, b = opened(pair, [NAMES[3], NAMES[0]], lambda *given: told.append(given))
    assert a == b
    assert (a.attempt, a.version, a.cohort, a.model) == (4, 3, (NAMES[0], NAMES[3]), MODEL)
    assert told == [(4, (NAMES[0], NAMES[3]), MODEL)]
    for server in pair:
        assert states(server) == {4: AttemptState.OPEN}


def test_an_empty_cohort_is_a_round(pair: tuple[Aggregator, Aggregator]) -> None:
    a, b = opened(pair, [], lambda *_: None)
    assert a == b
    assert a.cohort == ()


def never(*_: object) -> None:
    raise AssertionError("a refused round must not open")


def refused(pair: tuple[Aggregator, Aggregator], proposal: Cohort) -> tuple[PeerViolation, str]:
    """B's error, and what it tells A, about a proposal that an honest A wouldn't make."""
    link = pair[0].link
    link.send("cohort", proposal.to_bytes())
    with pytest.raises(PeerViolation) as violation:
        answer(pair[1], 3, MODEL, before_agreeing=never)
    assert states(pair[1]) == {}
    return violation.value, Verdict.from_bytes(link.receive("cohort")).refusal


@pytest.mark.parametrize(
    ("clients", "model", "words"),
    [
        (("c0", "stranger"), MODEL, "enrolled"),
        (("stranger",), MODEL, "stranger"),
        (("c0", "c1", "c0"), MODEL, "twice"),
        (("c0",), OTHER_MODEL, str(OTHER_MODEL)),
    ],
)
def test_b_refuses_and_says_why(
    pair: tuple[Aggregator, Aggregator], clients: tuple[str, ...], model: Digest, words: str
) -> None:
    error, told = refused(pair, Cohort(attempt=4, clients=clients, model=str(model)))
    assert words in str(error)
    assert words in told


@pytest.mark.parametrize("number", [0, 3, 4])
def test_b_refuses_an_attempt_that_was_used(
    pair: tuple[Aggregator, Aggregator], number: int
) -> None:
    pair[1].journal.begin_attempt(4, 0, 0, MODEL)
    link = pair[0].link
    link.send("cohort", Cohort(attempt=number, clients=("c0",), model=str(MODEL)).to_bytes())
    with pytest.raises(PeerViolation, match=f"attempt {number} was used"):
        answer(pair[1], 3, MODEL, before_agreeing=never)
    assert "used before" in Verdict.from_bytes(link.receive("cohort")).refusal


def test_b_refuses_clients_at_their_privacy_limit(
    pair: tuple[Aggregator, Aggregator], make_task: Callable[..., Task]
) -> None:
    limited = make_task(8, {"privacy.epsilon_limit": 1e-6})
    at_b = dataclasses.replace(pair[1], task=limited)
    error, told = refused((pair[0], at_b), Cohort(attempt=4, clients=("c0",), model=str(MODEL)))
    assert "privacy limit" in str(error)
    assert "c0" in told


def test_a_learns_of_the_refusal(pair: tuple[Aggregator, Aggregator]) -> None:
    a, b = opened(pair, [NAMES[0], ClientId("stranger")], never)
    assert isinstance(a, PeerViolation)
    assert isinstance(b, PeerViolation)
    assert "stranger" in str(a)
    assert states(pair[0]) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"attempt":4,"clients":["../x"],"model":"' + b"00" * 32 + b'"}',
        b'{"clients":3}',
        b"\xff",
    ],
)
def test_an_unreadable_proposal_is_a_violation(
    pair: tuple[Aggregator, Aggregator], data: bytes
) -> None:
    pair[0].link.send("cohort", data)
    with pytest.raises(PeerViolation, match="Cohort"):
        answer(pair[1], 3, MODEL, before_agreeing=never)


def test_the_end_of_training_opens_nothing(pair: tuple[Aggregator, Aggregator]) -> None:
    pair[0].link.send(
        "cohort", Cohort(attempt=4, clients=(), model=str(MODEL), over=True).to_bytes()
    )
    assert answer(pair[1], 3, MODEL, before_agreeing=never) is None
    assert states(pair[1]) == {}


def test_the_end_of_training_is_no_end_for_a_before_b_agrees(
    pair: tuple[Aggregator, Aggregator],
) -> None:
    with ThreadPoolExecutor(1) as threads:
        at_a = threads.submit(say_over, pair[0], 4, OTHER_MODEL)
        with pytest.raises(PeerViolation, match="A's model is"):
            answer(pair[1], 3, MODEL, before_agreeing=never)
        with pytest.raises(PeerViolation, match="server B refused the training's end: A's model"):
            at_a.result()


# --- selection ---------------------------------------------------------------------------------

MANY = roster([ClientId(f"c{i}") for i in range(20_000)])


@pytest.mark.parametrize("rate", [0.01, 0.25, 0.5, 0.99])
def test_clients_are_drawn_at_the_rate(rate: float) -> None:
    """Two-sided binomial test; a right sampler fails once in a million."""
    drawn = len(select_cohort(MANY, rate))
    assert stats.binomtest(drawn, len(MANY), rate).pvalue > 1e-6
    # The test can fail: at half the odds.
    wrong = rate / (2 - rate)
    assert stats.binomtest(drawn, len(MANY), wrong).pvalue < 1e-6


def test_all_are_drawn_at_rate_one() -> None:
    assert select_cohort(MANY, 1.0) == tuple(MANY)


def test_a_cohort_is_distinct_enrolled_clients_in_order() -> None:
    drawn = select_cohort(MANY, 0.3)
    assert set(drawn) <= set(MANY)
    assert list(drawn) == sorted(set(drawn))


def test_each_client_is_drawn_by_itself() -> None:
    """Neither neighbours nor rounds depend on each other."""
    few = roster(NAMES[:2])
    counts = [[0, 0], [0, 0]]
    previous = False
    runs = [[0, 0], [0, 0]]
    for _ in range(4000):
        drawn = select_cohort(few, 0.5)
        first, second = NAMES[0] in drawn, NAMES[1] in drawn
        counts[first][second] += 1
        runs[previous][first] += 1
        previous = first
    for table in (counts, runs):
        assert stats.chi2_contingency(table).pvalue > 1e-6


def test_too_few_clients_do_not_start() -> None:
    require_enough(roster(NAMES[:3]), 3)
    with pytest.raises(Misconfiguration) as few:
        require_enough(roster(NAMES[:2]), 3)
    assert few.value.field == "enrolment.min_clients"
