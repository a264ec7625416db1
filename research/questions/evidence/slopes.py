"""Least squares of five inputs: noise, clipping's bias, and how often intervals cover.

Inputs of deviation .4 and the answer, all clipped to [−1, 1]; one row in fifty misses a
value. Coverage is of the slopes of the pooled, cut rows. Bias is theirs less the uncut.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from research.questions.block import Floats
from research.questions.interval import deviations
from research.questions.outer_product import OuterProduct
from research.questions.release import Release, bits_of, noise_multiplier

TABLES = 10
OWNERS = 10
DELTA = 1e-5
INPUTS = 5
MISSING = 0.02


def rows_of(records: int, generator: np.random.Generator) -> Floats:
    """Return made-up rows, ``[n, INPUTS + 1]``: inputs and what they explain."""
    inputs = np.clip(generator.normal(0, 0.4, (records, INPUTS)), -1, 1)
    answer = inputs @ np.linspace(0.5, -0.3, INPUTS)
    answer = np.clip(answer + generator.normal(0, 0.3, records), -1, 1)
    rows = np.column_stack([inputs, answer])
    missing = generator.random(records) < MISSING
    rows[missing, generator.integers(0, INPUTS + 1, missing.sum())] = np.nan
    return rows


def measure(
    *, records: int, length: float, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return rms noise and bias of slopes, sampling's error, and the coverage.

    Args:
        records: n.
        length: r.
        epsilon: Of the release at δ = 1e-5, against one curious server.
        draws: Releases, over all made-up tables.
        seed: Of tables and noise.
    """
    generator = np.random.default_rng([seed, records, round(100 * length)])
    block = OuterProduct(width=INPUTS + 1, length=length)
    release = Release(
        blocks=[block],
        sigma=noise_multiplier(epsilon, DELTA),
        bits=bits_of(records // OWNERS),
    )
    unit, noise = int(release.units[0]), float(release.noise[0])
    errors, biases, covered, matrices, sampling, cut = [], [], [], [], [], []
    for _ in range(TABLES):
        rows = rows_of(records, generator)
        whole = rows[~np.isnan(rows).any(1)]
        uncut = np.column_stack([np.ones(len(whole)), whole[:, :-1]])
        exact = np.linalg.lstsq(uncut, whole[:, -1], rcond=None)[0]
        residual = whole[:, -1] - uncut @ exact
        spread = np.linalg.inv(uncut.T @ uncut) * residual.var()
        sampling.append(np.sqrt(np.diag(spread))[1:])
        cut.append((np.linalg.norm(whole, axis=1) > length).mean())
        pooled_sums = block.vectors(rows).sum(0)[None, :]
        pooled = block.least_squares(pooled_sums, noise=0.0, records=records, z=0.0)
        truth = pooled.estimate[0]
        biases.append((truth - exact)[1:])
        total = block.total(rows, unit)
        (sums,) = release.drawn([total], max(1, draws // TABLES), generator)
        found = block.least_squares(sums, noise=noise, records=records, z=deviations())
        errors.append((found.estimate - truth)[:, 1:])
        covered.append(found.covers(truth))
        stated: dict[str, Any] = {"noise": noise, "records": records, "z": deviations()}
        matrix = block.covariances(sums, **stated)
        true_matrix = block.covariances(pooled_sums, **stated).estimate[0]
        matrices.append(matrix.covers(true_matrix))
    error, bias = np.concatenate(errors), np.stack(biases)
    return {
        "noise_rms": round(float(np.sqrt((error**2).mean())), 4),
        "bias_rms": round(float(np.sqrt((bias**2).mean())), 4),
        "bias_largest": round(float(np.abs(bias).max()), 4),
        "sampling": round(float(np.mean(sampling)), 4),
        "cut": round(float(np.mean(cut)), 4),
        "covariances_covered": _ends(np.concatenate(matrices).mean(0)),
        "covered": [round(float(c), 4) for c in np.concatenate(covered).mean(0)],
    }


def _ends(values: Floats) -> list[float]:
    """Return the least and the largest."""
    return [round(float(values.min()), 4), round(float(values.max()), 4)]
