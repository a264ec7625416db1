"""The ten questions of ``peers``, asked and answered by the product, beside the peers.

The peers' errors are those that ``peers.json`` has of the same tables: OpenDP's and
IBM's libraries needn't be there.
"""

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from precad.client.answers import answers_of
from precad.client.asked_records import asked_records
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import decode
from precad.common.task import Task
from research.questions.evidence.peers import (
    AGES,
    BINS,
    BOUNDS,
    DELTA,
    LINEAR,
    OWNERS,
    QUESTIONS,
    WARDS,
    Complete,
    errors_of,
)
from research.questions.release import noise_multiplier

PEERS = Path("benchmarks/results/questions/peers.json")
MEANS = ("age", "pressure", "stay")
_LEVELS = [str(ward) for ward in range(WARDS)]
_EDGES = [float(edge) for edge in np.linspace(*BOUNDS["age"], AGES + 1)]


def _queries() -> list[dict[str, object]]:
    limits = {
        name: dict(zip(("lower", "upper"), BOUNDS[name], strict=True)) for name in MEANS
    }
    quartiles = {"quantiles": [0.5, 0.75], "bins": BINS, **limits["stay"]}
    return [
        *(
            {"name": name, "kind": "mean", "column": name, **limits[name]}
            for name in MEANS
        ),
        {"name": "quartiles", "kind": "quantiles", "column": "stay", **quartiles},
        {"name": "wards", "kind": "shares", "column": "ward"},
        {"name": "deaths", "kind": "count", "where": {"died": "1"}},
        {"name": "ages", "kind": "histogram", "column": "age", "edges": _EDGES},
    ]


def _answered(said: Mapping[tuple[str, str, str], float]) -> list[Any]:
    """Return the ten answers, in the order of ``QUESTIONS``."""
    means = {name: said[name, "mean", "value"] for name in MEANS}
    spread = {name: said[name, "standard deviation", "value"] for name in MEANS}
    bins = pairwise(_EDGES)
    ages = [said["ages", f"{a:.12g} to {b:.12g}", "count"] for a, b in bins]
    return [
        means["age"],
        spread["age"] ** 2,
        means["pressure"],
        spread["pressure"] ** 2,
        means["stay"],
        said["quartiles", "quantile 0.5", "value"],
        said["quartiles", "quantile 0.75", "value"],
        [said["wards", level, "count"] for level in _LEVELS],
        said["deaths", "records", "count"],
        ages,
    ]


def measure(
    *, records: int, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return the product's errors, and geometric means of their ratios to the peers'.

    Args:
        records: n.
        epsilon: Of all ten together, at δ = 1e-5.
        draws: Releases.
        seed: Of the table and the noise.

    Raises:
        Misconfiguration: ``PEERS`` has no such piece.
    """
    generator = np.random.default_rng([seed, records])
    table = Complete.of(records, generator)
    peers = _peers(records, epsilon, seed)
    task = Task.parse(
        {
            "name": "asked",
            "validation": "proof",
            "privacy": {"noise_multiplier": noise_multiplier(epsilon, DELTA)},
            "enrolment": {"clients": OWNERS, "max_expected_records": records / OWNERS},
            "query": _queries(),
            "columns": [{"name": "ward", "kind": "categorical", "levels": _LEVELS}],
        }
    )
    columns = {
        **{name: table.numbers(name) for name in MEANS},
        "ward": [str(ward) for ward in table.ward],
        "died": [str(died) for died in table.died],
    }
    total = asked_records(columns, task).total()
    noise = math.sqrt(2) * task.mechanism.noise_units
    found: list[list[Any]] = [[] for _ in QUESTIONS]
    for _ in range(draws):
        drawn = np.rint(generator.normal(0, noise, task.dimension)).astype(np.int64)
        released = decode(total + drawn, task.fractional_bits)
        said = {
            (each.query, each.of, each.measure): each.value
            for each in answers_of(task, released, records)
        }
        for kept, value in zip(found, _answered(said), strict=True):
            kept.append(value)
    here = errors_of([np.array(each) for each in found], table.truth)
    ratios = {
        name: here / np.array([errors[question] for question in QUESTIONS])
        for name, errors in peers.items()
        if name != "here"
    }
    return {
        "errors": dict(zip(QUESTIONS, map(_short, here), strict=True)),
        "geometric_mean": {
            name: _short(np.exp(np.log(ratio).mean())) for name, ratio in ratios.items()
        },
        "worst_linear": {
            name: _short(max(ratio[place] for place in LINEAR))
            for name, ratio in ratios.items()
        },
    }


def _peers(
    records: int, epsilon: float, seed: int
) -> Mapping[str, Mapping[str, float]]:
    for piece in json.loads(PEERS.read_text(encoding="utf-8"))["pieces"]:
        settings = piece["settings"]
        if (settings["records"], settings["epsilon"], settings["seed"]) == (
            records,
            epsilon,
            seed,
        ):
            errors: Mapping[str, Mapping[str, float]] = piece["values"]["errors"]
            return errors
    remedy = "run python -m research questions peers first, with both peers installed"
    raise Misconfiguration("peers", PEERS, remedy)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
