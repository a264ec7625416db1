"""Seconds, client updates a second and memory of simulations; writes results/simulate.json.

    python benchmarks/simulate.py [--flower PYTHON]

Logistic regression on digits with 1,000 clients of 50 records, and with 100; a CNN of
26,010 parameters on images of 28 × 28 with 100. Five rounds, everybody in each, a fifth
of the records. The same through Flower's simulation: one gradient step of each client
on as many records, without clips, noise, accounts or validation, averaged by Flower's
FedAvg. Each run is a process of its own, the systems take turns, and medians are shown;
a ratio is of client updates a second in this run. Memory is the most that the process
and its children held at once (PSS).

Flower's own work for a round grows with the square of the clients: its in-memory state
goes through all stored messages once for every client that it asks for, ten times a
second. So its 1,000 clients are played once, last, and stopped at --limit; its speed at
100 is its best. All of it takes less than ten minutes on two free cores, Flower's
environment aside, which is made under build/ the first time (torch and Ray: minutes,
and a network).
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.rounds.hardware import hardware
from benchmarks.rounds.meter import family

HERE = Path(__file__).parent
PROGRAMS = HERE / "simulation"
RESULT = HERE / "results" / "simulate.json"
CASES = {"logistic, 1,000 clients": ("logistic", 1000), "logistic, 100 clients": ("logistic", 100),
         "CNN, 100 clients": ("cnn", 100)}  # fmt: skip
LARGE = "logistic, 1,000 clients"
FLOWER = "Flower"
ENVIRONMENT = HERE.parent / "build" / "flower-simulation"
NEEDED = (
    "flwr[simulation]==1.41.*",
    "torch>=2.6,<2.14",
    "numpy>=2",
    "scikit-learn>=1.5",
)
ROUNDS = 5
SAMPLE_S = 0.25
Taken = dict[str, dict[str, list[dict[str, Any]]]]
"""Runs by case and system."""


def main() -> None:
    """Measure all and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--flower", type=Path, help="interpreter that has flwr[simulation]"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=180.0, help="seconds a run may take"
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    precad = [sys.executable, str(PROGRAMS / "by_precad.py")]
    systems = {
        "precad, stacked": [*precad, "stacked"],
        "precad, per client": [*precad, "per-client"],
        FLOWER: [str(given.flower or environment()), str(PROGRAMS / "by_flower.py")],
    }
    runs = [
        (case, system)
        for _ in range(given.repeats)
        for case in CASES
        for system in systems
        if (case, system) != (LARGE, FLOWER)
    ]
    taken: Taken = {}
    load = os.getloadavg()[0]
    for case, system in [*runs, (LARGE, FLOWER)]:
        kind, clients = CASES[case]
        one = measured([*systems[system], kind, str(clients), str(ROUNDS)], given.limit)
        taken.setdefault(case, {}).setdefault(system, []).append(one)
        print(case, system, one, flush=True)
        # What was measured lies there if a later one fails.
        write(given.out, taken, load, given.limit)


def environment() -> Path:
    """An interpreter with Flower's simulation, without precad; made the first time."""
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / "done"
    if not done.exists():
        print(f"installing Flower's simulation into {ENVIRONMENT}", flush=True)
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True
        )
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *NEEDED], check=True
        )
        done.touch()
    return python


def write(out: Path, taken: Taken, load: float, limit: float) -> None:
    """The result so far."""
    cases: dict[str, dict[str, Any]] = {
        case: {
            "clients": CASES[case][1],
            "systems": {
                system: shown(runs, CASES[case][1]) for system, runs in by.items()
            },
        }
        for case, by in taken.items()
    }
    for case in cases.values():
        case["times_flowers_updates_per_s"] = ratios(case["systems"])
    if LARGE in cases:
        # Where Flower is stopped there, its speed with fewer clients is the fairest to
        # it.
        small = cases.get("logistic, 100 clients", {}).get("systems", {}).get(FLOWER)
        mine = cases[LARGE]["systems"]
        cases[LARGE]["times_flowers_updates_per_s_of_100_clients"] = ratios(
            mine | ({FLOWER: small} if small else {})
        )
    document = {
        "hardware": hardware(),
        "load_before": round(load, 2),
        "rounds": ROUNDS,
        "limit_s": limit,
        "cases": cases,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def ratios(systems: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Updates a second over Flower's, where both have some."""
    flower = systems.get(FLOWER, {}).get("updates_per_s")
    return {
        system: round(found["updates_per_s"] / flower, 1)
        for system, found in systems.items()
        if system != FLOWER and flower and found["updates_per_s"]
    }


def shown(runs: list[dict[str, Any]], clients: int) -> dict[str, Any]:
    """Medians of a system's runs; null where most were stopped at the limit."""
    wall, training, peak = (
        statistics.median(run[name] for run in runs)
        for name in ("wall_s", "training_s", "peak_mib")
    )
    return {
        "wall_s": rounded(wall),
        "training_s": rounded(training),
        "updates_per_s": rounded(clients * ROUNDS / training),
        "updates_per_s_of_wall": rounded(clients * ROUNDS / wall),
        "peak_mib": rounded(peak),
        "runs": len(runs),
        "stopped": sum(math.isinf(run["training_s"]) for run in runs),
        "version": runs[0]["version"],
        "accuracy": [rounded(run["accuracy"]) for run in runs],
    }


def rounded(value: float) -> float | None:
    """Three digits; JSON has neither infinities nor NaN, and no speed is of a stopped run."""
    return float(f"{value:.3g}") if math.isfinite(value) and value > 0 else None


def measured(command: list[str], limit: float) -> dict[str, Any]:
    """One process: its wall time, its most memory, and what it says itself on its last line.

    One that takes longer than the limit is stopped: its times are infinite.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    peak, over = [0], threading.Event()
    stopped: dict[str, float] = {}

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            peak[0] = max(peak[0], sum(map(_pss_kib, family(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        out, error = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        stopped = {"wall_s": math.inf, "training_s": math.inf, "accuracy": math.nan}
    finally:
        over.set()
        watcher.join()
        # What a simulation started and left behind.
        _end(process.pid)
        process.wait()
    if stopped:
        return {"peak_mib": peak[0] / 1024, "version": "", **stopped}
    wall = time.monotonic() - started
    if process.returncode:
        raise RuntimeError(f"{command}: {error[-2000:]}")
    said: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return {"wall_s": wall, "peak_mib": peak[0] / 1024, **said}


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _pss_kib(pid: int) -> int:
    try:
        for line in (
            Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        ):
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        return 0
    return 0


if __name__ == "__main__":
    main()
