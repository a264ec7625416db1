"""The log-rank test of noisy prefix sums, and what `ask new` expects of survival."""

import math

import numpy as np
import pytest
from tests.rig.documents import Document
from tests.rig.questions import SEX, answered, asking

from precad.client.answers import answers_of
from precad.common.fixed_point import decode
from precad.common.task import Task

MONTHS: Document = {
    "name": "stay",
    "kind": "survival",
    "column": "months",
    "event": {"died": "1"},
    "upper": 36,
    "bins": 12,
}
BY_SEX = MONTHS | {"by": "sex"}


def p_values(
    task: Task, *, ratio: float, cohorts: int, records: int, noise: float
) -> list[float]:
    """Of cohorts whose second group has so many times the first's hazard."""
    draw = np.random.default_rng(cohorts)
    found = []
    for _ in range(cohorts):
        of_first = draw.random(records) < 0.4
        life = draw.exponential(30, records) / np.where(of_first, 1, ratio)
        leave = draw.uniform(12, 58, records)
        table = {
            "months": [f"{time:.3f}" for time in np.minimum(life, leave)],
            "died": ["1" if died else "0" for died in life <= leave],
            "sex": ["f" if first else "m" for first in of_first],
        }
        drawn = np.rint(draw.normal(0, noise, task.dimension)).astype(np.int64)
        sums = decode(answered(task, table).total() + drawn, task.fractional_bits)
        answers = answers_of(task, sums, records)
        found += [each.value for each in answers if each.measure == "p-value"]
    return found


@pytest.mark.parametrize(
    ("ratio", "least", "most"), [(1.0, 0.0, 0.12), (2.0, 0.9, 1.0)]
)
def test_equal_hazards_are_seldom_rejected_and_others_are(
    ratio: float, least: float, most: float
) -> None:
    task = asking([BY_SEX], {"noise_multiplier": 3.7}, columns=[SEX])
    noise = math.sqrt(2) * task.mechanism.noise_units
    found = p_values(task, ratio=ratio, cohorts=100, records=1000, noise=noise)
    assert len(found) == 100
    assert least <= np.mean(np.array(found) <= 0.05) <= most


def test_the_p_value_is_the_log_rank_tests() -> None:
    """Without noise worth speaking of, by hand."""
    query = BY_SEX | {"upper": 4, "bins": 4}
    task = asking([query], {"noise_multiplier": 0.04}, columns=[SEX])
    cells = (
        [("f", 0, 1)] * 5 + [("f", 1, 0)] * 5 + [("m", 0, 1)] * 2 + [("m", 5, 0)] * 8
    )
    sexes, times, died = ([str(each[at]) for each in 5 * cells] for at in range(3))
    sums = answered(task, {"sex": sexes, "months": times, "died": died}).total()
    exact = decode(sums, task.fractional_bits)
    (found,) = (
        each for each in answers_of(task, exact, 100) if each.measure == "p-value"
    )
    # 25 of 35 events in the first group, of half of all at risk: 17.5 expected.
    variance = 35 * 0.5 * 0.5 * 65 / 99
    assert found.value == pytest.approx(
        math.erfc(7.5 / math.sqrt(2 * variance)), rel=1e-2
    )
    assert (found.group, found.of) == ("m", "hazard as of f in the population")
