"""Chaos for hundreds of versions, simulated and at the doors of real processes.

    python -m tests.soak.chaos --versions 300 --output benchmarks/results/chaos.json
    python -m tests.soak.chaos --validation proof --output benchmarks/results/chaos_proof.json

Pieces of 20 simulated versions (`tests/faults/test_chaos.py`). Beside each a training of six
versions on real processes, with hundreds of idle connections, bad calls of every kind, a record
without a finite gradient, and deaths at random steps (`doors.py`). After each piece the result is
written: a run that is broken off goes on where it stopped.
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

from tests.faults.processes import Forks
from tests.faults.test_chaos import piece
from tests.soak.doors import besieged

VERSIONS = 20


def main() -> None:
    """Pieces until so many versions are done; each is kept as soon as it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--validation", choices=("crypten", "proof"), default="crypten")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    hardware = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    found: dict[str, Any] = {
        "what": "chaos.py",
        "validation": given.validation,
        "hardware": hardware,
        "pieces": [],
    }
    if given.output.exists():
        found = json.loads(given.output.read_text(encoding="utf-8"))
    forks = Forks()
    while sum(each["versions"] for each in found["pieces"]) < given.versions:
        seed = given.seed + len(found["pieces"])
        folder = Path(tempfile.mkdtemp())
        began = time.monotonic()
        try:
            made = piece(seed, VERSIONS, folder / "world", validation=given.validation)
            made["besieged"] = besieged(seed, folder / "doors", forks, validation=given.validation)
        finally:
            shutil.rmtree(folder)
        found["pieces"].append(made | {"seconds": round(time.monotonic() - began, 1)})
        given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        print(f"seed {seed}: {made}", flush=True)  # noqa: T201
    forks.close()


if __name__ == "__main__":
    main()
