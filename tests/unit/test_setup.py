"""Before round 0: greeting, the row secret, and the roster that both must hold."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from precad.common.aggregator.enrol.agreement import (
    accept_roster,
    agree_row_secret,
    greet,
    propose_roster,
)
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.messages import (
    EnrolmentEntry,
    Position,
    RosterAnswer,
    RosterProposal,
)
from precad.common.aggregator.training.conduct import make_aggregator
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.link import PeerLink, memory_pair
from precad.common.secret import Secret
from precad.common.task import Task

MODEL = Digest(b"\1" * 32)
A, B = Role.SERVER_A, Role.SERVER_B


@pytest.fixture(scope="module")
def task(make_task: Any) -> Task:
    made: Task = make_task()
    return made


def links(task: Task) -> tuple[PeerLink, PeerLink]:
    a, b = (
        PeerLink(end, task.digest, max_message_bytes=1 << 20, timeout_s=5) for end in memory_pair()
    )
    return a, b


def both(at_a: Callable[[], Any], at_b: Callable[[], Any]) -> tuple[Any, Any]:
    def play(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(2) as threads:
        a, b = threads.submit(play, at_a), threads.submit(play, at_b)
        return a.result(), b.result()


def roster(*claims: tuple[str, int, float]) -> Roster:
    return Roster({ClientId(n): Enrolment(ClientId(n), r, p) for n, r, p in claims})


# --- greeting ----------------------------------------------------------------------------------


def position(role: Literal["server-a", "server-b"], version: int) -> Position:
    return Position(role=role, version=version, model=str(MODEL), next_attempt=version)


def test_servers_tell_each_other_where_they_stand(task: Task) -> None:
    a, b = links(task)
    at_a, at_b = position("server-a", 3), position("server-b", 4)
    assert both(lambda: greet(a, at_a), lambda: greet(b, at_b)) == (at_b, at_a)


def test_servers_of_one_role_refuse_each_other(task: Task) -> None:
    a, b = links(task)
    same = position("server-a", 0)
    for error in both(lambda: greet(a, same), lambda: greet(b, same)):
        assert isinstance(error, PeerViolation)
        assert "server-a too" in str(error)


# --- the row secret ----------------------------------------------------------------------------


def secret(task: Task) -> bytes:
    a, b = links(task)
    at_a, at_b = both(lambda: agree_row_secret(a, A, task), lambda: agree_row_secret(b, B, task))
    assert at_a == at_b
    assert len(at_a) == 32
    revealed: bytes = at_a.reveal()
    return revealed


def test_both_servers_get_the_same_row_secret_and_every_link_another(task: Task) -> None:
    assert len({secret(task) for _ in range(10)}) == 10


def test_the_row_secret_is_neither_servers_own_bytes(task: Task) -> None:
    seen = []

    class Spy:
        def __init__(self, end: Any) -> None:
            self._end = end

        def put(self, frame: Any) -> None:
            seen.append(frame.payload)
            self._end.put(frame)

        def get(self, timeout_s: float) -> Any:
            return self._end.get(timeout_s)

        def require_alive(self) -> None:
            self._end.require_alive()

    ends = [Spy(end) for end in memory_pair()]
    a, b = (PeerLink(e, task.digest, max_message_bytes=64, timeout_s=5) for e in ends)
    at_a, _ = both(lambda: agree_row_secret(a, A, task), lambda: agree_row_secret(b, B, task))
    assert len(seen) == 2
    assert at_a.reveal() not in seen


def test_one_servers_bytes_alone_do_not_decide_the_row_secret(task: Task) -> None:
    """B plays the same bytes twice; A's own make the secret another."""
    made = set()
    for _ in range(2):
        a, b = links(task)
        b.send("row-secret", bytes(32))
        made.add(agree_row_secret(a, A, task).reveal())
    assert len(made) == 2


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_contribution_of_another_length_is_a_violation(task: Task, length: int) -> None:
    a, b = links(task)
    b.send("row-secret", bytes(length))
    with pytest.raises(PeerViolation, match=f"{length} bytes"):
        agree_row_secret(a, A, task)


# --- the dealer --------------------------------------------------------------------------------


def made(task: Task, *epochs: bytes) -> tuple[Any, Any]:
    """What each server makes, having joined the start of the dealer that ``epochs`` names."""

    def make(role: Role, link: PeerLink, epoch: bytes) -> Aggregator:
        session: Any = SimpleNamespace(
            role=role, task=task, register=SimpleNamespace(roster=lambda: OWN), store=None
        )
        no_noise: Any = None
        dealer: Any = SimpleNamespace(epoch=epoch, join=lambda: Secret(epoch * 32))
        return make_aggregator(session, link, dealer, noise=no_noise)

    a, b = links(task)
    return both(lambda: make(A, a, epochs[0]), lambda: make(B, b, epochs[1]))


def test_servers_that_joined_one_start_of_the_dealer_go_on(task: Task) -> None:
    a, b = made(task, b"1", b"1")
    assert (a.role, b.role) == (A, B)
    assert a.row_secret == b.row_secret


def test_servers_that_joined_two_starts_of_the_dealer_join_again(task: Task) -> None:
    """The keys of two starts don't fit: every opening of theirs would be a wrong number."""
    for error in made(task, b"1", b"2"):
        assert isinstance(error, PeerUnavailable)
        assert "restarted between" in str(error)


# --- the roster --------------------------------------------------------------------------------

