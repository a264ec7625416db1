"""Validation between parties that don't agree, or use randomness twice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.integration.validation.conftest import reasons
from tests.rig.spent import MemorySpentTriples

from precad.common.aggregator.round.states import Shared
from precad.common.aggregator.validate import comparisons_per_client, deal_request, validate
from precad.common.deal.dealer import DealerRole
from precad.common.deal.randomness import DealtRandomness
from precad.common.deal.request import DealRequest
from precad.common.deal.spent import SpentTriples
from precad.common.errors import PeerViolation, Rejection
from precad.common.headroom import TAU
from precad.common.identifiers import ClientId, Role
from precad.common.link import PeerLink
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.task import Task

DIMENSION = 16
NONCES = bytes(64)
ROWS = Secret(bytes(32))
Verdicts = tuple[Rejection | None, ...]
PlayBoth = Callable[..., tuple[Verdicts, Verdicts]]
Share = Callable[[RingVector, int], tuple[Shared, Shared]]


@pytest.fixture
def task(task_of: Callable[..., Task]) -> Task:
    return task_of(DIMENSION)


@pytest.fixture
def dealer(task: Task) -> DealerRole:
    return DealerRole(task.digest, task.dimension)


class Server:
    """Calls ``validate`` with this server's things; a test changes some of them."""

    def __init__(self, task: Task, dealer: DealerRole) -> None:
        self.task = task
        self.dealer = dealer

    def randomness(self, role: Role, request: DealRequest) -> DealtRandomness:
        corrections = self.dealer.corrections(role, request)
        return DealtRandomness(role, self.dealer.key_for(role), request, corrections)

    def validate(
        self, role: Role, link: PeerLink, updates: list[Shared], **changed: Any
    ) -> Verdicts:
        arguments = {
            "task": self.task,
            "attempt": 0,
            "role": role,
            "link": link,
            "row_secret": ROWS,
            "spent": MemorySpentTriples(),
            **changed,
        }
        if "randomness" not in arguments:
            request = deal_request(self.task, 0, 0, len(updates), NONCES)
            arguments["randomness"] = self.randomness(role, request)
        return reasons(validate(updates, **arguments))


@pytest.fixture
def server(task: Task, dealer: DealerRole) -> Server:
    return Server(task, dealer)


def halves(shared: Share, role: Role, count: int = 2) -> list[Shared]:
    place = 0 if role is Role.SERVER_A else 1
    return [shared(np.full(DIMENSION, i, dtype=np.int64), i)[place] for i in range(count)]


