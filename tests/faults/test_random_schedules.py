"""Seeded random schedules of crashes, cuts, delays, duplicates, restarts and clock jumps.

Each schedule is one whole training on the real code of both servers and of the clients
(`world.py`); what must hold after any of them is in `invariants.py`.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.invariants import check
from tests.faults.turns import Hang
from tests.faults.world import World

from precad.common.identifiers import Role
from precad.common.task import Task

SCHEDULES = 120
PER_TEST = 20
ROUNDS = 4


@pytest.fixture(scope="module")
def task(make_task: Any) -> Task:
    made: Task = make_task(
        4,
        {
            "privacy.client_rate": 0.8,
            "training.rounds": ROUNDS,
            "enrolment.clients": 3,
            "deadlines.enrol": 500.0,
            "deadlines.collect": 10.0,
            "deadlines.rejoin": 2.0,
            "deadlines.peer": 5.0,
            "deadlines.outage": 300.0,
        },
    )
    return made


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a thing: hundreds of small durable writes."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    yield path
    shutil.rmtree(path)


Play = Callable[..., World]


@pytest.fixture
def play(task: Task, folder: Path) -> Play:
    """``play(seed)``: one schedule, run and checked."""

    def run(
        seed: int,
        *,
        faults: int = 8,
        again: int = 0,
        restores: tuple[Role, ...] = (),
        check_of_norms: str = "crypten",
    ) -> World:
        # Some schedules have their faults all at once, others throughout.
        chance = (0.005, 0.01, 0.02, 0.04)[seed % 4]
        state = folder / f"{seed}-{again}"
        state.mkdir()
        played = Task.parse(task.model_dump() | {"validation": check_of_norms})
        world = World(played, state, seed, faults=faults, chance=chance, restores=restores)
        try:
            world.run()
            check(world)
        except Hang:
            # Both servers lost the final model after every owner had it and was gone: they wait for
            # one of them to bring it back.
            errors = [server.session.progress.error for server in world.servers.values()]
            waits = any("waits for an owner" in error for error in errors)
            assert waits, errors
            assert len(world.put_back_roles) == 2
            assert len(world.seen.results) == len(world.clients)
        except BaseException as error:
            error.add_note(f"seed {seed}: {world.seen.faults}")
            error.add_note("\n".join(world.seen.trace[-40:]))
            raise
        return world

    return run


def test_without_faults_every_round_is_counted(play: Play) -> None:
    world = play(0, faults=0)
    assert world.seen.faults == []
    counted = {str(client): result.counted for client, result in world.seen.results.items()}
    charged = Counter(name for names in world.charges(Role.SERVER_A).values() for name in names)
    assert counted == {str(client): charged[str(client)] for client in world.clients}
    assert sum(charged.values()) > 0


@pytest.mark.parametrize("first", range(0, SCHEDULES, PER_TEST))
def test_whatever_happens_the_invariants_hold(play: Play, first: int) -> None:
    for seed in range(first, first + PER_TEST):
        play(1 + seed)


@pytest.mark.parametrize("first", range(4000, 4000 + SCHEDULES // 3, PER_TEST))
def test_by_gates_the_same_invariants_hold(play: Play, first: int) -> None:
    faults = 0
    for seed in range(first, first + PER_TEST):
        restores = ((), (Role.SERVER_A,), (Role.SERVER_B,))[seed % 3]
        faults += len(play(seed, restores=restores, check_of_norms="fss").seen.faults)
    assert faults > PER_TEST


@pytest.mark.parametrize("first", range(1000, 1000 + SCHEDULES // 2, PER_TEST))
def test_a_database_that_is_put_back_is_noticed_and_mended(play: Play, first: int) -> None:
    restored = 0
    for seed in range(first, first + PER_TEST):
        world = play(seed, restores=((Role.SERVER_A,), (Role.SERVER_B,))[seed % 2])
        restored += len(world.put_back_roles)
    assert restored > 0


@pytest.mark.parametrize("first", range(2040, 2040 + SCHEDULES // 3, PER_TEST))
def test_two_databases_that_are_put_back_are_mended_by_journals_and_owners(
    play: Play, first: int
) -> None:
    restored = 0
    for seed in range(first, first + PER_TEST):
        world = play(seed, restores=(Role.SERVER_A, Role.SERVER_B))
        restored += len(world.put_back_roles) == 2
    assert restored > 0


@pytest.mark.parametrize("seed", [3, 33])
def test_the_same_seed_replays_the_same_run(play: Play, seed: int) -> None:
    one, other = play(seed), play(seed, again=1)
    assert one.seen.faults
    assert one.seen.faults == other.seen.faults
    assert one.seen.trace == other.seen.trace
