"""Chaos: everything that may go wrong at once, in simulated time; `make chaos` has the long one."""

from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import small_task
from tests.faults.invariants import checked
from tests.faults.turns import Hang
from tests.faults.world import Fault, World

from precad.common.identifiers import Role

FAULTS = 40
STRANGERS = 2


def piece(
    seed: int, versions: int, folder: Path, faults: int = FAULTS, validation: str = "crypten"
) -> dict[str, Any]:
    both = (Role.SERVER_A, Role.SERVER_B)
    folder.mkdir(exist_ok=True)
    # Five clients, two of them bad; q = 0.8.
    changes = {"enrolment.clients": 5 + STRANGERS, "deadlines.outage": 2000.0}
    task, restores = small_task(versions, validation, changes), ((), both[:1], both[1:], both)
    how: dict[str, Any] = {"faults": faults, "chance": 0.01, "restores": restores[seed % 4]}
    world = World(task, folder, seed, **how, bad=2, strangers=STRANGERS)
    world.turns.limit_s = 3000.0
    waits = False
    try:
        checked(world)
    except Hang:
        # The final model was lost on both servers after every owner had left with it.
        waits = len(world.seen.results) == len(world.clients) and len(world.put_back_roles) == 2
        if not waits:
            raise
    kinds = [fault.rpartition(": ")[2] for fault in world.seen.faults]
    if world.task.proof is not None:
        # Such a strike hits nobody.
        kinds = [kind for kind in kinds if kind != Fault.DEALER.value]
    # Attempts that neither server ever prepared: owners' word alone stood for them.
    unknown = {number for role in world.servers for number in world.charges(role)}
    unknown = unknown.difference(*world.seen.shares.values())
    failed = [fault.partition(":")[0] for fault in world.seen.faults if "disk fails" in fault]
    honest = [world.seen.results[c] for c in world.clients if c not in world.bad]
    return {
        "seed": seed,
        "versions": versions,
        "faults": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "disks": {role.value: failed.count(role.value) for role in both},
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
