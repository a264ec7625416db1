"""Run the first tier again and again, quiet or under load; record what became of it.

    python -m tests.soak.suite_runs --load quiet --fresh --runs 3
    python -m tests.soak.suite_runs --load busy --runs 1
    python -m tests.soak.suite_runs --load random --runs 50
    nice python -m tests.soak.suite_runs --load shared --runs 10

Each run is `make test` in a clone of this commit, without this environment; with
``--fresh`` in a new clone with nothing installed, else in one that is kept. ``busy``
has two loops of equal priority beside it. ``random`` changes what is beside it every
few seconds: up to six loops of some priority, and one run in four has one core.
``shared`` adds nothing to what others run on this machine. Wall and CPU seconds
(children included), the load before and after, what failed and the seed are added to
the output after each run: a series that is broken off goes on.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.rounds.hardware import hardware
from tests.rig.waiting import beside
from tests.soak.run import ROOT, Document, children_s, commit, git, write

OUTPUT = ROOT / "benchmarks" / "results" / "suite_runs.json"
KEPT = ROOT / "build" / "suite"
LOOP = (sys.executable, "-c", "while True: pass")
MOST_LOOPS = 6
FROM_HERE = ("HOME", "PATH", "LANG", "TERM", "PIP_CONFIG_FILE", "PIP_INDEX_URL", "CI")
KINDS = ("quiet", "busy", "random", "shared")


@contextmanager
def loops(number: int, nice: int = 0) -> Iterator[None]:
    started = [
        subprocess.Popen(["nice", "-n", str(nice), *LOOP]) for _ in range(number)
    ]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


@contextmanager
def load(kind: str, seed: int) -> Iterator[None]:

    def change(over: threading.Event) -> None:
        chosen = random.Random(seed)
        while not over.is_set():
            with loops(chosen.randint(0, MOST_LOOPS), chosen.choice((0, 0, 5, 10))):
                over.wait(chosen.uniform(2.0, 40.0))

    with beside(change) if kind == "random" else loops(2 if kind == "busy" else 0):
        yield


def run(folder: Path, kind: str, seed: int) -> Document:
    one_core = kind == "random" and random.Random(f"{seed} cores").random() < 0.25
    cores = ["taskset", "-c", "0"] if one_core else []
    spent, began, load_average = children_s(), time.monotonic(), [os.getloadavg()[1]]
    with load(kind, seed):
        how: Document = {"cwd": folder, "capture_output": True, "text": True}
        # Nothing of this process's own but what any shell has.
        how["env"] = {
            name: os.environ[name] for name in FROM_HERE if name in os.environ
        }
        done = subprocess.run([*cores, "make", "test"], check=False, **how)
        wall = time.monotonic() - began
    said = done.stdout.splitlines()
    closing = [
        line for line in said if re.search(r"(passed|failed|error).* in [0-9.]+s", line)
    ]
    found: Document = {"load": kind, "seed": seed, "one_core": one_core}
    found |= {"status": done.returncode, "seconds": round(wall, 1)}
    found |= {"load_average": [*load_average, os.getloadavg()[1]]}
    found |= {"closing": closing[-1].strip("= ") if closing else ""}
    found |= {"failed": [line for line in said if line.startswith(("FAILED", "ERROR"))]}
    if kind == "quiet":
        # Under load the loops are children too.
        found["cpu_seconds"] = round(children_s() - spent, 1)
    if done.returncode:
        log = Path(tempfile.mkdtemp()) / "make-test.log"
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        print(f"the log: {log}", flush=True)  # noqa: T201
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--load", choices=KINDS, default="quiet")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument(
        "--fresh", action="store_true", help="set up a new clone for each"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    of, bad = commit(), 0
    for number in range(given.runs):
        # One that is there already, set up, of this commit, is kept.
        there = (KEPT / ".venv" / ".ready").exists() and git(
            "rev-parse", "HEAD", at=KEPT
        ) == of
        if given.fresh or not there:
            shutil.rmtree(KEPT, ignore_errors=True)
            subprocess.run(
                ["git", "clone", "--quiet", str(ROOT), str(KEPT)], check=True
            )
        found = run(KEPT, given.load, given.seed + number) | {"fresh": given.fresh}
        document: Document = {
            "what": "suite_runs.py",
            "hardware": hardware(),
            "runs": [],
        }
        if given.output.exists():
            document = json.loads(given.output.read_text(encoding="utf-8"))
        document["runs"].append({"commit": of, **found})
        write(given.output, document, indent=2)
        bad += found["status"] != 0
        print(json.dumps(found), flush=True)  # noqa: T201
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
