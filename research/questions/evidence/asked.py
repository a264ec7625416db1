"""Do the product's intervals of quantiles, levels and survival cover the pooled answer?

What an owner adds, what is released and what is answered are the product's own code, of
one made-up table with the faults of real ones. The noise is the continuous stand-in,
rounded. Truth is the pooled records' own answer by other means: of a quantile the
middle of its bin, of survival the life table.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from precad.client.answers import answers_of
from precad.client.asked_records import asked_records
from precad.common.fixed_point import decode
from precad.common.questions import BOX_PLOT
from precad.common.task import Task
from research.questions.block import Floats
from research.questions.messy import WARDS, patients
from research.questions.release import noise_multiplier

OWNERS = 10
DELTA = 1e-5
STAY = 60.0
STAY_BINS = 512
MONTHS = 36
BAD = 0.02
HALF = 0.5
QUERIES: list[dict[str, object]] = [
    {"name": "stay", "kind": "quantiles", "column": "stay", "lower": 0, "upper": STAY},
    {"name": "scale", "kind": "quantiles", "column": "age"},
    {"name": "wards", "kind": "shares", "column": "ward"},
    {
        "name": "survival",
        "kind": "survival",
        "column": "months",
        "event": {"died": "1"},
        "upper": MONTHS,
        "bins": MONTHS,
    },
]
Key = tuple[str, str, str]


def quantiles(name: str, values: Floats, edges: Floats) -> dict[Key, float]:
    """Return the middles of the bins that have the box plot's quantiles."""
    there = np.sort(values[~np.isnan(values)])
    found: dict[Key, float] = {}
    for rank in BOX_PLOT:
        value = there[math.ceil(rank * there.size - 1e-9) - 1]
        place = np.clip(np.searchsorted(edges, value, "right"), 1, edges.size - 1)
        middle = (edges[place - 1] + edges[place]) / 2
        found[name, f"quantile {rank:g}", "value"] = float(middle)
    missing = float(np.isnan(values).sum())
    return {**found, (name, "missing", "count"): missing}


def life_table(times: Floats, died: Floats) -> dict[Key, float]:
    """Return survival at the months' ends, of known times."""
    known = times >= 0
    left = 1.0
    found: dict[Key, float] = {
        ("survival", "missing", "count"): float((~known).sum()),
        ("survival", "median", "value"): 1.0,
    }
    for month in range(MONTHS):
        inside = known & (times >= month) & (times < month + 1)
        ended = float((inside & (died > 0)).sum())
        at_risk = float((known & (times >= month)).sum())
        left *= 1 - ended / (at_risk - (inside.sum() - ended) / 2)
        found["survival", f"survival at {month + 1}", "share"] = left
        if left > HALF:
            # The month after it, but none after the last.
            median = float(min(month + 2, MONTHS))
            found["survival", "median", "value"] = median
    return found


def measure(
    *, records: int, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return shares of releases whose intervals cover, and mean half widths.

    Args:
        records: n.
        epsilon: Of the whole release at δ = 1e-5, against one curious server.
        draws: How many releases.
        seed: Of the table and the noise.
    """
    generator = np.random.default_rng([seed, records])
    table = patients(records, generator)
    life = generator.exponential(30 * MONTHS / 36, records)
    leave = generator.uniform(MONTHS / 3, 1.6 * MONTHS, records)
    times = np.minimum(life, leave)
    bad = generator.random(records)
    times[bad < BAD / 2] = np.nan
    times[bad > 1 - BAD / 2] = -1.0
    died = np.where(life <= leave, 1.0, 0.0)
    task = Task.parse(
        {
            "name": "asked",
            "validation": "proof",
            "privacy": {"noise_multiplier": noise_multiplier(epsilon, DELTA)},
            "enrolment": {"clients": OWNERS, "max_expected_records": records / OWNERS},
            "query": QUERIES,
            "columns": [{"name": "ward", "kind": "categorical", "levels": WARDS}],
        }
    )
    # A ward as owners type it: blanks at the ends aren't another level.
    wards = [str(ward).strip() for ward in table.ward]
    total = asked_records(
        {
            "stay": table.stay,
            "age": table.age,
            "ward": wards,
            "months": times,
            "died": died.astype(np.int64),
        },
        task,
    ).total()
    stay, scale, _, _ = task.blocks
    truth = {
        **quantiles("stay", table.stay, np.array(stay.query.bounds)),
        **quantiles("scale", table.age, np.array(scale.query.bounds)),
        **life_table(times, died),
    }
    for ward in WARDS:
        count = float(wards.count(ward))
        truth["wards", ward, "count"] = count
        truth["wards", ward, "share"] = count / records
    noise = math.sqrt(2) * task.mechanism.noise_units
    covered = dict.fromkeys(truth, 0)
    widths = dict.fromkeys(truth, 0.0)
    together = 0
    for _ in range(draws):
        drawn = np.rint(generator.normal(0, noise, task.dimension)).astype(np.int64)
        released = decode(total + drawn, task.fractional_bits)
        all_inside = True
        for each in answers_of(task, released, records):
            key = each.query, each.of, each.measure
            value = truth.get(key)
            if value is None:
                continue
            slack = 1e-9 * max(1.0, abs(value))
            covered[key] += each.low - slack <= value <= each.high + slack
            widths[key] += (each.high - each.low) / 2
            all_inside &= (
                each.low_together - slack <= value <= each.high_together + slack
            )
        together += all_inside
    return {
        "covered": {
            " ".join(key): round(count / draws, 4) for key, count in covered.items()
        },
        "together": round(together / draws, 4),
        "answers": len(truth),
        "half_widths": {
            " ".join(key): float(f"{width / draws:.4g}")
            for key, width in widths.items()
        },
    }
