"""How long 10^6 coordinates of noise take on one core, beside OpenDP's; writes results/noise.json.

The samplers take turns in one process on one core; medians of CPU seconds. The
reference is drawn fewer coordinates, because it is slow, and stated for as many.
NumPy's floating-point Gaussian, rounded, which may not be used for privacy, shows what
the arithmetic alone costs.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before NumPy starts its threads.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
from tests.rig.noise_fit import OpenDPGaussian  # noqa: E402

from precad.aggregator.noise import DiscreteGaussian  # noqa: E402

RESULT = Path(__file__).parent / "results" / "noise.json"
COORDINATES = 10**6
TURNS = 11
UNITS = {"2^10": 2.0**10, "2^20": 2.0**20, "2^40": 2.0**40}
GOAL_SECONDS = 0.1


def hardware() -> dict[str, Any]:
    """The processor and the cores at hand; this benchmark keeps to one."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [
        line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "cores_used": 1,
    }


def seconds_of(draw: Callable[[int], Any], coordinates: int) -> float:
    """CPU seconds for 10^6 coordinates, from drawing ``coordinates``."""
    start = time.thread_time()
    draw(coordinates)
    return (time.thread_time() - start) * COORDINATES / coordinates


def turns_at(units: float) -> dict[str, list[float]]:
    """Seconds for 10^6 coordinates by sampler, one for each turn."""
    generator = np.random.default_rng(0)

    def rounded(coordinates: int) -> Any:
        return np.rint(generator.standard_normal(coordinates) * units).astype(np.int64)

    drawn: dict[str, tuple[Callable[[int], Any], int]] = {
        "precad": (DiscreteGaussian(units).draw, COORDINATES),
        "opendp": (OpenDPGaussian(units).draw, COORDINATES // 50),
        "numpy_rounded_float": (rounded, COORDINATES),
    }
    seconds: dict[str, list[float]] = {name: [] for name in drawn}
    for _ in range(TURNS):
        for name, (draw, coordinates) in drawn.items():
            seconds[name].append(seconds_of(draw, coordinates))
    return seconds


def main() -> None:
    """Measure, print and keep."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = []
    for name, units in UNITS.items():
        start = time.thread_time()
        DiscreteGaussian(units)
        table = time.thread_time() - start
        seconds = turns_at(units)
        median = {sampler: statistics.median(each) for sampler, each in seconds.items()}
        rows.append(
            {
                "noise_units": name,
                "table_seconds": round(table, 4),
                "median_seconds": {k: round(v, 4) for k, v in median.items()},
                "slowest_seconds": {k: round(max(v), 4) for k, v in seconds.items()},
                "nanoseconds_a_coordinate": round(median["precad"] * 1e3, 1),
                "times_faster_than_opendp": round(median["opendp"] / median["precad"]),
                "reaches_the_goal": median["precad"] <= GOAL_SECONDS,
            }
        )
        print(rows[-1])
    document = {
        "what": (
            f"CPU seconds for {COORDINATES} coordinates of discrete Gaussian noise, one"
            f" core, medians of {TURNS} turns"
        ),
        "goal_seconds": GOAL_SECONDS,
        "hardware": hardware(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "cryptography", "opendp")},
        },
        "measured": rows,
    }
    RESULT.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{RESULT.name} written")


if __name__ == "__main__":
    main()
