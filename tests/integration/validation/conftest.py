"""Two real CrypTen parties in two threads, over a link in memory; and the check of proofs."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest
from tests.rig.aggregators import Halves, aggregating, submissions_of
from tests.rig.parties import opened, play_both
from tests.rig.tasks import task_with

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.release import aggregate
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.states import Matched, Summed
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.prime_field import group_of
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole, LocalDealing
from precad.norm_check.dealing import NoDealer

Validate = Callable[..., tuple[Rejection | None, ...]]


def aggregator_of(task: Task, role: Role, link: PeerLink, dealer: DealerRole | None) -> Aggregator:
    """A server that can aggregate, and nothing else."""
    dealing = NoDealer() if dealer is None else LocalDealing(dealer, role, 20.0)
    return aggregating(task, role, link, dealing, dealing.join())


def aggregate_both(
    task: Task, halves: Halves, *, attempt: int = 0, counted: Collection[ClientId] | None = None
) -> tuple[Summed, Summed]:
    """What both servers end with, of submissions that both hold."""
    dealer = DealerRole.of(task) if task.has_dealer else None

    def play(role: Role, link: PeerLink) -> Summed:
        link.begin_attempt(attempt)
        matched = Matched(opened(attempt, halves[role], counted), halves[role], {})
        return aggregate(aggregator_of(task, role, link, dealer), matched)

    return play_both(play, task=task.digest)


def validate_both(
    task: Task, vectors: Sequence[RingVector], *, attempt: int = 0
) -> tuple[Rejection | None, ...]:
    """Both servers' verdicts on ``vectors``, which must be the same, and so must be the sum."""
    halves = submissions_of(task, vectors, attempt)
    at_a, at_b = aggregate_both(task, halves, attempt=attempt)
    assert at_a.counted.rejections == at_b.counted.rejections
    clients = list(halves[Role.SERVER_A])
    verdicts = tuple(at_a.counted.rejections.get(client) for client in clients)
    assert at_a.counted.valid == at_b.counted.valid
    assert [c for c, why in zip(clients, verdicts, strict=True) if why is None] == list(
        at_a.counted.valid
    )
    total = np.zeros(task.dimension, dtype=np.int64)
    for x, why in zip(vectors, verdicts, strict=True):
        if why is None:
            total += x
    summed, group = at_a.share_sum, group_of(task)
    group.add(summed, at_b.share_sum)
    assert group.decode(summed).tolist() == total.tolist()
    return verdicts


def task_of(dimension: int, *, client_clip: float = 30.0, fractional_bits: int = 16) -> Task:
    """A task with β = floor(client_clip·2^fractional_bits)."""
    changes = {"privacy.client_clip": client_clip, "fractional_bits": fractional_bits}
    return task_with(changes, dimension)


def with_proofs(task: Task) -> Task:
    values = task.model_dump(mode="python", exclude={"projections"})
    return Task.parse(values | {"validation": "proof"})


def validate_with_proofs(
    task: Task, vectors: Sequence[RingVector], *, attempt: int = 0
) -> tuple[Rejection | None, ...]:
    return validate_both(with_proofs(task), vectors, attempt=attempt)


@pytest.fixture(name="validate_both", params=["comparisons", "proofs"])
def validate_both_fixture(request: pytest.FixtureRequest) -> Validate:
    """Two checks of one norm: what one says of a corpus, the other must."""
    return {"comparisons": validate_both, "proofs": validate_with_proofs}[request.param]
