"""Before round 0: the row secret, the nonces, and the roster that both must hold."""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, Self

import pytest
from tests.rig.aggregators import roster
from tests.rig.breaking import Breaking
from tests.rig.keys import signatures

from precad.aggregator.enrol.agreement import (
    accept_roster,
    agree_nonces,
    agree_set_secret,
    propose_roster,
)
from precad.aggregator.peer_link import PeerLink, memory_pair
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.server_messages import (
    EnrolmentEntry,
    RosterAnswer,
    RosterProposal,
    SignedMessage,
)
from precad.aggregator.training.session import Progress
from precad.aggregator.training.training_loop import make_aggregator
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation, StorageFailure
from precad.common.identifiers import Role, Secret
from precad.common.roster import Roster
from precad.common.task import Task
from precad.common.wire.messages import encode

A, B = Role.SERVER_A, Role.SERVER_B


@pytest.fixture(scope="module")
def task(make_task: Any) -> Task:
    made: Task = make_task()
    return made


def linked(task: Task, ends: Any = None) -> tuple[PeerLink, PeerLink]:
    a, b = (
        PeerLink(end, task.digest, max_message_bytes=1 << 20, timeout_s=LONG_S)
        for end in ends or memory_pair()
    )
    return a, b


LONG_S = 60.0
"""No answer is late here."""


