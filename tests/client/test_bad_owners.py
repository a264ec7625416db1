"""What bad owners may have moved: the answers without them lie where that is said."""

import math
from itertools import product

import numpy as np
import pytest
from tests.rig.questions import QUERIES, answered, asking, ward

from precad.client.answers import answers_of
from precad.client.decoded_prefixes import prefix_rows
from precad.client.results import Answer
from precad.common.arrays import Floats, Integers
from precad.common.fixed_point import decode
from precad.common.task import Task

GOOD = 1000
BY_NAME = {query["name"]: query for query in QUERIES}
ROWS = {
    "slope of months",
    "constant",
    "R²",
    "residual standard deviation",
    "correlation of age and months",
}


def task_of() -> Task:
    enrolment = {"clients": 3, "max_expected_records": 1000}
    return asking(QUERIES, enrolment=enrolment)


def attacks(task: Task, bad: int, generator: np.random.Generator) -> "list[Integers]":
    """Vectors of norm b·R: in one cell, in one block, anywhere."""
    most = bad * task.mechanism.sensitivity_units
    found = []
    for block in task.blocks:
        size = block.parameter.size
        for sign in (-1, 1):
            one = np.zeros(task.dimension)
            one[block.start + generator.integers(size)] = sign * most
            found.append(one)
        some = np.zeros(task.dimension)
        some[block.start : block.start + size] = generator.standard_normal(size)
        found.append(some * most / np.linalg.norm(some))
    found.append(generator.standard_normal(task.dimension))
    found[-1] *= most / np.linalg.norm(found[-1])
    return [each.astype(np.int64) for each in found]


def require_between(honest: list[Answer], found: list[Answer]) -> set[str]:
    """What has bounds, within which the honest answers lie."""
    bounded = set[str]()
    for good, each in zip(honest, found, strict=True):
        low, high = each.low_without_bad, each.high_without_bad
        if low is not None and high is not None:
            near = 1e-6 * (1 + abs(good.value))
            assert low - near <= good.value <= high + near, (good, each)
            bounded.add(each.of)
    return bounded


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bad", [5, 60])
def test_answers_without_bad_owners_are_between_the_bounds(bad: int, seed: int) -> None:
    """As they would be printed, of the same noise."""
    task = task_of()
    generator = np.random.default_rng(seed)
    noise = math.sqrt(2.0) * task.mechanism.noise_units
    drawn = np.rint(generator.normal(0, noise, task.dimension)).astype(np.int64)
    total = answered(task, ward(GOOD, 5)).total() + drawn
    honest = answers_of(task, decode(total, task.fractional_bits), GOOD)
    bounded = set[str]()
    for added in attacks(task, bad, generator):
        moved = decode(total + added, task.fractional_bits)
        found = answers_of(task, moved, GOOD + bad, bad_records=bad)
        bounded |= require_between(honest, found)
    assert bounded >= {"mean", "quantile 0.5", "covariance of age and months", *ROWS}
    assert bounded >= {"median", "survival at 6"}


def slopes_of(task: Task, total: Integers, records: int, step: float) -> "list[Floats]":
    """Which way the cells move each value most, and the other way: ``[answers, d]``."""

    def values(sums: Integers) -> "list[float]":
        found = answers_of(task, decode(sums, task.fractional_bits), records)
        return [each.value for each in found if each.measure in ("value", "share")]

    before = values(total)
    moved = np.array(
        [
            values(total + one)
            for one in int(step) * np.eye(task.dimension, dtype=np.int64)
        ]
    )
    slopes = (moved - before).T
    slopes = slopes[np.linalg.norm(slopes, axis=1) > 0]
    return [slopes, -slopes]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("explained", "slope of months"),
        ("explained", "R²"),
        ("explained", "residual standard deviation"),
        ("together", "correlation of ward = 2 and ward = 3"),
    ],
)
def test_asked_alone_a_plane_has_bounds_that_say_something(
    query: str, wanted: str
) -> None:
    """What bad owners add to rows' products is any matrix of that norm."""
    of_all = {name: value for name, value in BY_NAME[query].items() if name != "by"}
    records = 6000
    enrolment = {"clients": 3, "max_expected_records": records}
    task = asking([of_all], enrolment=enrolment)
    total = answered(task, ward(records, 7)).total()
    honest = answers_of(task, decode(total, task.fractional_bits), records)
    generator = np.random.default_rng(6)
    widths = []
    for bad in (3, 30):
        some = generator.standard_normal((40, task.dimension))
        most = bad * task.mechanism.sensitivity_units
        slopes = slopes_of(task, total, records, most / 20)
        for direction in np.concatenate([some, *slopes]):
            added = direction * most / np.linalg.norm(direction)
            moved = decode(total + added.astype(np.int64), task.fractional_bits)
            found = answers_of(task, moved, records + bad, bad_records=bad)
            require_between(honest, found)
        [width] = [
            each.high_without_bad - each.low_without_bad
            for each in found
            if each.of == wanted
            and each.low_without_bad is not None
            and each.high_without_bad is not None
        ]
        widths.append(width)
    assert widths[0] < widths[1] / 5


