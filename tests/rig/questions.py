"""Tasks that ask, and tables of hospitals that answer."""

import random
from collections.abc import Sequence
from pathlib import Path

from tests.rig.documents import Document

from precad.client.asked_records import AskedRecords, asked_records
from precad.common.task import Task

SEX: Document = {"name": "sex", "kind": "categorical", "levels": ["f", "m"]}
WARD: Document = {"name": "ward", "kind": "categorical", "levels": ["1", "2", "3"]}
AGE: Document = {"column": "age", "lower": 0, "upper": 100}
QUERIES: list[Document] = [
    {"name": "patients", "kind": "count", "by": "sex"},
    {"name": "sexes", "kind": "shares", "column": "sex", "where": {"ward": "3"}},
    {"name": "age", "kind": "mean", **AGE, "weight": 2},
    {"name": "age by sex", "kind": "mean", **AGE, "by": "sex"},
    {"name": "sex by ward", "kind": "cross-table", "column": "sex", "across": "ward"},
    {"name": "ages", "kind": "histogram", "column": "age", "edges": [20, 40, 60]},
    {
        "name": "stay",
        "kind": "survival",
        "column": "months",
        "event": {"died": "1"},
        "upper": 12,
        "bins": 6,
        "by": "sex",
    },
    {"name": "quarters", "kind": "quantiles", **AGE, "bins": 50, "by": "sex"},
    {
        "name": "scale",
        "kind": "quantiles",
        "column": "age",
        "quantiles": [0.5],
        "bins": 256,
    },
    {
        "name": "together",
        "kind": "covariance",
        "inputs": ["age", "months", "ward"],
        "limits": {"age": [0, 100], "months": [0, 30]},
        "length": 2,
        "by": "sex",
    },
    {
        "name": "explained",
        "kind": "least-squares",
        **AGE,
        "inputs": ["months", "sex"],
        "limits": {"months": [0, 30]},
        "length": 2,
    },
]
"""One of each kind, of everything that a query may have."""
Table = dict[str, list[str]]


def asks(
    queries: Sequence[Document] = QUERIES,
    changes: Document | None = None,
    **more: object,
) -> Document:
    """The values of a task's file; ``changes`` are of its privacy."""
    return {
        "name": "asked",
        "validation": "proof",
        "privacy": {"noise_multiplier": 4.0} | (changes or {}),
        "enrolment": {"clients": 3, "max_expected_records": 1000},
        "query": list(queries),
        "columns": [SEX, WARD],
    } | more


def asking(*given: object, **more: object) -> Task:
    return Task.parse(asks(*given, **more))  # type: ignore[arg-type]


def answered(task: Task, table: Table) -> AskedRecords:
    return asked_records(table, task)


def ward(count: int, seed: int) -> Table:
    """A table as hospitals have it, with what is missing and what nobody listed."""
    rng = random.Random(seed)
    ages = [str(round(rng.gauss(60, 15))) for _ in range(count)]
    return {
        "sex": rng.choices(["f", "m", "d", "", "NA"], [5, 5, 1, 1, 1], k=count),
        "age": [rng.choice([age, age, age, "NA"]) for age in ages],
        "ward": [str(rng.randint(1, 4)) for _ in range(count)],
        "months": rng.choices(
            ["-1", "NA", "0", "2", "3.5", "7.9", "12", "30"], k=count
        ),
        "died": rng.choices(["1", "0", "unknown", ""], [4, 5, 1, 1], k=count),
    }


def write_csv(path: Path, table: Table) -> Path:
    lines = [",".join(row) for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join([",".join(table), *lines]) + "\n", encoding="utf-8")
    return path
