"""Least squares and covariances by the product: noise, the cut's bias, coverage.

Rows are those of ``slopes``. What owners add, what is released and what is answered are
the product's own code; the noise is the continuous stand-in, rounded. Truth is what the
same sums say without noise, which tests compare with NumPy.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from precad.client.answers import answers_of
from precad.client.asked_records import asked_records
from precad.common.fixed_point import decode
from precad.common.task import Task
from research.questions.evidence.slopes import INPUTS, rows_of
from research.questions.release import noise_multiplier

OWNERS = 10
DELTA = 1e-5
TABLES = 10
NAMES = [f"x{number}" for number in range(1, INPUTS + 1)]
KINDS: Mapping[str, Mapping[str, object]] = {
    "least-squares": {"column": "y", "lower": -1, "upper": 1},
    "covariance": {},
}


def task_of(kind: str, records: int, length: float, epsilon: float) -> Task:
    """Return the task that asks for one of ``KINDS`` alone."""
    query = {
        "name": "rows",
        "kind": kind,
        "inputs": NAMES,
        "limits": {name: [-1, 1] for name in NAMES},
        "length": length,
        **KINDS[kind],
    }
    return Task.parse(
        {
            "name": "asked",
            "validation": "proof",
            "privacy": {"noise_multiplier": noise_multiplier(epsilon, DELTA)},
            "enrolment": {"clients": OWNERS, "max_expected_records": records / OWNERS},
            "query": [query],
        }
    )


def measure(
    *, kind: str, records: int, length: float, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return rms noise and bias of slopes, and how often intervals cover, by answer.

    Args:
        kind: One of ``KINDS``.
        records: n.
        length: r.
        epsilon: Of the release at δ = 1e-5, against one curious server.
        draws: Releases, over all made-up tables.
        seed: Of tables and noise.
    """
    generator = np.random.default_rng([seed, records, round(100 * length)])
    task = task_of(kind, records, length, epsilon)
    noise = math.sqrt(2) * task.mechanism.noise_units
    errors, biases = list[float](), list[float]()
    covered = defaultdict[str, list[bool]](list)
    together = list[bool]()
    for _ in range(TABLES):
        rows = rows_of(records, generator)
        table = dict(zip([*NAMES, "y"], rows.T, strict=True))
        total = asked_records(table, task).total()
        exact = answers_of(task, decode(total, task.fractional_bits), records)
        truth = {each.of: each.value for each in exact}
        whole = rows[~np.isnan(rows).any(axis=1)]
        inputs = np.column_stack([np.ones(len(whole)), whole[:, :-1]])
        uncut = np.linalg.lstsq(inputs, whole[:, -1], rcond=None)[0][1:]
        slopes = [f"slope of {name}" for name in NAMES]
        if kind == "least-squares":
            pairs = zip(slopes, uncut, strict=True)
            biases += [truth[name] - float(slope) for name, slope in pairs]
        for _ in range(max(1, draws // TABLES)):
            drawn = np.rint(generator.normal(0, noise, task.dimension)).astype(np.int64)
            released = decode(total + drawn, task.fractional_bits)
            inside = True
            for each in answers_of(task, released, records):
                value = truth[each.of]
                covered[each.of].append(each.low <= value <= each.high)
                inside &= each.low_together <= value <= each.high_together
                if each.of in slopes:
                    errors.append(each.value - value)
            together.append(inside)
    shares = {of: round(float(np.mean(each)), 4) for of, each in covered.items()}
    found: dict[str, Any] = {
        "covered_least": min(shares.values()),
        "covered_most": max(shares.values()),
        "together": round(float(np.mean(together)), 4),
        "answers": len(shares),
    }
    if kind == "least-squares":
        found |= {
            "covered": shares,
            "noise_rms": round(float(np.sqrt(np.mean(np.square(errors)))), 4),
            "bias_rms": round(float(np.sqrt(np.mean(np.square(biases)))), 4),
            "bias_largest": round(max(map(abs, biases)), 4),
        }
    return found
