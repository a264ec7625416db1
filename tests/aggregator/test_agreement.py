"""Before round 0: the row secret, the nonces, and the roster that both must hold."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import pytest
from tests.rig.aggregators import PATIENCE_S, link_over, roster
from tests.rig.keys import signatures
from tests.rig.memory_link import memory_pair
from tests.rig.parties import Breaking, at_both
from tests.rig.tasks import task_with

from precad.aggregator.enrol import agreement
from precad.aggregator.enrol.register import Register
from precad.aggregator.noise import NoiseSource
from precad.aggregator.peer_link import Frame, FrameTransport, PeerLink
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.server_messages import RosterAnswer, SignedMessage
from precad.aggregator.training.session import Progress
from precad.aggregator.training.training_loop import make_aggregator
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    StorageFailure,
)
from precad.common.identifiers import Role, Secret
from precad.common.roster import Roster
from precad.common.task import Task
from precad.common.wire.messages import encode

A, B = Role.SERVER_A, Role.SERVER_B
TASK = task_with({})
NO_NOISE = cast("NoiseSource", None)


def linked(ends: Sequence[FrameTransport] | None = None) -> tuple[PeerLink, PeerLink]:
    a, b = (link_over(end, TASK) for end in ends or memory_pair())
    return a, b


DRAWN: dict[str, Callable[[PeerLink, Role], bytes]] = {
    "set-secret": (
        lambda link, role: agreement.agree_set_secret(link, role, TASK).reveal()
    ),
    "nonce": agreement.agree_nonces,
}


@pytest.mark.parametrize(("what", "length"), [("set-secret", 32), ("nonce", 64)])
def test_both_servers_get_the_same_and_every_link_another(
    what: str, length: int
) -> None:
    seen, frames = set(), list[Frame]()
    for _ in range(3):
        a, b = linked([Breaking(end, seen=frames) for end in memory_pair()])
        at_a, at_b = at_both(partial(DRAWN[what], a, A), partial(DRAWN[what], b, B))
        assert (at_a, len(at_a)) == (at_b, length)
        seen |= {at_a[i : i + 32] for i in range(0, length, 32)}
    assert len(seen) == 3 * length // 32
    # The set secret is neither server's own bytes.
    assert len(frames) == 6
    assert what == "nonce" or not seen & {frame.payload for frame in frames}


def test_one_servers_bytes_alone_decide_neither() -> None:
    """B plays the same bytes twice, as when it was put back; A's own make them
    others."""
    made = []
    for _ in range(2):
        a, b = linked()
        for what, draw in DRAWN.items():
            b.send(what, bytes(32))
            made.append(draw(a, A))
    one, nonces, other, again = made
    assert one != other
    assert nonces[:32] != again[:32]
    assert nonces[32:] == again[32:] == bytes(32)


@pytest.mark.parametrize("what", DRAWN)
@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_contribution_of_another_length_is_a_violation(
    what: str, length: int
) -> None:
    a, b = linked()
    b.send(what, bytes(length))
    with pytest.raises(PeerViolation, match=f"{length} bytes"):
        DRAWN[what](a, A)


def made(*epochs: bytes, newest: int = -1) -> list[Any]:
    """What each server makes, having joined the start of the dealer that ``epochs``
    names."""

    def make(role: Role, link: PeerLink, epoch: bytes) -> Aggregator:
        session, dealer = (
            MagicMock(role=role, task=TASK, coin_key=None),
            Mock(epoch=epoch),
        )
        session.register.roster.return_value, session.progress = (
            OWN,
            Progress(next_attempt=3),
        )
        session.signatures = signatures(TASK.digest, role)
        dealer.newest_attempt, dealer.join.return_value = newest, Secret(epoch * 32)
        made = make_aggregator(session, link, dealer, noise=NO_NOISE)
        assert session.progress.next_attempt == max(3, newest + 1)
        # Kept: whoever is put back afterwards knows of it all the same.
        session.store.attempts.hear.assert_called_once_with(newest)
        return made

    return at_both(*map(partial(partial, make), (A, B), linked(), epochs))


@pytest.mark.parametrize("newest", [-1, 2, 3, 11])
def test_servers_that_joined_one_start_of_the_dealer_go_on_after_its_newest(
    newest: int,
) -> None:
    """Both servers were put back: the dealer alone knows how far they had come."""
    a, b = made(b"1", b"1", newest=newest)
    assert (a.role, a.set_secret, a.nonces) == (A, b.set_secret, b.nonces)
    # The keys of two starts don't fit: every opening of theirs would be a wrong number.
    for error in made(b"1", b"2", newest=newest):
        assert isinstance(error, PeerUnavailable)
        assert "restarted between" in str(error)


OWN = roster(("a", 100, 0.1), ("b", 50, 0.2), ("c", 10, 0.05))


@dataclass
class Books:
    """One server's enrolments, what it froze, and the other's word on it."""

    enrolled: Roster
    frozen: bool = False
    signed: SignedMessage | None = None
    taken_back: bool = False
    kept = property(lambda self: self)
    task: Task = TASK

    def roster(self) -> Roster:
        return self.enrolled

    def freeze(self, roster: Roster, *, taken_back: bool = False) -> None:
        assert not self.frozen or roster.digest() == self.enrolled.digest()
        self.enrolled, self.frozen, self.taken_back = roster, True, taken_back

    def roster_seal(self) -> SignedMessage | None:
        return self.signed

    def keep_roster_seal(self, signed: SignedMessage) -> None:
        self.signed = signed


def propose(link: PeerLink, books: Books, least: int = 0) -> Roster | None:
    return agreement.propose_roster(
        link, cast("Register", books), signatures(TASK.digest, A), least
    )


def accept(link: PeerLink, books: Books, least: int = 0, task: Task = TASK) -> bool:
    books.task = task
    return agreement.accept_roster(
        link,
        cast("Register", books),
        signatures(TASK.digest, B),
        PATIENCE_S,
        least,
    )


def agreed_by(
    at_a: Books, at_b: Books, a: int = 0, b: int = 0, task: Task = TASK
) -> list[Any]:
    """What A and B end with, each waiting for so many; nobody waits for who is done and
    leaves."""
    ends = [Breaking(end) for end in memory_pair()]
    to_b, to_a = linked(ends)

    def at_its_end() -> Roster | None:
        try:
            return propose(to_b, at_a, a)
        finally:
            ends[0].hang_up()

    return at_both(at_its_end, lambda: accept(to_a, at_b, b, task))


FEWER = roster(("a", 100, 0.1), ("c", 10, 0.05))
B_50, ONLY_B = ("b", 50, 0.2), roster(("b", 50, 0.2))


@pytest.mark.parametrize(
    ("at_a", "at_b", "agreed"),
    [
        (OWN, OWN, OWN),
        (FEWER, OWN, FEWER),
        (OWN, FEWER, FEWER),
        # Other claims at the other server: left out, whoever lied where.
        (roster(("a", 101, 0.1), B_50), OWN, ONLY_B),
        (roster(("a", 100, 0.11), ("c", 10, 0.05)), OWN, roster(("c", 10, 0.05))),
        (roster(("a", 100, 0.1), ("stranger", 1, 0.1)), OWN, roster(("a", 100, 0.1))),
        # What the task doesn't allow, however it got into both servers' stores: an
        # older version's, or a meddled one's.
        *(
            (roster(("a", *claim), B_50), roster(("a", *claim), B_50), ONLY_B)
            for claim in ((10_000, 0.1), (100, 0.11), (100, 1e-15), (100, 0.3))
        ),
    ],
)
def test_the_roster_is_what_both_hold_alike(
    at_a: Roster, at_b: Roster, agreed: Roster
) -> None:
    """One client that enrols at one server only, or differently, stops nobody else."""
    here = Books(at_b)
    a, b = agreed_by(Books(at_a), here)
    assert (b, here.frozen) == (True, True)
    assert a.digest() == here.enrolled.digest() == agreed.digest()


@pytest.mark.parametrize("lost", [OWN, FEWER, roster(), roster(("d", 5, 0.1))])
@pytest.mark.parametrize("loser", [0, 1], ids=["A", "B"])
def test_a_lost_frozen_roster_is_taken_back_on_the_own_signature(
    loser: int, lost: Roster
) -> None:
    books = [Books(OWN), Books(OWN)]
    agreed_by(books[0], books[1])
    again = books[loser] = Books(lost)
    a, b = agreed_by(books[0], books[1])
    assert (b, again.taken_back, again.signed is None) == (True, True, False)
    assert a.digest() == again.enrolled.digest() == OWN.digest()


@pytest.mark.parametrize("least", [(3, 0), (0, 3)], ids=["a", "b"])
def test_clients_at_one_server_alone_are_none_of_a_quorum(
    least: tuple[int, int],
) -> None:
    """A has three, one of them at A alone: a quorum of three isn't there, whoever asks
    for it."""
    at_a, at_b = Books(OWN), Books(FEWER)
    assert agreed_by(at_a, at_b, *least) == [None, False]
    assert (at_a.frozen, at_b.frozen) == (False, False)
    # The third comes to B.
    a, b = agreed_by(at_a, Books(OWN), *least)
    assert (a.digest(), b) == (OWN.digest(), True)


@pytest.mark.parametrize("least", [(0, 0), (3, 3)], ids=["A", "B"])
def test_a_frozen_roster_waits_for_nobody(least: tuple[int, int]) -> None:
    """Whatever the settings say after a restart: at A alone, or at B, where both would
    wait."""
    at_a, at_b = Books(FEWER), Books(FEWER)
    agreed_by(at_a, at_b)
    (at_a if any(least) else at_b).frozen = False
    a, b = agreed_by(at_a, at_b, *least)
    assert (a.digest(), b) == (FEWER.digest(), True)


def test_nobody_is_put_on_a_roster_that_its_server_never_signed() -> None:
    """A shows a roster of its own making, with B's signature over another one."""
    real, restored = Books(FEWER), Books(FEWER)
    agreed_by(real, Books(FEWER))
    agreed_by(Books(OWN, frozen=True, signed=real.signed), restored)
    assert not restored.taken_back
    assert set(restored.enrolled) <= set(FEWER)
    # Frozen ones that differ start nothing, nor do too few clients.
    a, b = agreed_by(Books(FEWER, frozen=True), Books(OWN, frozen=True))
    # A is gone: B goes on waiting for an A with its own roster.
    assert (type(a), type(b)) == (PeerViolation, PeerUnavailable)
    at_b = Books(roster(("a", 100, 0.1)))
    a, b = agreed_by(Books(OWN), at_b, task=task_with({"enrolment.min_clients": 4}))
    assert (type(a), type(b), at_b.frozen) == (PeerViolation, Misconfiguration, False)


