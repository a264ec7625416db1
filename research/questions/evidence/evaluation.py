"""Do the intervals of a model's evaluation cover the pooled, binned answer?

One release with two blocks of equal shares: class × score bin of a classifier, and the
fit of a regression. Scores and values are missing, out of range and rounded.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from research.questions.fit import Fit
from research.questions.interval import Interval, deviations
from research.questions.release import Release, bits_of, noise_multiplier
from research.questions.scores import Answers, Scores

BINS = 10
CUT = 5
OWNERS = 10
DELTA = 1e-5
MISSING = 0.05
CHUNK = 1000


def answered(answers: Answers, z: float) -> dict[str, Interval]:
    """Return what is asked of a classifier."""
    false, true = answers.roc(CUT, z=z)
    return {
        "accuracy": answers.accuracy(CUT, z=z),
        "confusion": answers.confusion(CUT, z=z),
        "log loss": answers.log_loss(z=z),
        "false positives' rate": false,
        "true positives' rate": true,
        "AUC": answers.auc(z=z),
        "calibration, low": answers.calibration(0, 3, z=z),
        "calibration, high": answers.calibration(6, 9, z=z),
    }


def measure(
    *, records: int, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return shares of releases whose intervals cover, alone and together.

    Args:
        records: n.
        epsilon: Of the whole release at δ = 1e-5, against one curious server.
        draws: Releases.
        seed: Of the table and the noise.
    """
    generator = np.random.default_rng([seed, records])
    positive = generator.random(records) < generator.uniform(0.2, 0.4)
    classes = positive.astype(np.float64)
    logit = generator.normal(size=records) + 1.5 * classes - 1.2
    score = np.round(1.02 / (1 + np.exp(-logit)), 2)
    score[generator.random(records) < MISSING] = np.nan
    value = np.rint(generator.normal(100, 30, records))
    prediction = value + generator.standard_t(4, records) * 12
    value[generator.random(records) < MISSING] = np.nan
    scores, fit = Scores(bins=BINS), Fit(low=0, high=200, residual=50)
    release = Release(
        blocks=[scores.block, fit],
        sigma=noise_multiplier(epsilon, DELTA),
        bits=bits_of(records // OWNERS),
        weights=[1.0, 1 / fit.norm],
    )
    units = [int(unit) for unit in release.units]
    noise = [float(each) for each in release.noise]
    codes = scores.codes(score, classes)
    totals = [
        scores.block.total(codes, units[0]),
        fit.total(value, prediction, units[1]),
    ]
    exact = scores.answers(scores.pooled(codes), noise=0.0, records=records)
    pooled = {name: found.estimate for name, found in answered(exact, 0.0).items()}
    sums = fit.vectors(value, prediction).sum(0)[None, :]
    none: dict[str, Any] = {"noise": 0.0, "records": records, "z": 0.0}
    pooled["squared error"] = fit.mean_squared_error(sums, **none).estimate
    pooled["R²"] = fit.r_squared(sums, **none).estimate
    count = sum(each.size for each in pooled.values())
    hits = {name: np.zeros(each.size) for name, each in pooled.items()}
    together = 0.0
    for start in range(0, draws, CHUNK):
        size = min(CHUNK, draws - start)
        released = release.drawn(totals, size, generator)
        every = np.ones(size)
        for z in (deviations(), deviations(count)):
            stated: dict[str, Any] = {"noise": noise[1], "records": records, "z": z}
            noisy = scores.answers(released[0], noise=noise[0], records=records)
            found = answered(noisy, z)
            found["squared error"] = fit.mean_squared_error(released[1], **stated)
            found["R²"] = fit.r_squared(released[1], **stated)
            for name, interval in found.items():
                inside = interval.covers(pooled[name]).reshape(size, -1)
                if z == deviations():
                    hits[name] += inside.sum(0)
                else:
                    every *= inside.min(1)
        together += float(every.sum())
    return {
        "covered": {
            name: [round(float(each), 4) for each in value / draws]
            for name, value in hits.items()
        },
        "together": round(together / draws, 4),
        "answers": count,
    }
