"""A question is a task: what is filled in, and what is refused with which words."""

import pytest
from tests.rig.documents import Document
from tests.rig.questions import (
    AGE,
    QUERIES,
    SEX,
    WARD,
    answered,
    asking,
    asks,
    ward,
)
from tests.rig.refusals import refused
from tests.rig.tasks import data_owner

from precad.accounting.adversaries import Adversary, Run
from precad.client.records import Columns
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.question_rules import MOST_OWNERS
from precad.common.roster import Enrolment
from precad.common.task import Task
from precad.common.wire.serving import MAX_REQUEST_BYTES
from precad.protos import precad_pb2 as pb

COUNT: Document = {"name": "n", "kind": "count"}


def test_what_a_question_has_no_choice_of_is_filled_in() -> None:
    task = asking()
    mechanism = task.mechanism
    assert (mechanism.releases, mechanism.owner_rate, mechanism.unit_rate) == (1, 1, 1)
    assert mechanism.unit_rates == (1.0,)
    assert mechanism.step is None
    # 1,000 records of R·2^f are the finest that β = 2^25 holds.
    assert task.fractional_bits == 15
    assert mechanism.sensitivity == task.privacy.record_clip == 33_554 / 2**15
    assert mechanism.owner_clip == 1000 * mechanism.sensitivity
    assert mechanism.bound_of(Enrolment(ClientId("a"), 7, 1.0)) == 7 * 33_554
    shapes = [(each.name, each.shape) for each in mechanism.parameters]
    assert shapes[1:4] == [("sexes", (1, 4)), ("age", (1, 3)), ("age by sex", (2, 3))]
    assert Run.of(task).event(Adversary.ONE_SERVER).count == 1
    again = Task.parse(task.model_dump(mode="json"))
    assert (again, again.digest) == (task, task.digest)


