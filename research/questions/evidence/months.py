"""Kaplan–Meier's error: 36 months from one release, beside that of exact times.

Exponential times of 30 months on average and censoring uniform from month 12 to 57.6,
with one time in fifty not known or negative. The error counts the months' rounding too.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from research.questions.block import Floats
from research.questions.interval import deviations
from research.questions.release import Release, bits_of, noise_multiplier
from research.questions.survival import Survival

COHORTS = 10
OWNERS = 10
DELTA = 1e-5
CHUNK = 250
BAD = 0.02


def kaplan_meier(times: Floats, events: Floats, at: Floats) -> Floats:
    """Return the exact curve at given times, ``[times]``: Kaplan and Meier 1958."""
    order = np.argsort(times, kind="stable")
    sorted_times, died = times[order], events[order] > 0
    at_risk = times.size - np.searchsorted(sorted_times, sorted_times[died])
    steps = np.concatenate([[1.0], np.cumprod(1 - 1 / at_risk)])
    place = np.searchsorted(sorted_times[died], at, side="right")
    return steps[place]


def measure(
    *, records: int, months: int, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return the curve's root mean square error, and how often intervals cover.

    Args:
        records: n.
        months: M.
        epsilon: Of the release at δ = 1e-5, against one curious server.
        draws: Releases, over all made-up cohorts.
        seed: Of times and noise.
    """
    generator = np.random.default_rng([seed, records, months])
    block = Survival(months=months)
    release = Release(
        blocks=[block],
        sigma=noise_multiplier(epsilon, DELTA),
        bits=bits_of(max(1, records // OWNERS)),
    )
    unit = int(release.units[0])
    noise = float(release.noise[0])
    decoder = block.decoder(unit)
    squares = np.zeros(months)
    covered = np.zeros(months)
    width = np.zeros(months)
    together = 0.0
    rounding = []
    for _ in range(COHORTS):
        life = generator.exponential(30 * months / 36, records)
        leave = generator.uniform(months / 3, 1.6 * months, records)
        times = np.minimum(life, leave)
        events = life <= leave
        bad = generator.random(records)
        times[bad < BAD / 2] = np.nan
        times[bad > 1 - BAD / 2] = -1.0
        known = times >= 0
        exact = kaplan_meier(
            times[known], events[known].astype(np.float64), np.arange(1.0, months + 1)
        )
        none = np.zeros(records, np.int64)
        total = block.total(times, events, none, unit=unit)
        pooled = decoder.life_tables(decoder.prefixes(total[None, :] / unit, records))[
            0
        ].survival[0]
        rounding.append(np.abs(pooled - exact).max())
        left = max(1, draws // COHORTS)
        while left > 0:
            size = min(CHUNK, left)
            left -= size
            (sums,) = release.drawn([total], size, generator)
            prefixes = decoder.prefixes(sums, records)
            found = decoder.curve(prefixes, noise=noise, z=deviations())
            squares += ((found.estimate - exact) ** 2).sum(0)
            covered += found.covers(pooled).sum(0)
            joint = decoder.curve(prefixes, noise=noise, z=deviations(months))
            together += float(joint.covers(pooled).min(1).sum())
            width += (found.high - found.low).sum(0) / 2
    all_draws = COHORTS * max(1, draws // COHORTS)
    return {
        "rms": round(float(np.sqrt(squares.mean() / all_draws)), 4),
        "rms_of_last_month": round(float(np.sqrt(squares[-1] / all_draws)), 4),
        "largest_of_months_rounding": round(float(max(rounding)), 5),
        "covered": [round(float(each), 4) for each in covered / all_draws],
        "together": round(together / all_draws, 4),
        "half_width": round(float(width.mean() / all_draws), 4),
    }