def both(at_a: Callable[[], Any], at_b: Callable[[], Any]) -> tuple[Any, Any]:
    def play(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(2) as threads:
        a, b = threads.submit(play, at_a), threads.submit(play, at_b)
        return a.result(), b.result()


# --- what both servers draw together -----------------------------------------------------------

DRAWN: dict[str, Callable[[PeerLink, Role, Task], bytes]] = {
    "set-secret": lambda link, role, task: agree_set_secret(link, role, task).reveal(),
    "nonce": lambda link, role, _task: agree_nonces(link, role),
}


@pytest.mark.parametrize(("what", "length"), [("set-secret", 32), ("nonce", 64)])
def test_both_servers_get_the_same_and_every_link_another(
    task: Task, what: str, length: int
) -> None:
    seen = set()
    for _ in range(3):
        a, b = linked(task)
        at_a, at_b = both(partial(DRAWN[what], a, A, task), partial(DRAWN[what], b, B, task))
        assert at_a == at_b
        assert len(at_a) == length
        seen |= {at_a[i : i + 32] for i in range(0, length, 32)}
    assert len(seen) == 3 * length // 32


def test_the_set_secret_is_neither_servers_own_bytes(task: Task) -> None:
    seen: list[Any] = []
    a, b = linked(task, [Breaking(end, seen=seen) for end in memory_pair()])
    at_a, _ = both(lambda: agree_set_secret(a, A, task), lambda: agree_set_secret(b, B, task))
    assert len(seen) == 2
    assert at_a.reveal() not in [frame.payload for frame in seen]


def test_one_servers_bytes_alone_decide_neither(task: Task) -> None:
    """B plays the same bytes twice, as when it was put back; A's own make them others."""
    made = []
    for _ in range(2):
        a, b = linked(task)
        b.send("set-secret", bytes(32))
        b.send("nonce", bytes(32))
        made.append((agree_set_secret(a, A, task).reveal(), agree_nonces(a, A)))
    (one, nonces), (other, again) = made
    assert one != other
    assert nonces[:32] != again[:32]
    assert nonces[32:] == again[32:] == bytes(32)


@pytest.mark.parametrize("what", DRAWN)
@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_contribution_of_another_length_is_a_violation(
    task: Task, what: str, length: int
) -> None:
    a, b = linked(task)
    b.send(what, bytes(length))
    with pytest.raises(PeerViolation, match=f"{length} bytes"):
        DRAWN[what](a, A, task)


# --- the dealer --------------------------------------------------------------------------------


def made(task: Task, *epochs: bytes, newest: int = -1) -> tuple[Any, Any]:
    """What each server makes, having joined the start of the dealer that ``epochs`` names."""

    def make(role: Role, link: PeerLink, epoch: bytes) -> Aggregator:
        heard: list[int] = []
        session: Any = SimpleNamespace(
            role=role,
            task=task,
            register=SimpleNamespace(roster=lambda: OWN, cap=None),
            store=SimpleNamespace(attempts=SimpleNamespace(hear=heard.append)),
            progress=Progress(next_attempt=3),
            signatures=signatures(task.digest, role),
            coin_key=None,
        )
        no_noise: Any = None
        dealer: Any = SimpleNamespace(
            epoch=epoch, join=lambda: Secret(epoch * 32), newest_attempt=newest
        )
        made = make_aggregator(session, link, dealer, noise=no_noise)
        assert session.progress.next_attempt == max(3, newest + 1)
        # Kept: whoever is put back afterwards knows of it all the same.
        assert heard == [newest]
        return made

    a, b = linked(task)
    return both(lambda: make(A, a, epochs[0]), lambda: make(B, b, epochs[1]))


def test_servers_that_joined_one_start_of_the_dealer_go_on(task: Task) -> None:
    a, b = made(task, b"1", b"1")
    assert (a.role, b.role) == (A, B)
    assert a.set_secret == b.set_secret
    assert a.nonces == b.nonces


@pytest.mark.parametrize("newest", [-1, 2, 3, 11])
def test_an_attempt_that_the_dealer_dealt_for_is_used(task: Task, newest: int) -> None:
    """Both servers were put back: the dealer alone knows how far they had come."""
    for aggregator in made(task, b"1", b"1", newest=newest):
        assert isinstance(aggregator, Aggregator)


def test_servers_that_joined_two_starts_of_the_dealer_join_again(task: Task) -> None:
    """The keys of two starts don't fit: every opening of theirs would be a wrong number."""
    for error in made(task, b"1", b"2"):
        assert isinstance(error, PeerUnavailable)
        assert "restarted between" in str(error)


# --- the roster --------------------------------------------------------------------------------

OWN = roster(("a", 100, 0.1), ("b", 50, 0.2), ("c", 10, 0.05))


@dataclass
class Books:
    """One server's enrolments, what it froze, and the other's word on it."""

    enrolled: Roster
    frozen: bool = False
    signed: SignedMessage | None = None
    taken_back: bool = False

    def roster(self) -> Roster:
        return self.enrolled

    def freeze(self, roster: Roster, *, taken_back: bool = False) -> None:
        assert not self.frozen or roster.digest() == self.enrolled.digest()
        self.enrolled, self.frozen, self.taken_back = roster, True, taken_back

    @property
    def kept(self) -> Self:
        return self

    def roster_seal(self) -> SignedMessage | None:
        return self.signed

    def keep_roster_seal(self, signed: SignedMessage) -> None:
        self.signed = signed


def as_register(books: Any) -> Any:
    return books


def agreed_by(
    task: Task, at_a: Any, at_b: Any, least: Mapping[Role, int] = MappingProxyType({})
) -> tuple[Any, Any]:
    """What A and B end with; who is done leaves, and nobody waits for it.

    Args:
        task: the task.
        at_a, at_b: their enrolments.
        least: how many each still waits for.
    """
    ends = [Breaking(end) for end in memory_pair()]
    a, b = linked(task, ends)

    def propose() -> Roster | None:
        try:
            return propose_roster(a, at_a, task, signatures(task.digest, A), least.get(A, 0))
        finally:
            ends[0].hang_up()

    own = signatures(task.digest, B)
    return both(propose, lambda: accept_roster(b, at_b, task, own, LONG_S, least.get(B, 0)))


def proposed(task: Task, at_a: Roster, at_b: Roster) -> tuple[Any, Any, list[Roster]]:
    """What A and B end with, and what B froze."""
    here = Books(at_b)
    one, other = agreed_by(task, Books(at_a), here)
    return one, other, [here.enrolled] if here.frozen else []


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
    assert b is True
    assert a.digest() == frozen[0].digest() == agreed.digest()


@pytest.mark.parametrize("lost", [OWN, FEWER, roster(), roster(("d", 5, 0.1))])
@pytest.mark.parametrize("loser", [A, B])
def test_a_server_that_lost_the_frozen_roster_takes_it_back_on_its_own_signature(
    task: Task, loser: Role, lost: Roster
) -> None:
    books = {A: Books(OWN), B: Books(OWN)}
    agreed_by(task, books[A], books[B])
    books[loser] = Books(lost)
    a, b = agreed_by(task, books[A], books[B])
    assert b is True
    assert a.digest() == OWN.digest()
    assert books[loser].enrolled.digest() == OWN.digest()
    assert books[loser].taken_back
    assert books[loser].signed is not None


@pytest.mark.parametrize("whose", [A, B])
def test_clients_at_one_server_alone_are_none_of_those_whom_enrolment_waits_for(
    task: Task, whose: Role
) -> None:
    """A has three, one of them at A alone: a quorum of three isn't there, whoever asks for it."""
    books = {A: Books(OWN), B: Books(FEWER)}
    a, b = agreed_by(task, books[A], books[B], {whose: 3})
    assert (a, b) == (None, False)
    assert not books[A].frozen
    assert not books[B].frozen
    # The third comes to B.
    books[B] = Books(OWN)
    a, b = agreed_by(task, books[A], books[B], {whose: 3})
    assert (a.digest(), b) == (OWN.digest(), True)


@pytest.mark.parametrize("frozen", [A, B])
def test_a_frozen_roster_waits_for_nobody(task: Task, frozen: Role) -> None:
    """Whatever the settings say after a restart."""
    books = {A: Books(FEWER), B: Books(FEWER)}
    agreed_by(task, books[A], books[B])
    books[A if frozen is B else B].frozen = False
    a, b = agreed_by(task, books[A], books[B], {A: 3, B: 3} if frozen is B else {})
    assert (a.digest(), b) == (FEWER.digest(), True)


def test_nobody_is_put_on_a_roster_that_its_server_never_signed(task: Task) -> None:
    """A shows a roster of its own making, with B's signature over another one."""
    real, b = Books(FEWER), Books(FEWER)
    agreed_by(task, real, b)
    lying = Books(OWN, frozen=True, signed=real.signed)
    restored = Books(FEWER)
    agreed_by(task, lying, restored)
    assert not restored.taken_back
    assert set(restored.enrolled) <= set(FEWER)


def test_two_rosters_that_both_are_frozen_and_differ_start_nothing(task: Task) -> None:
    a, b = agreed_by(task, Books(FEWER, frozen=True), Books(OWN, frozen=True))
    assert isinstance(a, PeerViolation)
    # A is gone: B goes on waiting for an A with its own roster.
    assert isinstance(b, PeerUnavailable)


@pytest.mark.parametrize("names", [("a", "stranger"), ("stranger",)])
def test_a_takes_no_roster_but_of_clients_that_it_proposed(
    task: Task, names: tuple[str, ...]
) -> None:
    a, b = linked(task)
    entries = tuple(EnrolmentEntry(client=n, records=100, record_rate=0.1) for n in names)
    b.send("roster", RosterAnswer(entries=entries).to_bytes())
    with pytest.raises(PeerViolation, match="that A proposed"):
        propose_roster(a, as_register(Books(OWN)), task, signatures(task.digest, A))


@pytest.mark.parametrize("claim", [(10_000, 0.1), (100, 0.11), (100, 1e-15), (100, 0.3)])
def test_a_claim_that_the_task_does_not_allow_costs_its_client_alone(
    task: Task, claim: tuple[int, float]
) -> None:
    """However it got into both servers' stores: an older version's, or a meddled one's."""
    held = roster(("a", *claim), ("b", 50, 0.2))
    a, b, frozen = proposed(task, held, held)
    assert b is True
    assert a.digest() == frozen[0].digest() == roster(("b", 50, 0.2)).digest()


def test_b_refuses_too_few_clients(make_task: Any) -> None:
    task = make_task(8, {"enrolment.min_clients": 4})
    a, b, frozen = proposed(task, OWN, roster(("a", 100, 0.1)))
    assert frozen == []
    assert isinstance(b, Misconfiguration)
    assert isinstance(a, PeerViolation)


def test_b_refuses_a_roster_that_names_a_client_twice(task: Task) -> None:
    a, b = linked(task)
    entry = EnrolmentEntry(client="a", records=100, record_rate=0.1)
    a.send("roster", RosterProposal(entries=(entry, entry)).to_bytes())
    with pytest.raises(PeerViolation, match="twice"):
        accept_roster(
            b, as_register(Books(OWN)), task, signatures(task.digest, B), timeout_s=LONG_S
        )
    assert "twice" in RosterAnswer.from_bytes(a.receive("roster")).refusal


@pytest.mark.parametrize(
    "error",
    [StorageFailure("the disk is full"), TimeoutError(), AssertionError(), KeyboardInterrupt()],
)
@pytest.mark.parametrize("where", ["roster", "freeze", "roster_seal"])
def test_a_b_that_fails_by_itself_is_away_and_neither_agrees_nor_disagrees(
    task: Task, error: BaseException, where: str
) -> None:
    """A tries again, as after a cut link; only what the two disagree about stops it."""

    class Failing(Books):
        def __getattribute__(self, name: str) -> Any:
            if name == where:
                raise error
            return super().__getattribute__(name)

    frozen = where == "roster_seal"
    at_a: Any = Books(OWN, frozen)
    at_b: Any = Failing(OWN, frozen)
    ends = [Breaking(end) for end in memory_pair()]
    a, b = linked(task, ends)
    entry = EnrolmentEntry(client="a", records=100, record_rate=0.1)
    a.send("roster", RosterProposal(entries=(entry,)).to_bytes())
    with pytest.raises(type(error)):
        accept_roster(b, at_b, task, signatures(task.digest, B), timeout_s=LONG_S)
    ends[1].hang_up()
    with pytest.raises(PeerUnavailable, match="hung up"):
        propose_roster(a, at_a, task, signatures(task.digest, A))
    assert at_a.frozen == frozen


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"records": 0}, "records"),
        ({"record_rate": 1.5}, "record_rate"),
        ({"record_rate": math.nan}, "record_rate"),
        ({"client": "A"}, "client"),
    ],
)
def test_an_unreadable_roster_is_a_violation_that_names_the_field(
    task: Task, entry: dict[str, Any], field: str
) -> None:
    a, b = linked(task)
    good = {"client": "a", "records": 1, "record_rate": 0.1}
    a.send("roster", encode("RosterProposal", {"entries": [good | entry]}))
    with pytest.raises(PeerViolation, match=rf"RosterProposal .*: entries\.0\.{field}: "):
        accept_roster(
            b, as_register(Books(OWN)), task, signatures(task.digest, B), timeout_s=LONG_S
        )
