"""How long `precad simulate --try` takes; results/setting_search.json.

    python -m benchmarks.setting_search [--owners 10] [--owners 1000]

Twelve settings (six steps, two clips) beside the task's own, five seeds, 200 rounds on
1,000 records of digits and 437 that are held out: seconds of one core of the whole
command, from its start to its end.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rounds.hardware import hardware
from precad.simulation.datasets import digits

RESULT = Path(__file__).parent / "results" / "setting_search.json"
RECORDS, SEEDS, ROUNDS = 1000, 5, 200
TRIED = ("learning_rate=.1,.2,.4,.8,1.6,3.2", "client_clip=2,8")


def main() -> None:
    """Measure each number of owners that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--owners", type=int, action="append", help="10 unless given")
    owners = parser.parse_args().owners or [10]
    found = json.loads(RESULT.read_text()) if RESULT.is_file() else {"runs": {}}
    for count in owners:
        found["runs"][str(count)] = measured(count)
        found |= {"hardware": hardware(), "records": RECORDS, "tried": TRIED}
        found |= {"seeds": SEEDS, "rounds": ROUNDS}
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        RESULT.write_text(text, encoding="utf-8")
        print(found["runs"][str(count)], flush=True)


def measured(owners: int) -> dict[str, Any]:
    """Return seconds of the processor and of the clock, and the load beside it."""
    whole = digits()
    precad = str(Path(sys.executable).with_name("precad"))
    with tempfile.TemporaryDirectory() as folder:

        def run(*arguments: str) -> None:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            command = [precad, *arguments]
            subprocess.run(
                command, cwd=folder, env=environment, check=True, capture_output=True
            )

        x = np.concatenate([whole.train_x, whole.test_x])
        y = np.concatenate([whole.train_y, whole.test_y])
        np.savez(Path(folder) / "public.npz", x=x[:RECORDS], y=y[:RECORDS])
        np.savez(Path(folder) / "test.npz", x=x[RECORDS:1437], y=y[RECORDS:1437])
        model = ("--architecture", "logistic", "--features", "64", "--classes", "10")
        sizes = f"{owners}x{RECORDS // owners}"
        run("task", "new", "task.toml", *model, "--records", sizes, "--epsilon", "3")
        files = ("--data", "public.npz", "--held-out", "test.npz", "--public")
        tries = [part for words in TRIED for part in ("--try", words)]
        began = time.monotonic()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run("simulate", "task.toml", *files, *tries, "--seeds", str(SEEDS))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = sum(
        getattr(after, name) - getattr(before, name)
        for name in ("ru_utime", "ru_stime")
    )
    return {
        "processor_s": round(processor, 1),
        "wall_s": round(time.monotonic() - began, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    main()
