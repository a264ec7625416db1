"""Goodness of fit of the noise on 10^8 samples at each of several deviations: `make noise`."""

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
LEAST_P = 1e-6


def judged(deviation: float, samples: int) -> dict[str, Any]:
    tally, bins = Tally(deviation), Bins.of(deviation)
    while tally.samples < samples:
        drawn = DiscreteGaussian(deviation).draw(min(PIECE, samples - tally.samples))
        tally.add(drawn, bins)
    p_values = tally.p_values(bins)
    moments = [power / tally.samples for power in tally.powers]
    return {
        "deviation": deviation,
        "samples": samples,
        "bins": len(tally.bins),
        "moments_of_y_over_s": [round(moment, 6) for moment in moments],
        "largest_over_s": round(tally.largest / deviation, 3),
        "beyond_six_deviations": tally.beyond_six,
        "p_values": {name: float(f"{p:.3g}") for name, p in p_values.items()},
        "fits": min(p_values.values()) >= LEAST_P,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10**8)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    found = [judged(deviation, given.samples) for deviation in DEVIATIONS]
    hardware = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    document = {
        "what": "goodness of fit of aggregator/noise; p-values of a right sampler are uniform",
        "hardware": hardware,
        "samples_each": given.samples,
        "cpu_seconds": round(time.process_time(), 2),
        "judged": found,
    }
    given.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