def test_the_same_updates_in_the_same_order_pass(
    server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    verdicts = play_both(
        lambda role, link: server.validate(role, link, halves(shared, role)), task=task.digest
    )
    assert verdicts == ((None, None), (None, None))


def test_another_order_is_a_violation_and_no_wrong_verdict(
    server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    def play(role: Role, link: PeerLink) -> Verdicts:
        updates = halves(shared, role)
        return server.validate(role, link, updates if role is Role.SERVER_A else updates[::-1])

    with pytest.raises(PeerViolation, match="out of step"):
        play_both(play, task=task.digest, timeout_s=1.0)


@pytest.mark.parametrize("field", ["client", "commitment_a", "commitment_b"])
def test_another_submission_is_a_violation(
    field: str, server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    def play(role: Role, link: PeerLink) -> Verdicts:
        updates = halves(shared, role)
        if role is Role.SERVER_B:
            value: Any = ClientId("other") if field == "client" else bytes(32)
            updates[1] = replace(updates[1], **{field: value})
        return server.validate(role, link, updates)

    with pytest.raises(PeerViolation, match="out of step"):
        play_both(play, task=task.digest, timeout_s=1.0)


def test_another_number_of_updates_is_a_violation(
    server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    def play(role: Role, link: PeerLink) -> Verdicts:
        count = 2 if role is Role.SERVER_A else 3
        request = deal_request(task, 0, 0, count, NONCES)
        # A dealer that forgot what it dealt, so that only the servers notice.
        dealer = DealerRole(
            task.digest,
            task.dimension,
            {r: server.dealer.key_for(r) for r in (Role.SERVER_A, Role.SERVER_B)},
        )
        randomness = Server(task, dealer).randomness(role, request)
        return server.validate(role, link, halves(shared, role, count), randomness=randomness)

    with pytest.raises(PeerViolation, match="out of step"):
        play_both(play, task=task.digest, timeout_s=1.0)


def test_randomness_is_never_used_twice_and_nothing_is_opened_then(
    server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    memories: dict[Role, SpentTriples] = {
        Role.SERVER_A: MemorySpentTriples(),
        Role.SERVER_B: MemorySpentTriples(),
    }
    sent: list[int] = []

    def play(role: Role, link: PeerLink) -> Verdicts:
        request = deal_request(task, 0, 0, 2, NONCES)
        # A dealer that forgot what it dealt, so that only the servers notice.
        dealer = DealerRole(
            task.digest,
            task.dimension,
            {r: server.dealer.key_for(r) for r in (Role.SERVER_A, Role.SERVER_B)},
        )
        dealt = Server(task, dealer).randomness(role, request)
        try:
            return server.validate(
                role, link, halves(shared, role), spent=memories[role], randomness=dealt
            )
        finally:
            sent.append(link.bytes_sent)

    play_both(play, task=task.digest)
    with pytest.raises(PeerViolation, match="used before"):
        play_both(play, task=task.digest)
    assert min(sent[:2]) > 0
    assert sent[2:] == [0, 0]


def test_randomness_is_spent_before_the_first_opening(
    server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    order: list[tuple[Role, str]] = []

    def play(role: Role, link: PeerLink) -> Verdicts:
        class Spent:
            def spend(self, attempt: int, batch: int) -> None:
                assert (attempt, batch) == (0, 0)
                order.append((role, f"spent, {link.bytes_sent} bytes sent"))

        return server.validate(role, link, halves(shared, role), spent=Spent())

    play_both(play, task=task.digest)
    assert sorted(text for _, text in order) == ["spent, 0 bytes sent"] * 2


@pytest.mark.parametrize(
    "share",
    [
        np.zeros(DIMENSION - 1, dtype=np.int64),
        np.zeros(DIMENSION + 1, dtype=np.int64),
        np.zeros((DIMENSION, 1), dtype=np.int64),
        np.zeros(DIMENSION, dtype=np.float64),
        np.zeros(DIMENSION, dtype=np.uint64),
    ],
    ids=["short", "long", "matrix", "float", "unsigned"],
)
def test_a_share_of_another_length_or_type_is_the_callers_bug(
    share: Any, server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    def play(role: Role, link: PeerLink) -> Verdicts:
        updates = [replace(update, share=share) for update in halves(shared, role)]
        return server.validate(role, link, updates)

    with pytest.raises(ValueError, match="client-0: share of"):
        play_both(play, task=task.digest)


@pytest.mark.parametrize("change", [{"attempt": 1}, {"clients": 3}, {"dimension": 17}])
def test_randomness_for_something_else_is_the_callers_bug(
    change: dict[str, int], server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    request = replace(deal_request(task, 0, 0, 2, NONCES), **change)  # type: ignore[arg-type]

    def play(role: Role, link: PeerLink) -> Verdicts:
        randomness = server.randomness(role, request)
        return server.validate(role, link, halves(shared, role), randomness=randomness)

    with pytest.raises(ValueError, match="isn't for 2 updates"):
        play_both(play, task=task.digest)


def test_the_other_servers_randomness_is_the_callers_bug(
    server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    def play(role: Role, link: PeerLink) -> Verdicts:
        other = Role.SERVER_B if role is Role.SERVER_A else Role.SERVER_A
        randomness = server.randomness(other, deal_request(task, 0, 0, 2, NONCES))
        return server.validate(role, link, halves(shared, role), randomness=randomness)

    with pytest.raises(ValueError, match="is held by"):
        play_both(play, task=task.digest)


def test_opened_vectors_are_masked_afresh_for_each_submission(
    server: Server, task: Task, shared: Share, play_both: PlayBoth
) -> None:
    received: list[RingVector] = []

    def play(role: Role, link: PeerLink) -> Verdicts:
        receive = link.receive

        def record(step: str, **options: float) -> bytes:
            data = receive(step, **options)
            if "compare" not in step and role is Role.SERVER_A:
                received.append(np.frombuffer(data, dtype=np.int64))
            return data

        link.receive = record  # type: ignore[assignment,method-assign]
        place = 0 if role is Role.SERVER_A else 1
        same = shared(np.zeros(DIMENSION, dtype=np.int64), 0)[place]
        return server.validate(role, link, [same, same])

    play_both(play, task=task.digest)
    first, second = received
    assert not set(first.tolist()) & set(second.tolist())


@pytest.mark.parametrize(
    ("projection", "verdict"),
    [
        (lambda half_width: half_width, None),
        (lambda half_width: -half_width, None),
        (lambda half_width: half_width + 1, Rejection.OUT_OF_RANGE),
        (lambda half_width: -half_width - 1, Rejection.OUT_OF_RANGE),
        (lambda _: 2**62, Rejection.OUT_OF_RANGE),
        (lambda _: -(2**62), Rejection.OUT_OF_RANGE),
        (lambda _: 2**63 - 1, Rejection.OUT_OF_RANGE),
        (lambda _: -(2**63), Rejection.OUT_OF_RANGE),
    ],
    ids=["τβ", "−τβ", "τβ+1", "−τβ−1", "2^62", "−2^62", "2^63−1", "−2^63"],
)
@pytest.mark.parametrize("row", [0, 39])
def test_one_projection_outside_the_range_is_enough(
    row: int,
    projection: Callable[[int], int],
    verdict: Rejection | None,
    *,
    server: Server,
    task: Task,
    shared: Share,
    play_both: PlayBoth,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Projections can't be chosen through honest rows: put in the place of the real ones.
    z = np.zeros(task.projections, dtype=np.int64)
    z[row] = projection(TAU * task.bound)
    mask = np.full(task.projections, 0x5DEECE66D1234567, dtype=np.int64)
    shares = iter([mask, z - mask])
    monkeypatch.setattr(
        "precad.common.aggregator.validate.batch.project", lambda *_, **__: next(shares)
    )
    verdicts = play_both(
        lambda role, link: server.validate(role, link, halves(shared, role, 1)), task=task.digest
    )
    assert verdicts == ((verdict,), (verdict,))


def test_a_shared_update_hides_its_share(shared: Share) -> None:
    update, _ = shared(np.zeros(3, dtype=np.int64), 7)
    assert "client-7" in repr(update)
    assert "share" not in repr(update)
    assert str(update.share[0]) not in repr(update)


def test_comparisons_are_two_a_row_and_one(task: Task) -> None:
    assert comparisons_per_client(task) == 81
    wanted = DealRequest(task.digest, 5, 2, 7, DIMENSION, 567, NONCES)
    assert deal_request(task, 5, 2, 7, NONCES) == wanted
