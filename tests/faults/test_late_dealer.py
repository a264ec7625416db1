"""A dealer that is started last: owners enrol meanwhile, and no round is lost."""

from pathlib import Path

from tests.faults.conftest import small_task
from tests.faults.invariants import checked
from tests.faults.world import World

from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Role
from precad.common.task import Task

A, B = Role.SERVER_A, Role.SERVER_B
COMES_S = 60.0
"""Twelve times the servers' patience for one call."""


class LateDealer(World):
    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task, folder, seed=11, orders=())
        self.refused = 0
        self.enrolled: dict[Role, int] = {}

    def handshake(self, *parties: str) -> None:
        if Role.DEALER.value not in parties:
            return
        up = self.turns.wait(
            lambda: self.turns.now >= COMES_S, self.task.deadlines.peer
        )
        if not up:
            self.refused += 1
            raise PeerUnavailable("the dealer isn't there")
        for role, server in self.servers.items():
            self.enrolled.setdefault(role, len(server.session.register.roster()))


def test_owners_enrol_while_the_dealer_is_awaited_and_no_round_is_lost(
    folder: Path,
) -> None:
    task = small_task(3)
    world = LateDealer(task, folder)
    checked(world)
    assert world.refused > 2
    assert world.enrolled == dict.fromkeys((A, B), task.enrolment.clients)
    # No attempt was begun without the dealer, nor one abandoned for it.
    assert sorted(world.charges(A)) == [0, 1, 2]