def test_survival_has_bounds_whichever_prefix_sums_are_moved() -> None:
    """Also all that raise it, or all that lower it, at once."""
    records = 2000
    queries = [{**BY_NAME["stay"], "bins": 12}]
    task = asking(queries, enrolment={"clients": 3, "max_expected_records": records})
    [block] = task.blocks
    total = answered(task, ward(records, 8)).total()
    honest = answers_of(task, decode(total, task.fractional_bits), records)
    rows = prefix_rows(block.column, block.runs)
    rows = np.concatenate([rows, np.cumsum(rows, axis=0), rows[1:] - rows[:-1]])
    seed = 11
    directions = [
        *slopes_of(task, total, records, task.mechanism.sensitivity_units)[0],
        *rows,
        *np.random.default_rng(seed).standard_normal((20, rows.shape[1])),
    ]
    widths = {}
    for bad in (5, 50):
        most = bad * task.mechanism.sensitivity_units
        for direction, sign in product(directions, (-1, 1)):
            added = np.zeros(task.dimension)
            added[: len(direction)] = (
                sign * most / np.linalg.norm(direction) * direction
            )
            moved = decode(total + added.astype(np.int64), task.fractional_bits)
            found = answers_of(task, moved, records + bad, bad_records=bad)
            assert {"median", "survival at 12"} <= require_between(honest, found)
        for each in found:
            if each.measure == "share":
                assert each.low_without_bad is not None
                assert each.high_without_bad is not None
                width = each.high_without_bad - each.low_without_bad
                widths[bad, each.group, each.of] = width
    halfway = "f", "survival at 6"
    assert widths[5, *halfway] < 0.1
    assert widths[5, *halfway] < widths[50, *halfway] / 4


@pytest.mark.parametrize(("records", "noise"), [(30, 3.0), (21, 9.0), (600, 0.5)])
def test_quantiles_of_few_records_stay_within_their_bounds(
    records: int, noise: float
) -> None:
    """Found by a search: what noise makes of prefix sums lay outside, unattacked."""
    few = [BY_NAME["quarters"], BY_NAME["scale"], BY_NAME["patients"]]
    enrolment = {"clients": 3, "max_expected_records": records}
    task = asking(few, {"noise_multiplier": noise}, enrolment=enrolment)
    seed = 5
    generator = np.random.default_rng(seed)
    exact = answered(task, ward(records, seed)).total()
    off = math.sqrt(2.0) * task.mechanism.noise_units
    for _ in range(12):
        drawn = np.rint(generator.normal(0, off, task.dimension)).astype(np.int64)
        total = exact + drawn
        honest = answers_of(task, decode(total, task.fractional_bits), records)
        for added in [0 * drawn, *attacks(task, 2, generator)]:
            moved = decode(total + added, task.fractional_bits)
            found = answers_of(task, moved, records + 2, bad_records=2)
            assert "quantile 0.5" in require_between(honest, found), seed


