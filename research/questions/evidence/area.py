"""AUC's error: one release of class × score bin, asked alone, beside the exact AUC.

Exact is the AUC of the scores themselves, so the ties of bins count as an error. The
interval is of the binned scores' AUC, whose coverage is beside that of the exact
AUC, which ties make less. Some made-up models each, whose scores
are logistic of Gaussians some deviations apart; one score in fifty isn't there.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from research.questions.interval import deviations
from research.questions.release import SERVERS, Release, bits_of, noise_multiplier
from research.questions.scores import Scores, bins_for

MODELS = 20
OWNERS = 10
DELTA = 1e-5


def measure(
    *,
    records: int,
    positives: float,
    apart: float,
    epsilon: float,
    draws: int,
    seed: int,
) -> Mapping[str, Any]:
    """Return AUC's root mean square error, its bias, the coverage and the half width.

    Args:
        records: n.
        positives: Share of records of class 1.
        apart: Deviations between the classes' scores; 1.2 is an AUC of .80.
        epsilon: Of the release at δ = 1e-5, against one curious server.
        draws: Releases, over all made-up models.
        seed: Of scores and noise.
    """
    generator = np.random.default_rng([seed, records, round(1000 * positives)])
    sigma = noise_multiplier(epsilon, DELTA)
    scores = Scores(bins=bins_for(records, sigma * math.sqrt(SERVERS)))
    bits = bits_of(records // OWNERS)
    release = Release(blocks=[scores.block], sigma=sigma, bits=bits)
    noise = float(release.noise[0])
    unit = int(release.units[0])
    errors, covered, unbinned, width = [], [], [], []
    for _ in range(MODELS):
        classes = np.where(np.arange(records) < positives * records, 1.0, 0.0)
        logit = generator.normal(size=records) + apart * (classes - 0.5)
        score = 1 / (1 + np.exp(-logit))
        score[generator.random(records) < 1 / 50] = np.nan
        there = ~np.isnan(score)
        exact = float(roc_auc_score(classes[there], score[there]))
        codes = scores.codes(score, classes)
        binned = scores.answers(scores.pooled(codes), noise=0.0, records=records)
        total = scores.block.total(codes, unit)
        (sums,) = release.drawn([total], max(1, draws // MODELS), generator)
        answers = scores.answers(sums, noise=noise, records=records)
        found = answers.auc(z=deviations())
        errors.append(found.estimate - exact)
        covered.append(found.covers(float(binned.auc(z=0.0).estimate[0])))
        unbinned.append(found.covers(exact))
        width.append((found.high - found.low) / 2)
    error = np.concatenate(errors)
    return {
        "bins": scores.bins,
        "rms": round(float(np.sqrt((error**2).mean())), 4),
        "bias": round(float(error.mean()), 4),
        "covered": round(float(np.concatenate(covered).mean()), 4),
        "covered_of_exact": round(float(np.concatenate(unbinned).mean()), 4),
        "half_width": round(float(np.concatenate(width).mean()), 4),
    }
