"""No record answers with more than R, whatever stands in it and whatever is asked."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rig.documents import Document
from tests.rig.questions import AGE, QUERIES, Table, answered, asking

from precad.client.answers import rank_error
from precad.client.asked_records import asked_records
from precad.client.records.columns import Columns
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import squared_norm
from precad.common.identifiers import ClientId
from precad.common.roster import Enrolment
from precad.common.task import Task

CELLS = ["", "NA", "0", "-0.0", "1e308", "-1e308", "inf", "1e-320", "37", "99.99999999"]
numbers = st.floats(allow_nan=False).map(repr) | st.sampled_from(CELLS)
levels = st.sampled_from(["f", "m", "d", "", "NA"])
wards = st.sampled_from(["3", "4", ""])
rows = st.tuples(levels, numbers, wards, numbers, st.sampled_from(["1", "0", "NA"]))


Row = tuple[str, str, str, str, str]


def table_of(records: list[Row]) -> Table:
    columns = [list(column) for column in zip(*records, strict=True)]
    names = ("sex", "age", "ward", "months", "died")
    return dict(zip(names, columns, strict=True))


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Several queries of any weight, any R and f that a task takes."""
    count = draw(st.integers(1, 12))
    queries: list[Document] = []
    for number in range(count):
        chosen = draw(st.sampled_from(QUERIES))
        weight = draw(st.floats(0.05, 20))
        queries.append(chosen | {"name": f"q{number}", "weight": weight})
    # Each mean of a group has its count.
    queries.append(QUERIES[0])
    clip = draw(st.floats(0.5, 30))
    largest = draw(st.integers(40, 4000))
    bits = 25 - math.ceil(math.log2(clip * largest)) - draw(st.integers(0, 3))
    try:
        return asking(
            queries,
            {"record_clip": clip, "noise_multiplier": 300.0},
            enrolment={"clients": 3, "max_expected_records": largest},
            fractional_bits=bits,
        )
    except Misconfiguration:
        # Too coarse for so many queries.
        return asking()


@given(tasks(), st.lists(rows, min_size=1, max_size=40))
@settings(max_examples=300)
def test_no_record_is_longer_than_r(task: Task, records: list[Row]) -> None:
    found = answered(task, table_of(records))
    most = Fraction(task.mechanism.sensitivity) * 2**task.fractional_bits
    assert most <= Fraction(task.privacy.record_clip) * 2**task.fractional_bits
    for number in range(len(found)):
        alone = found.of_units(np.array([number])).total()
        assert squared_norm(alone) <= most**2
    # So the sum is within the bound that both servers hold its owner to.
    claim = Enrolment(ClientId("ward"), len(found), 1.0)
    assert squared_norm(found.total()) <= task.mechanism.bound_of(claim) ** 2


@given(st.lists(rows, min_size=2, max_size=20), rows, st.data())
def test_a_record_changes_nothing_but_its_own_part(
    records: list[Row],
    other: Row,
    data: st.DataObject,
) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    task = asking()
    found = answered(task, table_of(records))
    changed = answered(task, table_of([*records[:at], other, *records[at + 1 :]]))
    others = np.delete(np.arange(len(records)), at)
    assert (found.of_units(others).total() == changed.of_units(others).total()).all()
    assert found.places.shape == changed.places.shape


def test_blocks_use_what_there_is() -> None:
    task = asking()
    norm = round(task.mechanism.sensitivity * 2**task.fractional_bits)
    squares = sum(block.norm**2 for block in task.blocks)
    assert 0.999 * norm**2 < squares <= norm**2
    first, _, weighted, *_ = task.blocks
    assert weighted.unit / first.unit == pytest.approx(math.sqrt(2), rel=1e-4)


def test_r_is_split_by_weight_and_by_what_a_record_adds() -> None:
    """w·Δ/a²; with ``equal_errors`` the errors of counts and ranks: the same for all."""
    task = asking()
    equal = asking(equal_errors=True)
    assert task.digest != equal.digest
    for asked in (task, equal):
        blocks = asked.blocks
        whole = math.hypot(*(block.norm for block in blocks))
        shares = np.array([block.norm / whole for block in blocks])
        norms = np.array([block.norm / block.unit for block in blocks])
        weights = np.array([block.query.weight for block in blocks])
        assert norms.max() > 1.5 * norms.min()
        if asked is task:
            needs = weights * norms / shares**2
        else:
            needs = [block.query.weight * rank_error(asked, block) for block in blocks]
        assert needs == pytest.approx([needs[0]] * len(blocks), rel=1e-3)


def test_sums_by_hand() -> None:
    task = asking()
    table: Table = {
        "sex": ["f", "m", "m", "d", "NA"],
        "age": ["50", "100", "NA", "-7", "20"],
        "ward": ["3", "3", "1", "3", "3.0"],
        "months": ["0", "12", "5", "1", "2"],
        "died": ["1", "1", "NA", "1", "0"],
    }
    total = answered(task, table).total()
    sums = {
        block.query.name: total[block.start :][: block.parameter.size] / block.unit
        for block in task.blocks
    }
    assert sums["patients"].tolist() == [1, 2]
    # f, m, other, missing: of ward 3 alone.
    assert sums["sexes"].tolist() == [1, 1, 1, 1]
    # x = 0, 1, −1 and −.6; 1 − x² of it; one missing.
    assert sums["age"] == pytest.approx([-0.6, 1.64, 1], abs=1e-3)
    assert sums["age by sex"] == pytest.approx([0, 1, 0, 1, 0, 1], abs=1e-3)
    # Below 20, 20 to 40, 40 to 60, 60 or more, missing.
    assert sums["ages"].tolist() == [1, 1, 1, 1, 1]


def test_records_of_one_value_dont_all_round_to_one_side() -> None:
    count = 120_000
    task = asking(
        [{"name": "age", "kind": "mean", **AGE}],
        {"noise_multiplier": 10.0},
        enrolment={"clients": 3, "max_expected_records": count},
    )
    (block,) = task.blocks
    table: Table = {"age": ["31.4"] * count}
    x, square, missing = answered(task, table).total()
    # To the nearest, each would be off by .33 units: 40,000 of them.
    assert abs(x - count * block.unit * (2 * 0.314 - 1)) < 20
    assert abs(square - count * block.unit * (1 - (2 * 0.314 - 1) ** 2)) < 20
    assert missing == 0


def test_a_table_is_read_as_its_owner_names_it() -> None:
    task = asking([{"name": "sexes", "kind": "shares", "column": "sex"}])
    total = asked_records(
        {"Geschlecht": ["f", "f", "m"]}, task, Columns(rename={"sex": "Geschlecht"})
    ).total()
    unit = task.blocks[0].unit
    assert total.tolist() == [2 * unit, unit, 0, 0]
    with pytest.raises(Misconfiguration, match=r"columns\.rename"):
        asked_records({"sex": ["f"]}, task, Columns(rename={"age": "Alter"}))
