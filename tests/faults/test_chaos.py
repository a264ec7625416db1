"""Chaos: everything that may go wrong at once, in simulated time.

A training of its own seed on the real code of both servers and the clients (`world.py`): bad
clients that forge norms, send half a pair or two halves of different ones and replay; strangers
that enrol at one server only, claim the absurd, upload uninvited, show forged statements and open
a thousand watches (`misdeeds.py`); crashes, cuts, silence, disks that fail on both servers,
restarts of the dealer, databases put back on one server and on both.

All invariants are checked (`invariants.py`): training reaches T, ledgers cover all that left and
are alike, no honest owner is lost in a version that no fault touched, nobody reads of others. The
operators' word is given whenever it is asked for. Three hundred versions:
`tests/soak/test_long_schedules.py`.
"""

from pathlib import Path

import pytest
from tests.conftest import task_values
from tests.faults.invariants import check
from tests.faults.turns import Hang
from tests.faults.world import World

from precad.common.identifiers import Role
from precad.common.task import Task

FAULTS = 40
STRANGERS = 2


def chaos_task(versions: int, validation: str) -> Task:
    """Five clients, two of them bad; q = 0.8."""
    values = task_values(4)
    values["privacy"]["client_rate"] = 0.8
    values["training"]["rounds"] = versions
    values["enrolment"]["clients"] = 5 + STRANGERS
    values["deadlines"] = {
        "enrol": 500.0,
        "collect": 10.0,
        "rejoin": 2.0,
        "peer": 5.0,
        "outage": 2000.0,
    }
    return Task.parse(values | {"validation": validation})


def piece(
    seed: int, versions: int, folder: Path, faults: int = FAULTS, validation: str = "crypten"
) -> World:
    """One training; raises AssertionError when an invariant is broken."""
    both = (Role.SERVER_A, Role.SERVER_B)
    world = World(
        chaos_task(versions, validation),
        folder,
        seed,
        faults=faults,
        chance=0.01,
        restores=((), both[:1], both[1:], both)[seed % 4],
        bad=2,
        strangers=STRANGERS,
    )
    world.turns.limit(3000.0)
    try:
        world.run()
        check(world)
    except Hang:
        # The final model was lost on both servers after every owner had left with it.
        if len(world.seen.results) < len(world.clients) or len(world.put_back_roles) < len(both):
            raise
    except BaseException as error:
        error.add_note(f"seed {seed}: {world.seen.faults}")
        raise
    assert any(world.seen.results[client].counted for client in set(world.clients) - world.bad)
    assert world.seen.misdeeds
    return world


@pytest.mark.parametrize(("seed", "validation"), [(3, "crypten"), (4, "fss")])
def test_whatever_goes_wrong_at_once_the_training_reaches_its_end(
    tmp_path: Path, seed: int, validation: str
) -> None:
    piece(seed, 4, tmp_path, faults=12, validation=validation)
