"""The errors that are said beforehand are those that answers have."""

import numpy as np
import pytest
from tests.rig import heads
from tests.rig.documents import Document
from tests.rig.questions import AGE, QUERIES, asking

from precad.client.answers import answers_of
from precad.client.asked_records import asked_records
from precad.client.expected_answers import expected_errors
from precad.common.fixed_point import decode
from precad.common.task import Task

RECORDS = 3000
COVARIANCE: Document = {
    "name": "both",
    "kind": "covariance",
    "inputs": ["age", "months"],
    "limits": {"age": [0, 100], "months": [0, 12]},
}
SQUARES: Document = {
    "name": "explained",
    "kind": "least-squares",
    **AGE,
    "inputs": ["months"],
    "limits": {"months": [0, 12]},
}
STAY: Document = {
    name: value
    for query in QUERIES
    for name, value in query.items()
    if query["name"] == "stay" and name != "by"
}


def asking_of(records: int, *queries: Document) -> Task:
    enrolment = {"clients": 3, "max_expected_records": records / 3}
    return asking(list(queries), {"noise_multiplier": 3.73}, enrolment=enrolment)


def even(records: int) -> dict[str, list[str]]:
    """A table with values spread as is supposed: half of all are left at the end."""
    generator = np.random.default_rng(5)
    ages, months = generator.uniform(0, [100, 12], (records, 2)).T
    died = generator.random(records) < 0.5
    return {
        "age": [f"{age:.6g}" for age in ages],
        "months": [
            f"{month if dead else 13:.6g}"
            for month, dead in zip(months, died, strict=True)
        ],
        "died": [str(int(dead)) for dead in died],
        "sex": ["f", "m"] * (records // 2),
        "ward": ["1", "2", "3"] * (records // 3),
    }


@pytest.mark.parametrize(
    ("query", "of"),
    [
        ({"name": "all", "kind": "count"}, "records"),
        ({"name": "sexes", "kind": "shares", "column": "sex"}, "f"),
        ({"name": "age", "kind": "mean", **AGE}, "mean"),
        ({"name": "age", "kind": "mean", **AGE}, "standard deviation"),
        (STAY, "survival at 8"),
        (COVARIANCE, "mean of age"),
        (COVARIANCE, "correlation of age and months"),
        (SQUARES, "constant"),
        (SQUARES, "slope of months"),
        (SQUARES, "residual standard deviation"),
    ],
    ids=str,
)
def test_evenly_spread_records_have_the_errors_that_were_said(
    query: Document, of: str
) -> None:
    task = asking_of(RECORDS, query)
    said = expected_errors(task, RECORDS)
    table = even(RECORDS)
    if query is not STAY:
        table["months"] = [f"{month % 12 + 0.5}" for month in range(RECORDS)]
    exact = decode(asked_records(table, task).total(), task.fractional_bits)
    half = next(
        (each.high - each.low) / 2.0
        for each in answers_of(task, exact, RECORDS)
        if each.of == of
    )
    short = {"records": "count", "f": "count", "survival at 8": "survival"}
    name = short.get(of, "correlation" if "correlation" in of else of)
    assert said[str(query["name"]), name] == pytest.approx(half, rel=0.15)


def test_the_first_of_a_query_is_what_it_asks_for() -> None:
    first: dict[str, str] = {}
    asked = [query for query in QUERIES if query["kind"] != "evaluation"]
    for name, of in expected_errors(asking_of(RECORDS, *asked), RECORDS):
        first.setdefault(name, of)
    assert len(first) == len(asked)
    kinds = {str(query["kind"]): first[str(query["name"])] for query in asked}
    assert kinds == {
        "count": "count",
        "shares": "count",
        "cross-table": "count",
        "histogram": "count",
        "mean": "mean",
        "quantiles": "rank",
        "survival": "survival",
        "covariance": "mean of age",
        "least-squares": "constant",
    }


def test_errors_shrink_with_records() -> None:
    few, many = (
        expected_errors(asking_of(records, STAY | {"bins": 36}), records)[
            "stay", "survival"
        ]
        for records in (300, 3000)
    )
    assert few > 0.05 > many > 0.003


def test_a_head_is_no_answer_with_an_error() -> None:
    assert not expected_errors(heads.task_of(), RECORDS)


def test_levels_that_are_called_as_other_answers_are_levels() -> None:
    """Levels have any names."""
    names = ["survival", "median", "quantile 0.5", "independent", "missing value", "R²"]
    listed = [{"name": "sex", "kind": "categorical", "levels": names}]
    shares = {"name": "s", "kind": "shares", "column": "sex"}
    enrolment = {"clients": 3, "max_expected_records": 1000}
    task = asking([shares], columns=listed, enrolment=enrolment)
    assert {of for _, of in expected_errors(task, RECORDS)} == {"count", "share"}