def test_squares_that_noise_makes_less_than_nothing_have_bounds() -> None:
    """Found by a search: R² was said to be above 3e12."""
    records = 250
    enrolment = {"clients": 3, "max_expected_records": records}
    task = asking(
        [BY_NAME["explained"]], {"noise_multiplier": 1.5}, enrolment=enrolment
    )
    exact = answered(task, ward(records, 5)).total()
    off = math.sqrt(2.0) * task.mechanism.noise_units
    seed = 0
    generator = np.random.default_rng(seed)
    printed = set[float]()
    for _ in range(200):
        drawn = np.rint(generator.normal(0, off, task.dimension)).astype(np.int64)
        sums = decode(exact + drawn, task.fractional_bits)
        honest = answers_of(task, sums, records)
        found = answers_of(task, sums, records + 1, bad_records=1)
        assert "R²" in require_between(honest, found), seed
        printed.update(each.value for each in honest if each.of == "R²")
    assert max(printed) == 1.0


def test_means_that_noise_puts_beyond_their_limits_have_bounds() -> None:
    """Found by a search: covariances around such a mean were outside theirs."""
    records = 100
    enrolment = {"clients": 3, "max_expected_records": records}
    asked = {name: each for name, each in BY_NAME["together"].items() if name != "by"}
    task = asking([asked], {"noise_multiplier": 4.0}, enrolment=enrolment)
    table = ward(records, 5)
    table |= {"age": ["99"] * records, "months": ["1"] * records}
    exact = answered(task, table).total()
    off = math.sqrt(2.0) * task.mechanism.noise_units
    seed = 1
    generator = np.random.default_rng(seed)
    for _ in range(150):
        drawn = np.rint(generator.normal(0, off, task.dimension)).astype(np.int64)
        total = exact + drawn
        honest = answers_of(task, decode(total, task.fractional_bits), records)
        added = generator.standard_normal(task.dimension)
        added *= task.mechanism.sensitivity_units / np.linalg.norm(added)
        moved = decode(total + added.astype(np.int64), task.fractional_bits)
        found = answers_of(task, moved, records + 1, bad_records=1)
        assert "covariance of age and months" in require_between(honest, found), seed


@pytest.mark.parametrize("seed", range(60))
def test_any_questions_answers_are_between_their_bounds(seed: int) -> None:
    """Whatever is asked together, of however many, with however much noise."""
    generator = np.random.default_rng(seed)
    asked = [
        QUERIES[place] for place in generator.choice(len(QUERIES), 2, replace=False)
    ]
    if BY_NAME["patients"] not in asked:
        asked.append(BY_NAME["patients"])
    records, noise, bad = np.exp(generator.uniform([3.0, -1.0, 0.0], [8.0, 2.3, 3.0]))
    records, bad = int(records), min(int(bad), int(records) // 3)
    task = asking(
        asked,
        {"noise_multiplier": float(noise)},
        enrolment={"clients": 3, "max_expected_records": records},
        equal_errors=bool(generator.integers(2)) or None,
    )
    off = math.sqrt(2.0) * task.mechanism.noise_units
    drawn = np.rint(generator.normal(0, off, task.dimension)).astype(np.int64)
    total = answered(task, ward(records, seed)).total() + drawn
    honest = answers_of(task, decode(total, task.fractional_bits), records)
    for added in [0 * total, *attacks(task, bad, generator)]:
        moved = decode(total + added, task.fractional_bits)
        found = answers_of(task, moved, records + bad, bad_records=bad)
        assert require_between(honest, found), (seed, asked, records, noise, bad)


BAD = 60


def test_a_count_moves_by_what_each_record_moves() -> None:
    task = task_of()
    total = answered(task, ward(GOOD, 5)).total()
    exact = decode(total, task.fractional_bits)
    counts = [
        each
        for each in answers_of(task, exact, GOOD, bad_records=BAD)
        if each.measure == "count" and each.query in ("patients", "sexes")
    ]
    assert counts
    for each in counts:
        assert each.moved_by_record is not None
        assert each.high_without_bad == pytest.approx(
            each.value + BAD * each.moved_by_record, rel=1e-6
        )


def test_what_has_no_bound_says_none() -> None:
    task = task_of()
    exact = decode(answered(task, ward(GOOD, 5)).total(), task.fractional_bits)
    found = answers_of(task, exact, GOOD, bad_records=BAD)

    def bounds(answer: Answer) -> tuple[float | None, float | None]:
        return answer.low_without_bad, answer.high_without_bad

    unknown = {each.of for each in found if bounds(each) == (None, None)}
    assert "independent in the population" in unknown
    assert all("population" in each for each in unknown)
    assert all(bounds(each) == (None, None) for each in answers_of(task, exact, GOOD))
