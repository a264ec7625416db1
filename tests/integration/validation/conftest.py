"""Two real CrypTen parties in two threads, over a link in memory; and the check of
proofs."""

from collections.abc import Callable, Collection, Sequence
from typing import cast

import numpy as np
import pytest
from tests.rig.aggregators import Halves, aggregating, submissions_of
from tests.rig.local_dealing import LocalDealing
from tests.rig.parties import opened, play_both
from tests.rig.tasks import task_with

from precad.aggregator.attempt_states import Matched, Summed
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.release import aggregate
from precad.common import errors, ring
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole
from precad.norm_check import prime_field
from precad.norm_check.dealing import NoDealer

Verdicts = tuple[errors.Rejection | None, ...]
Validate = Callable[..., Verdicts]


def aggregation(
    task: Task,
    halves: Halves,
    attempt: int = 0,
    counted: Collection[ClientId] | None = None,
) -> Callable[[Role, PeerLink], Summed]:
    """A server's part, of submissions that both hold."""
    dealer = DealerRole.of(task) if task.has_dealer else None

    def play(role: Role, link: PeerLink) -> Summed:
        link.begin_attempt(attempt)
        dealing = (
            NoDealer()
            if dealer is None
            else LocalDealing(dealer=dealer, role=role, timeout_s=20.0)
        )
        matched = Matched(
            opened=opened(attempt, halves[role], counted),
            submissions=halves[role],
            rejections={},
        )
        aggregator = aggregating(task, role, link, dealing, dealing.join())
        with aggregator.in_process(matched.opened) as validator:
            return aggregate(aggregator, matched, validator)

    return play


def aggregate_both(
    task: Task,
    halves: Halves,
    attempt: int = 0,
    counted: Collection[ClientId] | None = None,
) -> tuple[Summed, Summed]:
    return play_both(aggregation(task, halves, attempt, counted), task=task.digest)


def summed_up(task: Task, both: tuple[Summed, Summed]) -> list[int]:
    """What both servers' shares of the sum come to."""
    total, group = both[0].share_sum.copy(), prime_field.group_of(task)
    group.add(total, both[1].share_sum)
    return cast("list[int]", group.decode(total).tolist())


def validate_both(
    task: Task, vectors: Sequence[ring.RingVector], *, attempt: int = 0
) -> Verdicts:
    """Both servers' verdicts on ``vectors``, which must be the same, and so must be the
    sum."""
    halves = submissions_of(task, vectors, attempt)
    both = aggregate_both(task, halves, attempt)
    clients, rejections = halves[Role.SERVER_A], both[0].counted.rejections
    valid = {c: x for c, x in zip(clients, vectors, strict=True) if c not in rejections}
    for each in both:
        assert (each.counted.rejections, each.counted.valid) == (
            rejections,
            tuple(valid),
        )
    total = sum(valid.values(), np.zeros(task.dimension, dtype=np.int64))
    assert summed_up(task, both) == total.tolist()
    return tuple(rejections.get(client) for client in clients)


def task_of(
    dimension: int, client_clip: float = 30.0, fractional_bits: int = 16
) -> Task:
    """A task with β = floor(client_clip·2^fractional_bits)."""
    changes = {"privacy.client_clip": client_clip, "fractional_bits": fractional_bits}
    return task_with(changes, dimension)


def with_proofs(task: Task) -> Task:
    values = task.model_dump(mode="python", exclude={"projections"})
    return Task.parse(values | {"validation": "proof"})


def validate_with_proofs(
    task: Task, vectors: Sequence[ring.RingVector], *, attempt: int = 0
) -> Verdicts:
    return validate_both(with_proofs(task), vectors, attempt=attempt)


@pytest.fixture(params=["comparisons", "proofs"])
def validate(request: pytest.FixtureRequest) -> Validate:
    """Two checks of one norm: what one says of a corpus, the other must."""
    return validate_both if request.param == "comparisons" else validate_with_proofs
