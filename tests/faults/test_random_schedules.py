"""Seeded random schedules of crashes, cuts, delays, duplicates and clock jumps.

And chaos: everything that may go wrong at once; `make chaos` has the long one.
"""

from pathlib import Path

import pytest
from tests.faults.conftest import BOTH, Play, small_task
from tests.faults.invariants import checked
from tests.faults.turns import Hang
from tests.faults.world import Fault, World
from tests.rig.documents import Document

from precad.cli.report_sources import gather
from precad.common.identifiers import Role

PER_TEST = 6
FAULTS = 40
STRANGERS = 2


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


def test_with_pairs_of_workers_that_die_too_the_same_invariants_hold(
    play: Play,
) -> None:
    worlds = [play(seed, workers=2, bad=1) for seed in range(5000, 5000 + PER_TEST)]
    assert any(" worker " in fault for world in worlds for fault in world.seen.faults)


@pytest.mark.parametrize("first", range(1000, 1012, PER_TEST))
def test_a_database_that_is_put_back_is_noticed_and_mended(
    play: Play, first: int
) -> None:
    restored = 0
    for seed in range(first, first + PER_TEST):
        world = play(seed, restores=(BOTH[:1], BOTH[1:])[seed % 2])
        restored += len(world.put_back_roles)
        # Either server's report says the same, whatever it learned again.
        states = [str(world.folder / role.value) for role in BOTH]
        a, b, both = (gather(given) for given in (states[:1], states[1:], states))
        assert a.guarantees == b.guarantees == both.guarantees
        assert a.training.model_digest == b.training.model_digest
        assert a.training.released == world.task.mechanism.releases
        assert both.differences == []
    assert restored > 0


def test_two_databases_that_are_put_back_are_mended_by_journals_and_owners(
    play: Play,
) -> None:
    both = [
        len(play(seed, restores=BOTH).put_back_roles) == 2 for seed in range(2040, 2050)
    ]
    assert any(both)


def test_a_server_put_back_to_before_its_operators_gave_an_attempt_up_is_mended(
    play: Play,
) -> None:
    """The other has prepared a later attempt since, and countersigned nothing.

    Noisy shares travel whole here, as when this schedule was found.
    """
    whole = {"training.compact_release": None, "enrolment.planned_units": None}
    world = play(11836, restores=BOTH, changes=whole)
    assert world.put_back_roles == [Role.SERVER_B, Role.SERVER_A]


def piece(
    seed: int,
    versions: int,
    folder: Path,
    faults: int = FAULTS,
    validation: str = "crypten",
) -> Document:
    folder.mkdir(exist_ok=True)
    # Five clients, two of them bad; q = 0.8.
    changes = {"enrolment.clients": 5 + STRANGERS, "deadlines.outage": 2000.0}
    task, restores = (
        small_task(versions, validation, changes),
        ((), BOTH[:1], BOTH[1:], BOTH),
    )
    world = World(
        task,
        folder,
        seed,
        faults=faults,
        chance=0.01,
        restores=restores[seed % 4],
        bad=2,
        strangers=STRANGERS,
    )
    world.turns.limit_s = 3000.0
    waits = False
    try:
        checked(world)
    except Hang:
        # The final model was lost on both servers after every owner had left with it.
        waits = (
            len(world.seen.results) == len(world.clients)
            and len(world.put_back_roles) == 2
        )
        if not waits:
            raise
    kinds = [fault.rpartition(": ")[2] for fault in world.seen.faults]
    if world.task.proof is not None:
        # Such a strike hits nobody.
        kinds = [kind for kind in kinds if kind != Fault.DEALER.value]
    # Attempts that neither server ever prepared: owners' word alone stood for them.
    unknown = {number for role in world.servers for number in world.charges(role)}
    unknown = unknown.difference(*world.seen.shares.values())
    failed = [
        fault.partition(":")[0] for fault in world.seen.faults if "disk fails" in fault
    ]
    honest = [world.seen.results[c] for c in world.clients if c not in world.bad]
    return {
        "seed": seed,
        "versions": versions,
        "faults": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "disks": {role.value: failed.count(role.value) for role in BOTH},
        "restored": [role.value for role in world.put_back_roles],
        "unknown_attempts_charged": len(unknown),
        "operators_asked": len(world.seen.words),
        "honest_submitted": [result.submitted for result in honest],
        "honest_counted": [result.counted for result in honest],
        "waits_for_an_owner": waits,
        "misdeeds": dict(sorted(world.seen.misdeeds.items())),
        "quiet_versions": len(world.seen.quiet),
    }


@pytest.mark.parametrize(("seed", "validation"), [(3, "crypten"), (4, "proof")])
def test_whatever_goes_wrong_at_once_the_training_reaches_its_end(
    tmp_path: Path, seed: int, validation: str
) -> None:
    found = piece(seed, 4, tmp_path, faults=12, validation=validation)
    assert sum(found["honest_counted"]) > 0
    assert found["misdeeds"]