@pytest.mark.parametrize("largest", [1025, 50_000, 120_000])
def test_large_owners_take_part(largest: int) -> None:
    enrolment = {"clients": 3, "max_expected_records": largest}
    task = asking(QUERIES, enrolment=enrolment)
    claim = Enrolment(ClientId("large"), largest, 1.0)
    claim.check(task)
    assert task.mechanism.bound_of(claim) <= 2**25
    more = Enrolment(ClientId("larger"), largest + 1, 1.0)
    refused("take part under two names, each with records of its own", more.check, task)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("privacy.record_rate", {"privacy": {"record_rate": 0.5}}),
        ("privacy.client_rate", {"privacy": {"client_rate": 0.5}}),
        ("privacy.cover_uploads", {"privacy": {"cover_uploads": True}}),
        ("privacy.client_clip", {"privacy": {"client_clip": 1000.0}}),
        (
            "privacy.most_records_per_unit",
            {"privacy": {"unit": "person", "most_records_per_unit": 2}},
        ),
        ("training.rounds", {"training": {"rounds": 2}}),
        ("training.learning_rate", {"training": {"learning_rate": 0.5}}),
        ("training.compact_release", {"training": {"compact_release": True}}),
        ("local", {"local": {"learning_rate": 1.0}}),
        ("objective", {"objective": {"name": "plain"}}),
        ("model", {"model": {"parameters": [{"name": "w", "shape": [3]}]}}),
    ],
)
def test_what_isnt_one_release_of_all_records_is_refused(
    field: str, changes: Document
) -> None:
    values = asks()
    for name, section in changes.items():
        values[name] = values.get(name, {}) | section
    with pytest.raises(Misconfiguration, match="leave it out") as error:
        Task.parse(values)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("says", "query"),
    [
        ("query x, column.*is required", {"kind": "shares"}),
        ("query x, edges.*is required", {"kind": "histogram", "column": "age"}),
        ("edges.*ascend", {"kind": "histogram", "column": "age", "edges": [2, 1]}),
        ("column.*leave it out", {"kind": "count", "column": "age"}),
        ("upper.*above 100", {"kind": "mean", **AGE, "lower": 100}),
        ("unit.*needs listed levels", {"kind": "shares", "column": "unit"}),
        ("unit.*needs listed levels", {"kind": "count", "by": "unit"}),
        ("across.*is required", {"kind": "cross-table", "column": "sex"}),
        ("another column", {"kind": "cross-table", "column": "sex", "across": "sex"}),
        (
            "age.*needs listed levels",
            {"kind": "cross-table", "column": "sex", "across": "age"},
        ),
        ("categorical: ask for its shares", {"kind": "mean", **AGE, "column": "sex"}),
        ("count with the same where, by", {"kind": "mean", **AGE, "by": "sex"}),
        (
            "query.0.kind.*count, .*shares, .*quantiles, .*evaluation",
            {"kind": "median", "column": "age"},
        ),
        (
            "lower.*is required of a query of kind mean",
            {"kind": "mean", "column": "age"},
        ),
        ("ask for quantiles", {"kind": "maximum", "column": "age"}),
        ("quantiles.0.*greater than 0", {"kind": "quantiles", "quantiles": [0]}),
        ("upper.*above 3", {"kind": "quantiles", "column": "age", "lower": 3}),
        ("upper.*above -3", {"kind": "quantiles", "column": "age", "lower": -3}),
        ("event.*is required", {"kind": "survival", "column": "age", "upper": 3}),
        (
            "upper.*above 0",
            {
                "kind": "survival",
                "column": "age",
                "event": {"sex": "f"},
                "upper": -3,
                "bins": 9,
            },
        ),
        ("bins.*leave it out", {"kind": "mean", **AGE, "bins": 9}),
        ("ask for its shares", {"kind": "quantiles", "column": "sex"}),
        (
            "inputs.*name each column once",
            {"kind": "covariance", "inputs": ["sex", "sex"]},
        ),
        (
            "inputs.*name each column once",
            {"kind": "least-squares", **AGE, "inputs": ["sex", "age"]},
        ),
        (
            r"limits = { age = \[LOW, HIGH\] }",
            {"kind": "covariance", "inputs": ["age"]},
        ),
        (
            "limits = { sex.* and of no other",
            {"kind": "covariance", "inputs": ["sex"], "limits": {"sex": [0, 1]}},
        ),
        (
            r"limits.*\(9.0, 9.0\).*ascending",
            {"kind": "covariance", "inputs": ["age"], "limits": {"age": [9, 9]}},
        ),
        ("inputs.*is required", {"kind": "least-squares", **AGE}),
        ("length.*leave it out", {"kind": "count", "length": 2}),
        ("query.0.weight", {"kind": "count", "weight": 0}),
        ("unknown key", {"kind": "count", "level": "f"}),
    ],
)
def test_a_query_that_cant_be_asked_says_what_to_mend(
    says: str, query: Document
) -> None:
    refused(f"(?s){says}", asking, [{"name": "x"} | query])


@pytest.mark.parametrize("level", ["other", "missing"])
def test_a_level_that_is_called_as_what_isnt_listed_is_refused(level: str) -> None:
    """Its answer would have the name of another."""
    listed = [SEX | {"levels": ["f", level]}]
    shares = [{"name": "x", "kind": "shares", "column": "sex"}]
    refused(f"(?s){level}.*rename that level", asking, shares, columns=listed)
    # Where nothing else has that name it may stand.
    assert asking([COUNT | {"by": "sex"}], columns=listed).blocks[0].groups == (
        "f",
        level,
    )


def test_a_question_has_no_more_owners_than_a_statement_names() -> None:
    """A server takes no longer message back from an owner that shows it one."""
    enrolment = {"clients": MOST_OWNERS, "max_expected_records": 9}
    asking([COUNT], enrolment=enrolment)
    longest = {f"{number:063d}": 2**53 for number in range(MOST_OWNERS)}
    body = pb.StatementBody(answered=longest)
    assert body.ByteSize() < MAX_REQUEST_BYTES / 4
    more = enrolment | {"clients": MOST_OWNERS + 1}
    refused("must be at most 1,000 for a question", asking, [COUNT], enrolment=more)


