"""The forecast orders real trainings: benchmarks/results/trainings.json has them.

Constants were fitted to the rows that are not held out; the others were drawn, and trained, when
the forecast had been fixed (research/trainings.py, after).
"""

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from research.fit_forecast import fitted, training_of
from scipy.stats import spearmanr

from precad.accounting.forecast import FITTED, Architecture, Training, forecast
from precad.accounting.sizes import owners_sizes
from precad.common.errors import Misconfiguration

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "trainings.json"
ROWS: list[dict[str, Any]] = json.loads(TABLE.read_text())["settings"]
USUAL = [row for row in ROWS if row["epsilon"] == 3 and row["records"] == "10x6000"]
TRAINING = Training(
    records=(6000,) * 10,
    record_rate=0.05,
    client_rate=1.0,
    rounds=200,
    noise_multiplier=1.287,
    record_clip=1.0,
    effective_record_clip=1.0,
    client_clip=100.0,
    learning_rate=10.0,
    dimension=7850,
)


def chosen(rows: list[dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def ranking(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Spearman's rank correlation, and what the top choice lacks to the best accuracy."""
    forecasts = [forecast(training_of(row)).accuracy for row in rows]
    measured = [row["accuracy"] for row in rows]
    top = measured[forecasts.index(max(forecasts))]
    return float(spearmanr(forecasts, measured).statistic), max(measured) - top


GROUPS = {
    "linear": chosen(USUAL, model="logistic"),
    "one hidden layer": chosen(USUAL, model="mlp"),
    # Of several numbers of owners and ε, so that no plan ever chooses among all of them.
    "robust": [row for row in ROWS if len(owners_sizes(row["records"])) > 10],
}


@pytest.mark.parametrize(
    ("group", "held_out", "least", "most"),
    [
        ("linear", False, 0.95, 0.01),
        ("linear", True, 0.95, 0.01),
        ("one hidden layer", False, 0.9, 0.01),
        # Seven settings; the two with the shortest way are forecast ten points too high.
        ("one hidden layer", True, 0.85, 0.01),
        ("robust", False, 0.95, 0.04),
        ("robust", True, 0.9, 0.02),
    ],
)
def test_it_orders_trainings_and_its_first_choice_is_near_the_best(
    group: str, least: float, most: float, *, held_out: bool
) -> None:
    rows = chosen(GROUPS[group], held_out=held_out)
    assert len(rows) >= 7
    correlation, lacks = ranking(rows)
    assert correlation >= least
    assert lacks <= most


def test_under_the_noise_and_the_clip_of_robustness_it_isnt_hopeful() -> None:
    """It was, by 2.4 points on average and 6 where the planner had chosen."""
    for held_out in (False, True):
        rows = chosen(GROUPS["robust"], held_out=held_out)
        excess = [forecast(training_of(row)).accuracy - row["accuracy"] for row in rows]
        assert abs(np.mean(excess)) < 0.015
        assert np.mean(np.abs(excess)) < 0.04


def test_it_orders_small_uneven_and_very_private_trainings_too() -> None:
    others = [row for row in ROWS if row not in USUAL]
    several = [records for records, n in Counter(r["records"] for r in others).items() if n >= 5]
    assert len(several) >= 4
    for records in several:
        rows = chosen(others, records=records, held_out=False)
        correlation, lacks = ranking(rows)
        assert correlation >= 0.8, records
        assert lacks <= 0.02


@pytest.mark.parametrize(("clip", "lacks"), [(99.5, 0.01), (183.0, 0.02)])
def test_what_the_planner_chose_trains_as_forecast_and_near_the_best(
    clip: float, lacks: float
) -> None:
    """Trained after it was chosen (research/trainings.py, after)."""
    (row,) = chosen(USUAL, client_clip=clip)
    best = max(each["accuracy"] for each in chosen(USUAL, model=row["model"]))
    assert row["accuracy"] > best - lacks
    assert forecast(training_of(row)).accuracy == pytest.approx(row["accuracy"], abs=0.01)


def test_the_constants_are_those_that_the_table_gives() -> None:
    again = asdict(fitted([row for row in ROWS if not row["held_out"]]))
    for name, value in asdict(FITTED).items():
        assert again[name] == pytest.approx(value, rel=0.02), name


@pytest.mark.parametrize(
    ("name", "worse"),
    [
        ("noise_multiplier", 10.0),
        ("rounds", 20),
        ("learning_rate", 0.1),
        ("learning_rate", 300.0),
        ("client_clip", 1.0),
        ("client_rate", 0.1),
        ("records", (60,) * 10),
    ],
)
def test_what_trains_worse_is_forecast_to(name: str, worse: Any) -> None:
    changed = replace(TRAINING, **{name: worse})
    assert forecast(changed).accuracy < forecast(TRAINING).accuracy - 0.005


def test_it_says_what_keeps_a_training_down() -> None:
    assert forecast(replace(TRAINING, learning_rate=0.1)).worst == "too short a way"
    assert forecast(replace(TRAINING, noise_multiplier=50.0)).worst == "noise"
    short = replace(TRAINING, rounds=20, learning_rate=100.0, noise_multiplier=0.1)
    assert forecast(short).worst == "overshooting"


def test_the_unit_of_gradients_is_no_matter() -> None:
    """Inputs ten times as large: clips and gradients ten times, steps a hundredth."""
    scaled = replace(
        TRAINING,
        record_clip=10.0,
        effective_record_clip=10.0,
        client_clip=1000.0,
        learning_rate=0.1,
        gradient_norm=90.0,
    )
    assert forecast(scaled).accuracy == pytest.approx(forecast(TRAINING).accuracy)


def test_many_sizes_are_as_good_as_each_one() -> None:
    sizes = tuple(range(500, 1500))
    many, mean = (
        forecast(replace(TRAINING, records=records)) for records in (sizes, (1000,) * 1000)
    )
    assert many.accuracy == pytest.approx(mean.accuracy, abs=1e-3)


def test_nothing_is_below_a_guess_or_above_one() -> None:
    for sigma in (1e-6, 1.0, 1e6, 1e300):
        for rate in (1e-9, 1.0, 1e9):
            tried = replace(TRAINING, noise_multiplier=sigma, learning_rate=rate)
            for architecture in Architecture:
                assert 0.1 <= forecast(replace(tried, architecture=architecture)).accuracy < 1


@pytest.mark.parametrize(
    ("name", "value"), [("rounds", 0), ("learning_rate", float("nan")), ("records", (0,))]
)
def test_a_wrong_number_is_named(name: str, value: Any) -> None:
    with pytest.raises(Misconfiguration, match=name):
        replace(TRAINING, **{name: value})
