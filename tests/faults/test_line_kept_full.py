"""A line that could carry something carries it: what goes on, and before what else.

Server A's halves are 32 bytes with a dealer, and all are there long before B's bodies.
"""

from pathlib import Path

import pytest
from tests.faults.conftest import small_task
from tests.faults.invariants import checked
from tests.faults.simulated_owner import Calls
from tests.faults.test_clients_that_fail import COLLECT_S, EVERYBODY, A, B, Troubled

from precad.client.connection import Receipt
from precad.client.pending_update import Pair
from precad.common.errors import PeerUnavailable, Rejection
from precad.common.task import Task

OWNERS = 4


class Uploading(Calls):
    """Its half comes to A at once, and 5, 10, 15 or 20 seconds later its body to B."""

    world: "Uploads"

    def submit(self, pair: Pair, timeout_s: float) -> tuple[Receipt, Receipt]:
        world, (at_a, at_b) = self.world, pair
        deadline = world.turns.now + timeout_s
        self.record(pair)
        first = self._send(at_a, deadline)
        if self.client in world.refused:
            world.turns.sleep(5.0 * OWNERS + 0.1)
            with self._handled_by(self._server(B)):
                inbox = self._server(B).session.inbox
                inbox.refuse(at_b.context.attempt, self.client, Rejection.MALFORMED)
            world.refused_s = world.turns.now
            return first, Receipt(B, Rejection.MALFORMED, "")
        if self.client in world.never:
            world.turns.sleep(timeout_s)
            raise PeerUnavailable("its line to B is gone")
        world.turns.sleep(5.0 * (world.clients.index(self.client) + 1))
        world.bodies_before.append(world.gone_on)
        return first, self._send(at_b, deadline)


class Uploads(Troubled):
    calls = Uploading

    def __init__(
        self, task: Task, folder: Path, never: int = 0, refused: int = 0
    ) -> None:
        super().__init__(task, folder)
        self.never = set(self.clients[OWNERS - never :])
        """Whose body never comes."""
        self.refused = set(self.clients[OWNERS - refused :])
        """Whose body, the last one, isn't what was signed."""
        self.refused_s = 0.0
        self.bodies_before: list[int] = []
        """How many bodies had left B when each came to it."""

    @property
    def gone_on(self) -> int:
        """How many bodies have left B whole; each is three frames."""
        return self.seen.trace.count(f"{B.value}: send body") // 3


@pytest.fixture
def task() -> Task:
    return small_task(1, changes=EVERYBODY)


def test_bodies_leave_server_b_while_others_come(task: Task, folder: Path) -> None:
    world = checked(Uploads(task, folder))
    assert world.bodies_before == [0, 1, 2, 3]
    assert world.done[0].valid == set(world.clients)
    assert world.ended_s[0] < COLLECT_S


def test_a_body_that_never_comes_costs_the_deadline_and_holds_no_other_body_up(
    task: Task, folder: Path
) -> None:
    """As before compact releases; B says when it awaits nobody any more."""
    world = Uploads(task, folder, never=1)
    world.run()  # An honest owner is lost, without a fault of ours
    assert world.bodies_before == [0, 1, 2]
    assert world.done[0].valid == set(world.clients[:-1])
    assert [*world.done[0].rejections.values()] == [Rejection.UNMATCHED]
    assert COLLECT_S <= world.ended_s[0] < COLLECT_S + 1


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_a_bad_body_costs_nobody_a_look(folder: Path, validation: str) -> None:
    """It is the last that B awaits: then collection is over, and not a moment later."""
    task = small_task(1, validation, changes=EVERYBODY)
    world = Uploads(task, folder, refused=1)
    world.run()
    assert world.done[0].valid == set(world.clients[:-1])
    assert world.ended_s[0] - world.refused_s < 0.1


def test_a_training_without_compact_releases_keeps_its_messages(folder: Path) -> None:
    """A's list closes its turns, and B answers with its own once all bodies came."""
    changes = EVERYBODY | {"training.compact_release": None}
    task = small_task(1, changes=changes)
    world = checked(Uploads(task, folder))
    assert world.bodies_before == [0] * OWNERS
    assert f"{B.value}: send alike" not in world.seen.trace
    assert f"{A.value}: send alike" in world.seen.trace
