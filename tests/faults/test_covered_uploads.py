"""With `cover_uploads` nobody outside the two servers sees from traffic who was drawn."""

from pathlib import Path

import pytest
from tests.faults.conftest import small_task
from tests.faults.invariants import checked
from tests.faults.world import World

from precad.common.identifiers import Role

TASK = small_task(8, changes={"privacy.client_rate": 0.5, "privacy.cover_uploads": True})


def test_who_is_not_drawn_uploads_zeros_of_the_same_size_and_is_not_charged(folder: Path) -> None:
    world = checked(World(TASK, folder, seed=5))
    attempts, charges = world.rounds(Role.SERVER_A), world.charges(Role.SERVER_A)
    assert {state for state, *_ in attempts.values()} == {"done"}
    chances = [(client, attempt) for client in world.clients for attempt in attempts]
    drawn = [chance for chance in chances if chance[0].name in charges[chance[1]]]
    assert drawn == [chance for chance in chances if world.seen.updates[chance].any()]
    assert 4 < len(drawn) < len(chances) - 4
    for client, result in world.seen.results.items():
        log = (folder / client.name / "participations.log").read_text().splitlines()
        assert len(log) == result.counted == sum(who == client for who, _ in drawn)
        assert result.submitted + result.covered == len(attempts)


@pytest.mark.parametrize("seed", range(300, 304))
def test_through_faults_too_only_the_drawn_are_summed_and_charged(folder: Path, seed: int) -> None:
    world = checked(World(TASK, folder, seed, faults=6, chance=0.01))
    charges = world.charges(Role.SERVER_A)
    for (client, attempt), update in world.seen.updates.items():
        if client.name in charges.get(attempt, ()):
            # Who lost what it had drawn uploads zeros: nobody can tell, and so it is charged.
            assert update.any() or client in world.seen.lost, "zeros were charged"
