"""Chaos: everything that may go wrong at once, for hundreds of versions.

    python -m tests.faults.chaos --versions 300 --output benchmarks/results/chaos.json

Pieces of 20 versions, each a whole training of its own seed on the real code of both servers and
the clients (`world.py`): bad clients that forge norms, send half a pair or two halves of different
ones and replay; crashes, cuts, silence, failing disks, restarts of the dealer, databases put back
on both servers. After each piece all invariants are checked and the result is written: a run that
is broken off goes on where it stopped. The operators' word is given whenever it is asked for.
"""

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.conftest import task_values
from tests.faults.invariants import check
from tests.faults.turns import Hang
from tests.faults.world import World

from precad.common.identifiers import Role
from precad.common.task import Task

VERSIONS = 20
FAULTS = 40


def chaos_task(versions: int) -> Task:
    """Five clients, two of them bad; q = 0.8."""
    values = task_values(4)
    values["privacy"]["client_rate"] = 0.8
    values["training"]["rounds"] = versions
    values["enrolment"]["clients"] = 5
    values["deadlines"] = {
        "enrol": 500.0,
        "collect": 10.0,
        "rejoin": 2.0,
        "peer": 5.0,
        "outage": 2000.0,
    }
    return Task.parse(values)


def piece(seed: int, versions: int, folder: Path, faults: int = FAULTS) -> dict[str, Any]:
    """One training; raises AssertionError when an invariant is broken."""
    both = (Role.SERVER_A, Role.SERVER_B)
    world = World(
        chaos_task(versions),
        folder,
        seed,
        faults=faults,
        chance=0.01,
        restores=both[: seed % 3],
        bad=2,
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
    honest = [world.seen.results[c] for c in world.clients if c not in world.bad]
    return {
        "seed": seed,
        "versions": versions,
        "faults": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "restored": [role.value for role in world.put_back_roles],
        "operators_asked": len(world.seen.words),
        "honest_submitted": [result.submitted for result in honest],
        "honest_counted": [result.counted for result in honest],
        "waits_for_an_owner": waits,
    }


def main() -> None:
    """Pieces until so many versions are done; each is kept as soon as it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    hardware = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    found: dict[str, Any] = {"what": "chaos.py", "hardware": hardware, "pieces": []}
    if given.output.exists():
        found = json.loads(given.output.read_text(encoding="utf-8"))
    while sum(each["versions"] for each in found["pieces"]) < given.versions:
        seed = given.seed + len(found["pieces"])
        folder = Path(tempfile.mkdtemp())
        began = time.monotonic()
        try:
            made = piece(seed, VERSIONS, folder)
        finally:
            shutil.rmtree(folder)
        found["pieces"].append(made | {"seconds": round(time.monotonic() - began, 1)})
        given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        print(f"seed {seed}: {made}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
