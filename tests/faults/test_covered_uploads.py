"""With `cover_uploads` nobody outside the two servers sees from traffic who was drawn.

Real servers and clients, simulated network (`world.py`): every enrolled client uploads the same
number of bytes in every attempt, and only who was drawn is summed and charged.
"""

from collections import defaultdict
from pathlib import Path

import pytest
from tests.faults.conftest import small_task
from tests.faults.invariants import check
from tests.faults.world import World

from precad.common.identifiers import ClientId, Role

ROUNDS = 8


TASK = small_task(ROUNDS, changes={"privacy.client_rate": 0.5, "privacy.cover_uploads": True})


def charged(world: World, role: Role) -> dict[int, set[ClientId]]:
    """Whom a server charged, by version."""
    attempts = world.rounds(role)
    found: dict[int, set[ClientId]] = defaultdict(set)
    for attempt, names in world.charges(role).items():
        found[attempts[attempt][1]] |= {ClientId(name) for name in names}
    return found


def test_who_is_not_drawn_uploads_zeros_of_the_same_size_and_is_not_charged(tmp_path: Path) -> None:
    world = World(TASK, tmp_path, seed=5, faults=0, chance=0.0)
    world.run()
    check(world)
    by_version = charged(world, Role.SERVER_A)
    attempts = world.rounds(Role.SERVER_A)
    zeros = others = 0
    for attempt, (state, version, *_) in attempts.items():
        assert state == "done"
        for client in world.clients:
            update = world.seen.updates[client, attempt]
            drawn = client in by_version[version]
            assert update.any() == drawn
            zeros, others = zeros + (not drawn), others + drawn
    assert zeros > 4, "everybody was always drawn"
    assert others > 4
    for client, result in world.seen.results.items():
        log = (tmp_path / client.name / "participations.log").read_text().splitlines()
        assert len(log) == result.counted == sum(client in names for names in by_version.values())
        assert result.submitted + result.covered == len(attempts)


@pytest.mark.parametrize("seed", range(300, 304))
def test_through_faults_too_only_the_drawn_are_summed_and_charged(
    tmp_path: Path, seed: int
) -> None:
    world = World(TASK, tmp_path, seed, faults=6, chance=0.01)
    try:
        world.run()
        check(world)
    except BaseException as error:
        error.add_note(f"seed {seed}: {world.seen.faults}")
        raise
    for (client, attempt), update in world.seen.updates.items():
        names = world.charges(Role.SERVER_A).get(attempt)
        if names is not None and client.name in names:
            # Who lost what it had drawn uploads zeros: nobody can tell, and so it is charged.
            assert update.any() or client in world.seen.lost, "zeros were charged"
