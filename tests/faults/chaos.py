"""Chaos: everything that may go wrong at once, in simulated time.

A piece is a whole training of its own seed on the real code of both servers and the clients
(`world.py`): bad clients that forge norms, send half a pair or two halves of different ones and
replay; strangers that enrol at one server only, claim the absurd, upload uninvited, show forged
statements and open a thousand watches (`misdeeds.py`); crashes, cuts, silence, disks that fail on
both servers, restarts of the dealer, databases put back on one server and on both.

All invariants are checked (`invariants.py`): training reaches T, ledgers cover all that left and
are alike, no honest owner is lost in a version that no fault touched, nobody reads of others. The
operators' word is given whenever it is asked for. Hundreds of versions: ``make chaos``
(`tests/soak/chaos.py`).
"""

from pathlib import Path
from typing import Any

from tests.faults.conftest import small_task
from tests.faults.invariants import check
from tests.faults.orders import Fault
from tests.faults.turns import Hang
from tests.faults.world import World

from precad.common.identifiers import Role
from precad.common.task import Task

FAULTS = 40
STRANGERS = 2


def chaos_task(versions: int, validation: str) -> Task:
    """Five clients, two of them bad; q = 0.8."""
    changes = {"enrolment.clients": 5 + STRANGERS, "deadlines.outage": 2000.0}
    return small_task(versions, validation, changes)


def piece(
    seed: int, versions: int, folder: Path, faults: int = FAULTS, validation: str = "crypten"
) -> dict[str, Any]:
    """One training; raises AssertionError when an invariant is broken."""
    both = (Role.SERVER_A, Role.SERVER_B)
    folder.mkdir(exist_ok=True)
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
    waits = False
    try:
        world.run()
        check(world)
    except Hang:
        # The final model was lost on both servers after every owner had left with it.
        waits = len(world.seen.results) == len(world.clients) and len(world.put_back_roles) == 2
        if not waits:
            raise
    except BaseException as error:
        error.add_note(f"seed {seed}: {world.seen.faults}")
        raise
    kinds = [fault.rpartition(": ")[2] for fault in world.seen.faults]
    if world.task.proof is not None:
        # Such a strike hits nobody.
        kinds = [kind for kind in kinds if kind != Fault.DEALER.value]
    failed = [fault.partition(":")[0] for fault in world.seen.faults if "disk fails" in fault]
    honest = [world.seen.results[c] for c in world.clients if c not in world.bad]
    return {
        "seed": seed,
        "versions": versions,
        "faults": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "disks": {role.value: failed.count(role.value) for role in both},
        "restored": [role.value for role in world.put_back_roles],
        "unknown_attempts_charged": len(unknown(world)),
        "operators_asked": len(world.seen.words),
        "honest_submitted": [result.submitted for result in honest],
        "honest_counted": [result.counted for result in honest],
        "waits_for_an_owner": waits,
        "misdeeds": dict(sorted(world.seen.misdeeds.items())),
        "quiet_versions": len(world.seen.quiet),
    }


def unknown(world: World) -> set[int]:
    """Attempts in a ledger that neither server ever prepared: owners' word alone stood for them."""
    charged = {number for role in world.servers for number in world.charges(role)}
    return charged - {number for shares in world.seen.shares.values() for number in shares}