OWN = roster(("a", 100, 0.1), ("b", 50, 0.2), ("c", 10, 0.05))


class AtB:
    """B's enrolments, and what it froze."""

    def __init__(self, enrolled: Roster) -> None:
        self.enrolled = enrolled
        self.frozen: list[Roster] = []

    def accept(self, link: PeerLink, task: Task) -> None:
        accept_roster(link, lambda: self.enrolled, self.frozen.append, task, timeout_s=5)


def proposed(task: Task, at_a: Roster, at_b: Roster) -> tuple[Any, Any, list[Roster]]:
    """What A and B end with, and what B froze."""
    a, b = links(task)
    here = AtB(at_b)
    least = task.enrolment.min_clients
    one, other = both(lambda: propose_roster(a, at_a, least), lambda: here.accept(b, task))
    return one, other, here.frozen


FEWER = roster(("a", 100, 0.1), ("c", 10, 0.05))


@pytest.mark.parametrize(
    ("at_a", "at_b", "agreed"),
    [
        (OWN, OWN, OWN),
        (FEWER, OWN, FEWER),
        (OWN, FEWER, FEWER),
        # Other claims at the other server: left out, whoever lied where.
        (roster(("a", 101, 0.1), ("b", 50, 0.2)), OWN, roster(("b", 50, 0.2))),
        (roster(("a", 100, 0.11), ("c", 10, 0.05)), OWN, roster(("c", 10, 0.05))),
        (roster(("a", 100, 0.1), ("stranger", 1, 0.1)), OWN, roster(("a", 100, 0.1))),
    ],
)
def test_the_roster_is_what_both_servers_hold_alike(
    task: Task, at_a: Roster, at_b: Roster, agreed: Roster
) -> None:
    """One client that enrols at one server only, or differently, stops nobody else."""
    a, b, frozen = proposed(task, at_a, at_b)
    assert b is None
    assert a.digest() == frozen[0].digest() == agreed.digest()


def test_a_frozen_roster_that_the_other_lost_somebody_of_stops_both(task: Task) -> None:
    a, b = links(task)

    def freeze(_roster: Roster) -> None:
        raise PeerViolation("the roster is frozen and can't change")

    one, other = both(
        lambda: propose_roster(a, FEWER, 1),
        lambda: accept_roster(b, lambda: OWN, freeze, task, timeout_s=5),
    )
    assert "frozen" in str(one)
    assert "frozen" in str(other)


@pytest.mark.parametrize("names", [("a", "a"), ("a", "stranger")])
def test_a_takes_no_roster_but_of_clients_that_it_proposed(
    task: Task, names: tuple[str, ...]
) -> None:
    a, b = links(task)
    b.send("roster", RosterAnswer(clients=names).to_bytes())
    with pytest.raises(PeerViolation, match="that A proposed"):
        propose_roster(a, OWN, 1)


@pytest.mark.parametrize("claim", [(10_000, 0.1), (100, 0.11), (100, 1e-15), (100, 0.3)])
def test_a_claim_that_the_task_does_not_allow_costs_its_client_alone(
    task: Task, claim: tuple[int, float]
) -> None:
    """However it got into both servers' stores: an older version's, or a meddled one's."""
    held = roster(("a", *claim), ("b", 50, 0.2))
    a, b, frozen = proposed(task, held, held)
    assert b is None
    assert a.digest() == frozen[0].digest() == roster(("b", 50, 0.2)).digest()


def test_b_refuses_too_few_clients(make_task: Any) -> None:
    task = make_task(8, {"enrolment.min_clients": 4})
    a, b, frozen = proposed(task, OWN, roster(("a", 100, 0.1)))
    assert frozen == []
    assert isinstance(b, Misconfiguration)
    assert isinstance(a, PeerViolation)


def test_b_refuses_a_roster_that_names_a_client_twice(task: Task) -> None:
    a, b = links(task)
    entry = EnrolmentEntry(client="a", records=100, record_rate=0.1)
    a.send("roster", RosterProposal(entries=(entry, entry)).to_bytes())
    with pytest.raises(PeerViolation, match="twice"):
        AtB(OWN).accept(b, task)
    assert "twice" in RosterAnswer.from_bytes(a.receive("roster")).refusal


@pytest.mark.parametrize("error", [TimeoutError(), AssertionError(), KeyboardInterrupt()])
def test_a_b_that_fails_without_a_word_never_seems_to_agree(
    task: Task, error: BaseException
) -> None:
    a, b = links(task)

    def fail() -> Roster:
        raise error

    entry = EnrolmentEntry(client="a", records=100, record_rate=0.1)
    a.send("roster", RosterProposal(entries=(entry,)).to_bytes())
    with pytest.raises(type(error)):
        accept_roster(b, fail, AtB(OWN).frozen.append, task, timeout_s=5)
    assert RosterAnswer.from_bytes(a.receive("roster")).refusal


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"entries":[{"client":"a","records":0,"record_rate":0.1}]}',
        b'{"entries":[{"client":"a","records":1,"record_rate":1.5}]}',
        b'{"entries":[{"client":"a","records":1,"record_rate":NaN}]}',
        b'{"entries":[{"client":"A","records":1,"record_rate":0.1}]}',
        b'{"entries":[],"more":1}',
    ],
)
def test_an_unreadable_roster_is_a_violation(task: Task, data: bytes) -> None:
    a, b = links(task)
    a.send("roster", data)
    with pytest.raises(PeerViolation, match="RosterProposal"):
        AtB(OWN).accept(b, task)