def entry(**given: object) -> dict[str, object]:
    return {"client": "a", "records": 100, "record_rate": 0.1} | given


@pytest.mark.parametrize("names", [("a", "stranger"), ("stranger",)])
def test_a_takes_no_roster_but_of_clients_that_it_proposed(
    names: tuple[str, ...],
) -> None:
    a, b = linked()
    b.send(
        "roster",
        encode("RosterAnswer", {"entries": [entry(client=name) for name in names]}),
    )
    with pytest.raises(PeerViolation, match="that A proposed"):
        propose(a, Books(OWN))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry(), entry()], "twice"),
        *(
            ([entry(**{field: value})], rf"RosterProposal .*: entries\.0\.{field}: ")
            for field, value in (
                *(("records", 0), ("record_rate", 1.5), ("record_rate", math.nan)),
                ("client", "A"),
            )
        ),
    ],
)
def test_a_roster_that_b_can_not_take_is_refused(
    entries: list[dict[str, object]], says: str
) -> None:
    a, b = linked()
    a.send("roster", encode("RosterProposal", {"entries": entries}))
    with pytest.raises(PeerViolation, match=says):
        accept(b, Books(OWN))
    if len(entries) == 2:
        assert "twice" in RosterAnswer.from_bytes(a.receive("roster")).refusal


@pytest.mark.parametrize(
    "error",
    [
        StorageFailure("the disk is full"),
        TimeoutError(),
        AssertionError(),
        KeyboardInterrupt(),
    ],
)
@pytest.mark.parametrize("where", ["roster", "freeze", "roster_seal"])
def test_a_b_that_fails_by_itself_doesnt_disagree(
    error: BaseException, where: str
) -> None:
    """A tries again, as after a cut link; only what the two disagree about stops it."""
    at_a, at_b = (Books(OWN, where == "roster_seal") for _ in range(2))
    setattr(at_b, where, Mock(side_effect=error))
    ends = [Breaking(end) for end in memory_pair()]
    a, b = linked(ends)
    a.send("roster", encode("RosterProposal", {"entries": [entry()]}))
    with pytest.raises(type(error)):
        accept(b, at_b)
    ends[1].hang_up()
    with pytest.raises(PeerUnavailable, match="hung up"):
        propose(a, at_a)
    assert at_a.frozen == (where == "roster_seal")
