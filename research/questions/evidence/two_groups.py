"""The log-rank test of two groups: how often it rejects, in new cohorts each time.

Both groups come from one population, or the second has another hazard. Each made-up
cohort has one release, so what is counted is of sampling and noise together.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from research.questions.interval import deviations
from research.questions.release import Release, bits_of, noise_multiplier
from research.questions.survival import Survival

OWNERS = 10
DELTA = 1e-5


def measure(
    *,
    records: int,
    months: int,
    hazard_ratio: float,
    epsilon: float,
    draws: int,
    seed: int,
) -> Mapping[str, Any]:
    """Return how often the test rejects at 5 %, with noise and without.

    Args:
        records: n, of both groups; two in five are in the first.
        months: M.
        hazard_ratio: Of the second group to the first.
        epsilon: Of the release at δ = 1e-5, against one curious server.
        draws: Cohorts.
        seed: Of times and noise.
    """
    generator = np.random.default_rng([seed, records, months])
    block = Survival(months=months, groups=2)
    sigma = noise_multiplier(epsilon, DELTA)
    release = Release(blocks=[block], sigma=sigma, bits=bits_of(records // OWNERS))
    unit = int(release.units[0])
    decoder = block.decoder(unit)
    totals = np.empty((draws, block.dimension))
    for draw in range(draws):
        group = (generator.random(records) > 2 / 5).astype(np.int64)
        life = generator.exponential(30 * months / 36, records)
        life = life / np.where(group > 0, hazard_ratio, 1.0)
        leave = generator.uniform(months / 3, 1.6 * months, records)
        totals[draw] = block.total(
            np.minimum(life, leave), life <= leave, group, unit=unit
        )
    pooled = decoder.prefixes(totals / unit, records)
    noise = generator.normal(0.0, release.unit_noise, totals.shape)
    noisy = decoder.prefixes((totals + noise) / unit, records)
    without = decoder.log_rank(pooled, noise=0.0)
    found = decoder.log_rank(noisy, noise=float(release.noise[0]))
    z = deviations()
    return {
        "rejected": round(float((np.abs(found) > z).mean()), 4),
        "rejected_without_noise": round(float((np.abs(without) > z).mean()), 4),
        "deviation": round(float(found.std()), 3),
    }
