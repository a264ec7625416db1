"""While collection is open: what both hold alike goes on at once, in one order, and no more."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import small_task as simulated_task
from tests.faults.invariants import check
from tests.faults.world import World
from tests.rig.aggregators import link_over
from tests.rig.keys import verifier
from tests.rig.submissions import MODEL, pair_of, upload
from tests.rig.tasks import task_with
from tests.rig.waiting import until

from precad.aggregator.collect import matching
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.peer_link import PeerLink, memory_pair
from precad.aggregator.rounds.states import Matched, Opened
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.share.proof_submission import AnySubmission
from precad.common.wire.messages import encode

NAMES = tuple(ClientId(f"ward-{number}") for number in range(5))
OPENED = Opened(3, 2, NAMES, MODEL, frozenset(NAMES))
A, B = Role.SERVER_A, Role.SERVER_B
WAIT_S = 240.0
TASK = task_with({})
PAIRS = {name: {half.role: half for half in pair_of(TASK, name)} for name in NAMES}


@dataclass(slots=True)
class Collecting:
    inboxes: dict[Role, Inbox] = field(default_factory=dict)
    links: dict[Role, PeerLink] = field(default_factory=dict)
    taken: dict[Role, list[ClientId]] = field(default_factory=lambda: {A: [], B: []})
    over: threading.Event = field(default_factory=threading.Event)
    gather: bool = False
    batches: list[int] = field(default_factory=list)
    """How many A took together."""

    def upload(self, client: ClientId, *roles: Role) -> None:
        for role in roles or (B, A):
            upload(self.inboxes[role], PAIRS[client][role])

    def take(self, role: Role, submissions: Sequence[AnySubmission]) -> None:
        assert all(s.role is role for s in submissions)
        assert role is A or all(s.body is not None for s in submissions)
        self.taken[role] += [s.context.client for s in submissions]
        if role is A and submissions:
            self.batches.append(len(submissions))

    def wait_for_taken(self, *clients: ClientId) -> None:
        until(
            lambda: all(set(self.taken[role]) == set(clients) for role in (A, B)),
            lambda: f"{clients}, of whom were taken {self.taken}",
        )

    def play(self, role: Role) -> Matched:
        inbox, link, take = self.inboxes[role], self.links[role], partial(self.take, role)
        if role is A:
            taken = matching.ask(OPENED, inbox, link, take, self.over.is_set, gather=self.gather)
        else:
            taken = matching.offer(OPENED, inbox, link, take, WAIT_S)
        collected = inbox.close()
        if role is A:
            matching.say_over(link)
        theirs = link.exchange("held", matching.describe(collected, taken).to_bytes())
        listed = matching.HeldList.from_bytes(theirs)
        assert not taken & set(listed.of(matching.rest_of(OPENED, taken)))
        return matching.match(OPENED, role, collected, listed, taken)

    @contextmanager
    def running(self) -> Iterator[dict[Role, "Future[Matched]"]]:
        with ThreadPoolExecutor(2) as threads:
            futures = {role: threads.submit(self.play, role) for role in (A, B)}
            try:
                yield futures
            finally:
                self.over.set()


@pytest.fixture
def collecting(tmp_path: Path) -> Collecting:
    made = Collecting()
    for role, end in zip((A, B), memory_pair(), strict=True):
        made.inboxes[role] = Inbox(role, TASK, verifier(), tmp_path / role.value)
        made.inboxes[role].open(OPENED)
        made.links[role] = link_over(end, TASK, WAIT_S)
        made.links[role].begin_attempt(3)
    return made


def test_what_both_hold_alike_is_taken_while_others_upload(collecting: Collecting) -> None:
    first, late, differs, half, absent = NAMES
    with collecting.running() as servers:
        collecting.upload(first)
        collecting.wait_for_taken(first)
        # B alone holds it for a while: it is matched once A does, without being offered anew.
        collecting.upload(late, B)
        collecting.upload(differs, A)
        upload(collecting.inboxes[B], pair_of(TASK, differs)[1])
        collecting.upload(half, A)
        assert collecting.taken == {A: [first], B: [first]}
        collecting.upload(late, A)
        collecting.wait_for_taken(first, late)
    unmatched = dict.fromkeys((differs, half), Rejection.UNMATCHED)
    for role in (A, B):
        matched, both = servers[role].result(), [first, late]
        assert (collecting.taken[role], list(matched.submissions)) == (both, both)
        assert matched.early == set(both)
        assert matched.rejections == unmatched | {absent: Rejection.ABSENT}


def test_a_batch_waits_for_half(collecting: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    collecting.gather = True
    with collecting.running(), monkeypatch.context() as patch:
        # A turn waits for somebody, however long.
        patch.setattr(matching, "LOOK_S", WAIT_S)
        for client in NAMES[:2]:
            collecting.upload(client)
        until(
            lambda: collecting.links[A].bytes_received >= 2 * 32,
            lambda: f"offers, of which {collecting.links[A].bytes_received} bytes came",
        )
        assert collecting.batches == []
        # Half of five, and then of the two that are missing still.
        for number in (3, 4):
            collecting.upload(NAMES[number - 1])
            collecting.wait_for_taken(*NAMES[:number])
        patch.undo()
        # One that nobody joins any more is taken however small it is.
        collecting.upload(NAMES[4])
        collecting.wait_for_taken(*NAMES)
    assert collecting.batches == [3, 1, 1]


@pytest.mark.parametrize(
    ("offers", "why"),
    [
        ([(6,)], "isn't among 5"),
        ([(2, 0)], "Offer from the other server: clients.1"),
        ([(2,), (2,)], "ward-1, who isn't to be offered"),
    ],
    ids=["stranger", "twice at once", "twice"],
)
def test_a_refuses_bad_offers(collecting: Collecting, offers: Any, why: str) -> None:
    for steps in offers:
        offer = {"clients": steps, "signed": [bytes(32)] * len(steps)}
        collecting.links[B].send("offer", encode("Offer", offer))
    with pytest.raises(PeerViolation, match=why):
        collecting.play(A)
    assert collecting.taken[A] == []


@pytest.mark.parametrize("times", [1, 2])
def test_b_refuses_names_not_offered_or_given_already(collecting: Collecting, times: int) -> None:
    asked = matching.Places(NAMES).steps([NAMES[0] if times > 1 else NAMES[1]])
    collecting.upload(NAMES[0], B)
    for _ in range(times):
        collecting.links[A].send("ask", matching.Ask().to_bytes())
        collecting.links[A].send("alike", matching.Alike(clients=asked).to_bytes())
    with pytest.raises(PeerViolation, match="weren't offered"):
        collecting.play(B)
    assert len(collecting.taken[B]) == times - 1


def test_bodies_go_on_before_collection_closes_and_comparisons_afterwards(tmp_path: Path) -> None:
    """In whole trainings of the simulated servers, by what they send."""
    task = simulated_task(3, changes={"privacy.client_rate": 1.0})
    world = World(task, tmp_path, seed=3)
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
