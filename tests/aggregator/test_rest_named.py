"""After A's list B names what comes alike: what either sends otherwise, and its end."""

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from tests.rig.aggregators import link_over
from tests.rig.clock import LonelyClock
from tests.rig.keys import verifier
from tests.rig.memory_link import memory_pair
from tests.rig.submissions import MODEL, pair_of, upload
from tests.rig.tasks import task_with

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect import matching
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import Alike, Places
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import ClientId, Role
from precad.norm_check.proof_submission import AnySubmission

TASK = task_with({"deadlines.collect": 60.0}, 8)
NAMES = tuple(ClientId(f"ward-{number}") for number in range(4))
OPENED = Opened(
    attempt=3, version=2, cohort=NAMES, model=MODEL, counted=frozenset(NAMES)
)
PAIRS = {name: pair_of(TASK, name) for name in NAMES}
PLACES = Places(NAMES)


class Ends:
    """Both ends of the servers' link; what this one takes is kept."""

    def __init__(self) -> None:
        self.own, self.other = (link_over(end, TASK, 0.0) for end in memory_pair())
        self.taken: list[tuple[ClientId, ...]] = []

    def take(self, batch: Sequence[AnySubmission]) -> None:
        self.taken.append(tuple(each.context.client for each in batch))

    def say(self, *clients: ClientId) -> None:
        self.other.send("alike", Alike(clients=PLACES.steps(clients)).to_bytes())

    def heard(self) -> list[tuple[ClientId, ...]]:
        """All that was named so far; the last message names nobody."""
        found: list[tuple[ClientId, ...]] = []
        while not found or found[-1]:
            said = Alike.from_bytes(self.other.receive("alike"))
            found.append(PLACES.clients(said.clients))
        return found

    def hear(self, held: Collection[ClientId]) -> frozenset[ClientId]:
        rest: dict[ClientId, AnySubmission] = {name: PAIRS[name][0] for name in held}
        return matching.hear_rest(OPENED, self.own, self.take, rest, 0.0)


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_a_takes_what_b_names_until_it_names_nobody(ends: Ends) -> None:
    for named in ([NAMES[2]], [NAMES[3], NAMES[0]], []):
        ends.say(*named)
    assert ends.hear(NAMES) == {NAMES[0], NAMES[2], NAMES[3]}
    assert ends.taken == [(NAMES[2],), (NAMES[0], NAMES[3]), ()]


@pytest.mark.parametrize("named", [[NAMES[3]], [NAMES[1], NAMES[1]]])
def test_a_refuses_who_is_not_held_or_was_named_before(
    ends: Ends, named: list[ClientId]
) -> None:
    for client in named:
        ends.say(client)
    with pytest.raises(PeerViolation, match="aren't left to take"):
        ends.hear(NAMES[:2])
    assert ends.taken == [(NAMES[1],)] * (len(named) - 1)


def test_where_b_falls_silent_the_link_is_lost(ends: Ends) -> None:
    ends.say(NAMES[0])
    with pytest.raises(PeerUnavailable):
        ends.hear(NAMES)


class AtB(Ends):
    """Server B after A's list: A holds all but the last, of the first another one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.clock = LonelyClock()
        self.inbox = Inbox(Role.SERVER_B, TASK, verifier(), folder, self.clock)
        self.inbox.open(OPENED)
        self.inbox.close_at(self.clock.now() + TASK.deadlines.collect)
        digests = [at_a.header.whole_digest.value for at_a, _ in PAIRS.values()]
        self.held_by_a = dict(
            zip(NAMES[:-1], [b"\xab" * 32, *digests[1:]], strict=False)
        )

    def sends(self, client: ClientId) -> None:
        upload(self.inbox, PAIRS[client][1])

    def play(self, *, names: bool = True) -> frozenset[ClientId]:
        return matching.name_rest(
            OPENED, self.inbox, self.own, self.take, self.held_by_a, names=names
        )


@pytest.fixture
def b(tmp_path: Path) -> AtB:
    return AtB(tmp_path / "spool")


def test_b_names_what_is_alike_and_leaves_the_rest_to_the_lists(b: AtB) -> None:
    for client in NAMES:
        b.sends(client)
    assert b.play() == {NAMES[1], NAMES[2]}
    assert b.heard() == [(NAMES[1], NAMES[2]), ()]
    assert b.clock.slept == []


def test_what_comes_while_others_are_taken_is_named_too(
    b: AtB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is the last, after which nobody is awaited."""
    coming = [NAMES[2], NAMES[0]]

    def take(batch: Sequence[AnySubmission]) -> None:
        Ends.take(b, batch)
        if coming:
            b.sends(coming.pop(0))

    monkeypatch.setattr(b, "take", take)
    b.sends(NAMES[1])
    assert b.play() == {NAMES[1], NAMES[2]}
    assert b.heard() == [(NAMES[1],), (NAMES[2],), ()]
    assert b.clock.slept == []


def test_a_half_that_a_alone_gets_costs_the_deadline(b: AtB) -> None:
    """And no more than it, however many of them there are."""
    b.sends(NAMES[1])
    began = b.clock.now()
    assert b.play() == {NAMES[1]}
    assert b.heard() == [(NAMES[1],), ()]
    waited_s = b.clock.now() - began
    assert 60.0 <= waited_s < 60.0 + matching.LOOK_S


def test_where_b_names_nobody_it_waits_and_says_nothing(b: AtB) -> None:
    """As in trainings without compact releases, and with proofs."""
    for client in NAMES[:-1]:
        b.sends(client)
    assert b.play(names=False) == frozenset()
    assert b.own.bytes_sent == 0
    assert b.taken == []
