"""How well samples fit N_Z(0, s²), counted in pieces: memory stays as it is."""

import argparse
import json
import math
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from precad.aggregator.noise import DiscreteGaussian

REACH = 16  # Standard deviations that the bins cover, either way
LEAST_EXPECTED = 25.0
LOW = 256
NOTHING = cast("NDArray[np.int64]", 0)  # To which arrays of counts are added


@dataclass(frozen=True)
class Bins:
    """Bins of 2^shift integers, at most s/128 wide but one at least; what to expect."""

    deviation: float
    shift: int
    first: int
    probabilities: NDArray[np.float64]

    @classmethod
    def of(cls, deviation: float) -> Self:
        shift = max(0, math.frexp(deviation)[1] - 8)
        last = math.ceil(REACH * deviation) >> shift
        edges = np.arange(-last - 1, last + 2, dtype=np.int64) << shift
        if deviation < 2**12:
            values = np.arange(edges[0], edges[-1])
            mass = np.exp(-0.5 * (values / deviation) ** 2)
            each = (mass / mass.sum()).reshape(-1, 1 << shift).sum(axis=1)
        else:
            # The integral from half a unit below to half a unit above: within
            # 1/(24·s²).
            at = np.abs(edges - 0.5) / deviation
            # From the nearer tail, so that nothing cancels there.
            tails = special.ndtr(-at)
            each = np.where(edges[1:] <= 0, np.diff(tails), -np.diff(tails))
            middle = int(np.flatnonzero(edges == 0)[0])
            each[middle] = 1 - tails[middle] - tails[middle + 1]
        return cls(deviation, shift, -last - 1, each)

    def index(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        inside: NDArray[np.int64] = (samples >> self.shift) - self.first
        return inside.clip(0, self.probabilities.size - 1)


@dataclass
class Tally:
    deviation: float
    samples: int = 0
    positive: int = 0
    negative: int = 0
    largest: int = 0
    beyond_six: int = 0
    powers: list[float] = field(default_factory=lambda: [0.0] * 4)
    neighbours: float = 0.0
    bins: NDArray[np.int64] = NOTHING
    low: NDArray[np.int64] = NOTHING

    def add(self, drawn: NDArray[np.int64], bins: Bins) -> None:
        self.bins += np.bincount(bins.index(drawn), minlength=bins.probabilities.size)
        self.low += np.bincount(drawn & (LOW - 1), minlength=LOW)
        z = drawn / self.deviation
        power = z.copy()
        for k in range(4):
            self.powers[k] += float(power.sum())
            power *= z
        self.neighbours += float(z[:-1] @ z[1:])
        self.samples += drawn.size
        self.positive += int((drawn > 0).sum())
        self.negative += int((drawn < 0).sum())
        self.largest = max(self.largest, int(np.abs(drawn).max()))
        self.beyond_six += int((np.abs(z) > 6).sum())

    def p_values(self, bins: Bins) -> dict[str, float]:
        n, deviation, nonzero = (
            self.samples,
            self.deviation,
            self.positive + self.negative,
        )
        found = {
            "bins": _chi_square(self.bins, n * bins.probabilities),
            "signs": _two_sided((self.positive - self.negative) / math.sqrt(nonzero)),
            "neighbours": _two_sided(
                self.neighbours / math.sqrt(n) / self._moment(2, bins)
            ),
        }
        for k in range(1, 5):
            mean = self._moment(k, bins)
            error = math.sqrt((self._moment(2 * k, bins) - mean**2) / n)
            found[f"moment {k}"] = _two_sided((self.powers[k - 1] / n - mean) / error)
        # Whether the greatest is as great as it should be, and not greater.
        so_great = -math.expm1(-n * _from(self.largest, deviation))
        no_greater = math.exp(-n * _from(self.largest + 1, deviation))
        found["largest"] = min(1.0, 2 * min(so_great, no_greater))
        beyond = stats.poisson(n * _from(math.floor(6 * deviation) + 1, deviation))
        few, many = beyond.cdf(self.beyond_six), beyond.sf(self.beyond_six - 1)
        found["beyond six"] = float(min(1.0, 2 * min(few, many)))
        if deviation >= 4 * LOW:
            found["low byte"] = _chi_square(self.low, np.full(LOW, n / LOW))
        return found

    def _moment(self, k: int, bins: Bins) -> float:
        """E[(y/s)^k]: the continuous one's from s = 4 on: they differ by 1e-130."""
        if k % 2:
            return 0.0
        if self.deviation >= 4:
            return float(special.factorial2(k - 1))
        values = (
            np.arange(bins.first, bins.first + bins.probabilities.size) / self.deviation
        )
        return float((values**k) @ bins.probabilities)


def _from(least: int, deviation: float) -> float:
    """P[|y| ≥ ``least``], for ``least`` ≥ 1."""
    if deviation >= 2**12:
        return 2 * float(special.ndtr(-(least - 0.5) / deviation))
    values = np.arange(math.ceil(REACH * deviation) + 1)
    mass = np.exp(-0.5 * (values / deviation) ** 2)
    return float(2 * mass[least:].sum() / (2 * mass.sum() - 1))


def _two_sided(z: float) -> float:
    return float(2 * special.ndtr(-abs(z)))


def _chi_square(observed: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Bins in which little is expected are taken together, each tail with its own."""
    enough = np.flatnonzero(expected >= LEAST_EXPECTED)
    first, last = enough[0], enough[-1]

    def pooled(
        values: NDArray[np.int64] | NDArray[np.float64],
    ) -> NDArray[np.float64]:
        below, above = values[:first].sum(), values[last + 1 :].sum()
        return np.concatenate([[below], values[first : last + 1], [above]])

    counts, wanted = pooled(observed), pooled(expected)
    kept = wanted >= 1
    statistic = ((counts - wanted)[kept] ** 2 / wanted[kept]).sum()
    return float(stats.chi2.sf(statistic, kept.sum() - 1))


class OpenDPGaussian:
    """OpenDP's exact N_Z(0, s²) by Canonne, Kamath and Steinke, sample by sample."""

    def __init__(self, noise_units: float) -> None:
        # Not OpenDP's prelude, which loads scikit-learn and pandas.
        from opendp import domains, measurements, metrics  # noqa: PLC0415 -- a large library
        from opendp.mod import enable_features  # noqa: PLC0415

        enable_features("contrib")
        of = (
            domains.vector_domain(domains.atom_domain(T="i64")),
            metrics.l2_distance(T="f64"),
        )
        self._measurement = measurements.make_gaussian(*of, scale=noise_units)

    def draw(self, dimension: int) -> NDArray[np.int64]:
        return np.asarray(
            self._measurement(np.zeros(dimension, dtype=np.int64)), dtype=np.int64
        )


DEVIATIONS = (3.3, 1024.0, 131_072.3, 2.0**40)
PIECE = 5 * 10**6
LEAST_P = 1e-6


def judged(deviation: float, samples: int) -> dict[str, object]:
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
    hardware = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }
    what = (
        "goodness of fit of aggregator/noise; p-values of a right sampler are uniform"
    )
    spent = {
        "samples_each": given.samples,
        "cpu_seconds": round(time.process_time(), 2),
    }
    document = {"what": what, "hardware": hardware, **spent, "judged": found}
    given.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
