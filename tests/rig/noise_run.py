"""Goodness of fit of the noise on 10^8 samples at each of several deviations.

    python -m tests.rig.noise_run --output benchmarks/results/noise_fit.json

Fresh keys from the operating system, as in a training, in pieces of 5·10^6: a piece is drawn,
counted and forgotten, and the counts are written after every tenth, so that a run that is broken
off goes on where it stopped. When all are counted, p-values are written instead of the counts.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from tests.rig.noise_fit import Bins, Tally

from precad.aggregator.noise import DiscreteGaussian

DEVIATIONS = (3.3, 1024.0, 131_072.3, 2.0**40)
PIECE = 5 * 10**6
WRITTEN = 10
LEAST_P = 1e-6


def count(tally: Tally, samples: int) -> None:
    """One piece more."""
    tally.add(DiscreteGaussian(tally.deviation).draw(samples), Bins.of(tally.deviation))


def judged(tally: Tally) -> dict[str, Any]:
    """What is kept of a sampler whose samples are all counted."""
    p_values = tally.p_values(Bins.of(tally.deviation))
    moments = [power / tally.samples for power in tally.powers]
    return {
        "deviation": tally.deviation,
        "samples": tally.samples,
        "bins": len(tally.bins),
        "moments_of_y_over_s": [round(moment, 6) for moment in moments],
        "largest_over_s": round(tally.largest / tally.deviation, 3),
        "beyond_six_deviations": tally.beyond_six,
        "p_values": {name: float(f"{p:.3g}") for name, p in p_values.items()},
        "fits": min(p_values.values()) >= LEAST_P,
    }


def started(path: Path, samples: int) -> dict[str, Any]:
    """What a run that was broken off has left, or the beginning."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["samples_each"] == samples:
            return found
    return {
        "what": "goodness of fit of aggregator/noise; p-values of a right sampler are uniform",
        "hardware": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
        "samples_each": samples,
        "cpu_seconds": 0.0,
        "judged": [],
        "counting": None,
    }


def main() -> None:
    """Pieces until all samples are counted and judged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10**8)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    found = started(given.output, given.samples)

    def write() -> None:
        given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

    for deviation in DEVIATIONS[len(found["judged"]) :]:
        tally = Tally(**(found["counting"] or {"deviation": deviation}))
        pieces = 0
        while tally.samples < given.samples:
            began = time.process_time()
            count(tally, min(PIECE, given.samples - tally.samples))
            spent = found["cpu_seconds"] + time.process_time() - began
            pieces += 1
            found |= {"counting": tally.to_json(), "cpu_seconds": round(spent, 2)}
            if pieces % WRITTEN == 0:
                write()
        found["judged"].append(judged(tally))
        found["counting"] = None
        write()
        print(found["judged"][-1], flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