def test_too_few_units_for_so_many_numbers_are_refused_with_what_fits() -> None:
    edges = list(range(5000))
    many = [{"name": "h", "kind": "histogram", "column": "age", "edges": edges}]
    enrolment = {"clients": 3, "max_expected_records": 120_000}
    privacy = {"noise_multiplier": 10.0}
    says = r"R·2\^f = 279 units hold 4865 numbers, not 5002"
    refused(says, asking, many, privacy, enrolment=enrolment)
    few = [COUNT, COUNT | {"name": "m", "weight": 1e-9}]
    refused("leave 1 of at least 4 to m", asking, few)


def test_a_name_that_no_query_has_is_told_beside_those_that_one_has() -> None:
    questions = asking([COUNT, {"kind": "mean", "name": "m", **AGE}]).questions
    assert questions is not None
    own = Columns(rename={"alter": "Alter"})
    refused("no such column: age, sex, ward", own.require_only_names, questions.recipe)


def test_columns_and_queries_go_together() -> None:
    alike = {"name": "sex", "kind": "categorical", "levels": ["1", "1.0"]}
    refused("are read alike", asking, columns=[alike])
    refused("isn't for a numeric column", asking, columns=[alike | {"kind": "numeric"}])
    data = {"target": {"name": "died"}, "columns": [SEX, WARD]}
    refused("data. names the columns", asking, data=data)
    recipe = asks(data=data)
    del recipe["columns"]
    assert Task.parse(recipe).blocks == asking().blocks
    twice = [COUNT, COUNT]
    refused("stands there twice", asking, twice)
    training = {name: value for name, value in asks().items() if name != "query"}
    refused("is required", Task.parse, training)


def test_a_question_says_which_cells_mean_a_missing_value() -> None:
    """Trial: `missing = ["n/a"]` was an unknown key, and `[data]` wants a target."""
    plain, same = asking(), asking(missing=None)
    assert plain.digest == same.digest
    assert b"missing" not in plain.canonical.replace(b'"levels"', b"")
    marked = asking(missing=["", "n/a"])
    assert marked.digest != plain.digest
    assert Task.parse(marked.model_dump(mode="json")) == marked
    table = ward(40, 1)
    for name in ("age", "sex", "died", "months"):
        table[name] = [cell.replace("NA", "n/a") for cell in table[name]]
    usual = ward(40, 1)
    assert "n/a" in table["age"]
    assert (answered(marked, table).total() == answered(plain, usual).total()).all()
    says = r"age, record \d+ = 'n/a': isn't a number.*in the task's missing where"
    refused(says, answered, plain, table)
    # As data.missing, and not beside it.
    data = {"target": {"name": "died"}, "columns": [SEX, WARD]}
    beside = asks(data=data, missing=["n/a"])
    del beside["columns"]
    refused("missing = 1: leave it out: .data. names", Task.parse, beside)
    refused("missing.*at least 1", asking, missing=[])
    refused("'f': is a level here and means a missing value", asking, missing=["f"])
    training = marked.model_dump()
    refused(
        r"missing = .*goes with \[\[query\]\]",
        Task.parse,
        training | {"query": None, "columns": None},
    )


def test_a_question_has_no_use_for_what_is_trained() -> None:
    for name in ("model", "loss", "units", "held_out"):
        with pytest.raises(Misconfiguration, match="nothing is trained"):
            data_owner("a", asking(), ward(9, 1), **{name: object()})
    with pytest.raises(Misconfiguration, match="give a table"):
        data_owner("a", asking(), ([[1.0]], [1]))
    with pytest.raises(Misconfiguration, match="under two names"):
        data_owner("a", asking(), ward(1001, 1))
