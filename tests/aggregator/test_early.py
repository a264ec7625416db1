"""While collection is open: what both hold alike goes on at once, in one order, and no more."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.conftest import TaskMaker
from tests.faults.conftest import small_task as simulated_task
from tests.faults.invariants import check
from tests.faults.world import World
from tests.rig.clock import LeapingClock
from tests.rig.keys import verifier
from tests.rig.submissions import MODEL, body_of, pair_of, upload
from tests.rig.waiting import until

from precad.aggregator.collect import matching
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import (
    Alike,
    Ask,
    HeldList,
    Places,
    describe,
    match,
    rest_of,
)
from precad.aggregator.peer_link import PeerLink, memory_pair
from precad.aggregator.rounds.states import Matched, Opened
from precad.common.errors import PeerViolation, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.share.proof_submission import AnySubmission
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.common.wire.messages import encode

NAMES = tuple(ClientId(f"ward-{number}") for number in range(5))
OPENED = Opened(3, 2, NAMES, MODEL, frozenset(NAMES))
A, B = Role.SERVER_A, Role.SERVER_B
DEADLINE_S = 240.0


@dataclass(slots=True)
class Collecting:
    """Both servers while uploads come in, each in a thread."""

    task: Task
    inboxes: dict[Role, Inbox]
    links: dict[Role, PeerLink]
    taken: dict[Role, list[ClientId]] = field(default_factory=lambda: {A: [], B: []})
    over: threading.Event = field(default_factory=threading.Event)
    gather: bool = False
    batches: list[int] = field(default_factory=list)
    """How many A took together."""

    def pair(self, client: ClientId) -> dict[Role, Submission]:
        return {half.role: half for half in pair_of(self.task, client)}

    def upload(self, half: Submission) -> None:
        upload(self.inboxes[half.role], half)

    def take(self, role: Role) -> Callable[[Sequence[AnySubmission]], None]:
        def note(submissions: Sequence[AnySubmission]) -> None:
            assert all(s.role is role for s in submissions)
            assert role is A or all(s.body is not None for s in submissions)
            self.taken[role] += [s.context.client for s in submissions]
            if role is A and submissions:
                self.batches.append(len(submissions))

        return note

    def wait_for_taken(self, *clients: ClientId) -> None:
        until(
            lambda: all(set(self.taken[role]) == set(clients) for role in (A, B)),
            lambda: f"{clients}, of whom were taken {self.taken}",
        )

    def play(self, role: Role) -> Matched:
        """From the open inbox to the match."""
        inbox, link = self.inboxes[role], self.links[role]
        if role is A:
            taken = matching.ask(
                OPENED, inbox, link, self.take(A), self.over.is_set, gather=self.gather
            )
            collected = inbox.close()
            matching.say_over(link)
        else:
            taken = matching.offer(OPENED, inbox, link, self.take(B), DEADLINE_S)
            collected = inbox.close()
        theirs = link.exchange("held", describe(collected, taken).to_bytes())
        listed = HeldList.from_bytes(theirs)
        assert not taken & set(listed.of(rest_of(OPENED, taken)))
        return match(OPENED, role, collected, listed, taken)

    @contextmanager
    def running(self) -> Iterator[dict[Role, "Future[Matched]"]]:
        with ThreadPoolExecutor(2) as threads:
            futures = {role: threads.submit(self.play, role) for role in (A, B)}
            try:
                yield futures
            finally:
                self.over.set()


@pytest.fixture
def collecting(make_task: TaskMaker, tmp_path: Path) -> Collecting:
    task = make_task(8)
    inboxes = {role: Inbox(role, task, verifier(), tmp_path / role.value) for role in (A, B)}
    links = {}
    for role, end in zip((A, B), memory_pair(), strict=True):
        inboxes[role].open(OPENED)
        links[role] = PeerLink(end, task.digest, max_message_bytes=1 << 16, timeout_s=DEADLINE_S)
        links[role].begin_attempt(3)
    return Collecting(task, inboxes, links)


def test_what_both_hold_alike_is_taken_while_others_upload(collecting: Collecting) -> None:
    first, late, differs, half, absent = NAMES
    pairs = {client: collecting.pair(client) for client in NAMES}
    with collecting.running() as servers:
        for role in (B, A):
            collecting.upload(pairs[first][role])
        collecting.wait_for_taken(first)
        # B alone holds it for a while: it is matched once A does, without being offered anew.
        collecting.upload(pairs[late][B])
        collecting.upload(collecting.pair(differs)[A])
        collecting.upload(collecting.pair(differs)[B])
        collecting.upload(pairs[half][A])
        assert collecting.taken == {A: [first], B: [first]}
        collecting.upload(pairs[late][A])
        collecting.wait_for_taken(first, late)
    a, b = servers[A].result(), servers[B].result()
    assert collecting.taken[A] == collecting.taken[B] == [first, late]
    assert a.early == b.early == {first, late}
    assert list(a.submissions) == list(b.submissions) == [first, late]
    assert a.rejections == b.rejections
    assert a.rejections == {
        differs: Rejection.UNMATCHED,
        half: Rejection.UNMATCHED,
        absent: Rejection.ABSENT,
    }


def test_a_batch_that_costs_a_coin_waits_for_half_of_the_missing(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting.gather = True
    # A turn waits for somebody, however long.
    monkeypatch.setattr(matching, "LOOK_S", DEADLINE_S)
    pairs = {client: collecting.pair(client) for client in NAMES}
    with collecting.running():
        for client in NAMES[:2]:
            for role in (B, A):
                collecting.upload(pairs[client][role])
        until(
            lambda: collecting.links[A].bytes_received >= 2 * 32,
            lambda: f"offers, of which {collecting.links[A].bytes_received} bytes came",
        )
        assert collecting.batches == []
        # Half of five, and then of the two that are missing still.
        for client in NAMES[2:4]:
            for role in (B, A):
                collecting.upload(pairs[client][role])
            collecting.wait_for_taken(*NAMES[: NAMES.index(client) + 1])
        monkeypatch.undo()
        collecting.upload(pairs[NAMES[4]][B])
    assert collecting.batches == [3, 1]


def test_a_batch_that_nobody_joins_any_more_is_taken_however_small(collecting: Collecting) -> None:
    collecting.gather = True
    pair = collecting.pair(NAMES[0])
    with collecting.running():
        for role in (B, A):
            collecting.upload(pair[role])
        collecting.wait_for_taken(NAMES[0])


def offer_of(*steps: int) -> bytes:
    return encode("Offer", {"clients": steps, "signed": [bytes(32)] * len(steps)})


@pytest.mark.parametrize(
    ("offers", "why"),
    [
        ([offer_of(6)], "isn't among 5"),
        ([offer_of(2, 0)], "Offer from the other server: clients.1"),
        ([offer_of(2), offer_of(2)], "ward-1, who isn't to be offered"),
    ],
    ids=["stranger", "twice at once", "twice"],
)
def test_a_refuses_offers_that_can_not_be(
    collecting: Collecting, offers: list[bytes], why: str
) -> None:
    for offer in offers:
        collecting.links[B].send("offer", offer)
    with pytest.raises(PeerViolation, match=why):
        collecting.play(A)
    assert collecting.taken[A] == []


@pytest.mark.parametrize("times", [1, 2])
def test_b_refuses_names_that_it_has_not_offered_or_has_given_already(
    collecting: Collecting, times: int
) -> None:
    offered = NAMES[0] if times > 1 else NAMES[1]
    collecting.upload(collecting.pair(NAMES[0])[B])
    for _ in range(times):
        collecting.links[A].send("ask", Ask().to_bytes())
        collecting.links[A].send("alike", Alike(clients=Places(NAMES).steps([offered])).to_bytes())
    with pytest.raises(PeerViolation, match="weren't offered"):
        collecting.play(B)
    assert len(collecting.taken[B]) == times - 1


def test_an_inbox_closes_at_its_deadline_however_busy_the_round_is(
    tmp_path: Path, collecting: Collecting
) -> None:
    clock = LeapingClock()
    inbox = Inbox(B, collecting.task, verifier(), tmp_path / "spool", clock=clock)
    inbox.open(OPENED)
    inbox.close_at(clock.now() + 5)
    pairs = [collecting.pair(client)[B] for client in NAMES[:3]]
    upload(inbox, pairs[0])
    half_way = inbox.start(replace(pairs[1], body=None))
    half_way.add(body_of(pairs[1]))
    clock.sleep(5)
    with pytest.raises(RejectedSubmission, match="any more"):
        half_way.finish()
    with pytest.raises(RejectedSubmission, match="any more"):
        inbox.start(replace(pairs[2], body=None))
    closed = inbox.close()
    assert isinstance(closed[NAMES[0]], Submission)
    assert closed[NAMES[1]] is closed[NAMES[2]] is Rejection.ABSENT


def test_bodies_go_on_before_collection_closes_and_comparisons_only_afterwards(
    tmp_path: Path,
) -> None:
    """In whole trainings of the simulated servers, by what they send."""
    task = simulated_task(3, changes={"privacy.client_rate": 1.0})
    world = World(task, tmp_path, seed=3, faults=0, chance=0.0)
    world.run()
    check(world)
    # What server B sends, attempt by attempt; the last "cohort" is its word on the training's end.
    sent = [step.split()[-1] for step in world.seen.trace if step.startswith("server-b: send ")]
    starts = [at for at, step in enumerate(sent) if step == "cohort"]
    early_bodies = 0
    for start, end in pairwise(starts):
        attempt = sent[start:end]
        closed = attempt.index("held")
        early_bodies += sum(step.startswith("body") for step in attempt[:closed])
        decided = [at for at, step in enumerate(attempt) if step.startswith(("opened", "decide"))]
        assert decided
        assert min(decided) > closed
    assert len(starts) == task.training.rounds + 1
    assert early_bodies > 0
