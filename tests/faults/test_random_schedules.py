"""Seeded random schedules of crashes, cuts, delays, duplicates, restarts and clock jumps."""

import pytest
from tests.faults.conftest import BOTH, Play

from precad.common.identifiers import Role

PER_TEST = 6


@pytest.mark.parametrize("first", range(0, 24, PER_TEST))
def test_whatever_happens_the_invariants_hold(play: Play, first: int) -> None:
    for seed in range(first, first + PER_TEST):
        play(1 + seed)


@pytest.mark.parametrize("first", range(4000, 4012, PER_TEST))
def test_with_proofs_the_same_invariants_hold(play: Play, first: int) -> None:
    faults = 0
    for seed in range(first, first + PER_TEST):
        restores = ((), BOTH[:1], BOTH[1:])[seed % 3]
        faults += len(play(seed, restores=restores, validation="proof").seen.faults)
    assert faults > PER_TEST


def test_with_pairs_of_workers_that_die_too_the_same_invariants_hold(play: Play) -> None:
    worlds = [play(seed, workers=2, bad=1) for seed in range(5000, 5000 + PER_TEST)]
    assert any(" worker " in fault for world in worlds for fault in world.seen.faults)


@pytest.mark.parametrize("first", range(1000, 1012, PER_TEST))
def test_a_database_that_is_put_back_is_noticed_and_mended(play: Play, first: int) -> None:
    restored = 0
    for seed in range(first, first + PER_TEST):
        world = play(seed, restores=(BOTH[:1], BOTH[1:])[seed % 2])
        restored += len(world.put_back_roles)
    assert restored > 0


def test_two_databases_that_are_put_back_are_mended_by_journals_and_owners(play: Play) -> None:
    both = [len(play(seed, restores=BOTH).put_back_roles) == 2 for seed in range(2040, 2050)]
    assert any(both)


def test_a_server_put_back_to_before_its_operators_gave_an_attempt_up_is_mended(play: Play) -> None:
    """The other has prepared a later attempt of the version since, and countersigned nothing."""
    world = play(11836, restores=BOTH)
    assert world.put_back_roles == [Role.SERVER_B, Role.SERVER_A]
