"""How well a model does, asked with privacy: scikit-learn's values, and their noise."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn import metrics
from tests.rig.documents import Document
from tests.rig.held_out import READMITTED, STAYS, WARDS
from tests.rig.questions import asking
from tests.rig.tasks import data_owner, model_at

from precad.cli.task_planning import least_noise
from precad.client import TrainedModel
from precad.client.answers import answers_of
from precad.client.asked_records import AskedRecords, asked_records
from precad.client.gradients.evaluation import Applied, own_words
from precad.client.gradients.torch_models import build
from precad.client.records import Columns
from precad.client.results import Answer
from precad.common.arrays import Floats
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import decode
from precad.common.model import ModelVector
from precad.common.task import Task

RECORDS = 3000
EDGES = [0.05, 0.1, 0.3, 0.5, 0.6, 0.8]


def trained(task: Task) -> TrainedModel:
    """A model that knows something: weights, then biases."""
    outputs = task.dimension // 2
    theta = np.concatenate([np.linspace(-1.0, 1.0, outputs), np.zeros(outputs)])
    return model_at(task, theta.astype(np.float32))


def of_number() -> TrainedModel:
    return model_at(STAYS, np.array([0.8, 0.1], np.float32))


def table_of(model: TrainedModel, count: int, seed: int) -> dict[str, list[str]]:
    """Ages, what is true by chance as the model says, and what is missing."""
    rng = np.random.default_rng(seed)
    ages = rng.normal(size=count)
    module = build(model.task.model)
    inputs = torch.tensor(ages, dtype=torch.float32)[:, None]
    said = Applied(module, model.task).outputs(model.theta, inputs)
    target = model.task.target
    if target.levels:
        chosen = (1.5 * said + rng.gumbel(size=said.shape)).argmax(axis=1)
        cells = [target.levels[place] for place in chosen]
        cells[0] = "another"
    else:
        noise = 0.5 * rng.normal(size=count)
        cells = [
            f"{target.centre + target.scale * (value + off):.3f}"
            for value, off in zip(said.ravel(), noise, strict=True)
        ]
    cells[1] = "NA"
    return {
        "age": [repr(float(age)) for age in ages],
        target.name: cells,
        "sex": rng.choice(["f", "m"], count).tolist(),
    }


def probabilities(model: TrainedModel, table: dict[str, list[str]]) -> Floats:
    """What precad predict says, of records in batches."""
    inputs = torch.tensor([[float(age)] for age in table["age"]])
    outputs = Applied(build(model.task.model), model.task).outputs(model.theta, inputs)
    said = own_words(model.task, outputs)
    assert said is not None
    return said.reshape(len(inputs), -1)


def question(
    model: TrainedModel,
    sigma: float = 4.0,
    *,
    records: int = RECORDS,
    columns: Sequence[Document] | None = None,
    **more: object,
) -> Task:
    target = model.task.target
    query: Document = {
        "name": "model",
        "kind": "evaluation",
        "column": target.name,
        "model": str(model.digest),
    } | more
    sex = {"name": "sex", "kind": "categorical", "levels": ["f", "m"]}
    column: Document = {"name": target.name}
    if target.levels:
        column |= {"kind": "categorical", "levels": list(target.levels)}
    else:
        query |= {"lower": -40, "upper": 60}
    queries = [query]
    if "by" in more:
        queries.append({"name": "records", "kind": "count", "by": more["by"]})
    return asking(
        queries,
        {"noise_multiplier": sigma},
        columns=columns or [sex, column],
        enrolment={"clients": 3, "max_expected_records": records},
    )


def exactly(task: Task, found: AskedRecords) -> ModelVector:
    return decode(found.total(), task.fractional_bits)


def by_of(answers: list[Answer]) -> dict[tuple[str, str], Answer]:
    return {(each.group, each.of): each for each in answers}


def test_of_two_levels_each_value_is_scikit_learns_of_binned_scores() -> None:
    model = trained(READMITTED)
    table = table_of(model, RECORDS, 1)
    task = question(model, edges=EDGES, by="sex")
    found = answers_of(
        task, exactly(task, asked_records(table, task, evaluated=model)), RECORDS
    )
    shares = probabilities(model, table)[:, 1]
    for sex in ("f", "m"):
        rows = [
            place
            for place in range(RECORDS)
            if table["sex"][place] == sex
            and table["readmitted"][place] in ("no", "yes")
        ]
        labels = [table["readmitted"][place] == "yes" for place in rows]
        bins = np.searchsorted(EDGES, shares[rows], side="right")
        said = shares[rows] >= 0.5
        ends = np.array([0.0, *EDGES, 1.0])
        middles = (ends[bins] + ends[bins + 1]) / 2
        expected = {
            "accuracy": metrics.accuracy_score(labels, said),
            "recall of yes": metrics.recall_score(labels, said),
            "recall of no": metrics.recall_score(labels, said, pos_label=False),
            "AUC": metrics.roc_auc_score(labels, bins),
            "log loss": metrics.log_loss(labels, middles),
            "missing": table["sex"].count(sex) - len(rows),
        }
        answers = by_of([each for each in found if each.query == "model"])
        for of, value in expected.items():
            answer = answers[sex, of]
            assert answer.value == pytest.approx(value, abs=1e-9), of
            assert answer.low_together <= answer.low <= value <= answer.high
        for place in range(len(EDGES) + 1):
            inside = bins == place
            if inside.any():
                of = f"yes of those said {ends[place]:g} to {ends[place + 1]:g}"
                share = np.mean(np.array(labels)[inside])
                assert answers[sex, of].value == pytest.approx(share, abs=1e-9)


def test_of_more_levels_there_are_accuracy_and_recalls() -> None:
    model = trained(WARDS)
    table = table_of(model, RECORDS, 2)
    task = question(model)
    found = by_of(
        answers_of(task, exactly(task, asked_records(table, task, evaluated=model)))
    )
    said = probabilities(model, table).argmax(axis=1)[2:]
    true = ["abc".index(ward) for ward in table["ward"][2:]]
    recalls = metrics.recall_score(true, said, average=None)
    assert found["", "accuracy"].value == pytest.approx(np.mean(true == said))
    for ward, recall in zip("abc", recalls, strict=True):
        assert found["", f"recall of {ward}"].value == pytest.approx(recall)
    # Another ward, and no ward.
    assert found["", "missing"].value == 2
    assert {of for _, of in found} == {
        "missing",
        "accuracy",
        *(f"recall of {ward}" for ward in "abc"),
    }


def test_of_a_number_there_are_r2_and_the_error_in_its_own_unit() -> None:
    model = of_number()
    table = table_of(model, RECORDS, 3)
    task = question(model)
    released = exactly(task, asked_records(table, task, evaluated=model))
    found = by_of(answers_of(task, released, RECORDS))
    rows = [place for place in range(RECORDS) if place != 1]
    true = np.array([float(table["stay"][place]) for place in rows])
    said = probabilities(model, table)[rows, 0]
    expected = {
        "R²": metrics.r2_score(true, said),
        "root mean squared error": metrics.root_mean_squared_error(true, said),
        "missing": 1,
    }
    assert {of for _, of in found} == set(expected)
    for of, value in expected.items():
        assert found["", of].value == pytest.approx(value, rel=1e-3), of
        assert found["", of].low <= value <= found["", of].high
    with pytest.raises(Misconfiguration, match="how many records"):
        answers_of(task, released)


@pytest.mark.parametrize("kind", ["two levels", "three levels", "number"])
def test_of_few_records_every_answer_is_finite_and_inside_its_interval(
    kind: str,
) -> None:
    models = {"two levels": trained(READMITTED), "three levels": trained(WARDS)}
    model = models.get(kind, of_number())
    task = question(model)
    total = asked_records(table_of(model, 10, 5), task, evaluated=model).total()
    rng = np.random.default_rng(9)
    noise = math.sqrt(2) * task.mechanism.noise_units
    for _ in range(200):
        drawn = np.rint(rng.normal(0, noise, task.dimension)).astype(np.int64)
        for each in answers_of(task, decode(total + drawn, task.fractional_bits), 10):
            ends = (each.low_together, each.low, each.high, each.high_together)
            assert np.isfinite([each.value, *ends]).all(), each
            assert list(ends) == sorted(ends), each
            # A count may be below 0.
            assert each.measure == "count" or each.low <= each.value <= each.high, each


@pytest.mark.parametrize("kind", ["two levels", "three levels", "number"])
def test_intervals_hold_as_often_as_they_say(kind: str) -> None:
    models = {"two levels": trained(READMITTED), "three levels": trained(WARDS)}
    model = models.get(kind, of_number())
    table = table_of(model, RECORDS, 5)
    task = question(model)
    total = asked_records(table, task, evaluated=model).total()
    truth = by_of(answers_of(task, decode(total, task.fractional_bits), RECORDS))
    rng = np.random.default_rng(7)
    noise = math.sqrt(2) * task.mechanism.noise_units
    held = dict.fromkeys(truth, 0)
    together = 0
    releases = 600
    for _ in range(releases):
        drawn = np.rint(rng.normal(0, noise, task.dimension)).astype(np.int64)
        answers = answers_of(task, decode(total + drawn, task.fractional_bits), RECORDS)
        sure = 0
        for key, each in by_of(answers).items():
            value = truth[key].value
            held[key] += each.low <= value <= each.high
            sure += each.low_together <= value <= each.high_together
        together += sure == len(truth)
    least = min(held, key=lambda key: held[key])
    # Four deviations of the share of 600 below .95.
    assert held[least] / releases > 0.914, least
    assert together / releases > 0.914


@pytest.mark.parametrize(
    ("records", "bins", "errors"),
    [(600, 6, (0.03, 0.045, 0.08)), (6000, 12, (0.005, 0.008, 0.012))],
)
def test_the_areas_error_is_small(
    records: int, bins: int, errors: Sequence[float]
) -> None:
    """At ε = 1 alone: root mean squared, beside the area of the scores themselves."""
    rng = np.random.default_rng(11)
    model = trained(READMITTED)
    sigma = least_noise(epsilon=1.0, delta=1e-5, unit_rate=1.0, participations=1)
    task = question(
        model, sigma, records=records, edges=[place / bins for place in range(1, bins)]
    )
    noise = math.sqrt(2) * task.mechanism.noise_units
    (block,) = task.blocks
    for positive, most in zip((0.5, 0.2, 0.1), errors, strict=True):
        labels = np.arange(records) < positive * records
        shares = expit(rng.normal(1.2 * (labels - 0.5), 1.0))
        places = np.minimum(shares * bins, bins - 1).astype(np.int64)
        cells = np.bincount(labels * bins + places, minlength=task.dimension)
        area = metrics.roc_auc_score(labels, shares)
        found = [
            by_of(answers_of(task, decode(each, task.fractional_bits)))["", "AUC"].value
            for each in np.rint(
                rng.normal(cells * block.unit, noise, (400, task.dimension))
            )
        ]
        error = math.sqrt(np.mean((np.array(found) - area) ** 2))
        assert error <= most, (positive, error)


def test_a_table_has_names_of_its_own_for_the_models_columns_and_the_questions() -> (
    None
):
    """A name that the model alone has was refused, and without it the model's read."""
    model = trained(READMITTED)
    table = table_of(model, 40, 1)
    task = question(model, by="sex")
    names = {"age": "Alter", "sex": "Geschlecht", "readmitted": "wieder da"}
    own = {names[name]: cells for name, cells in table.items()}
    found = asked_records(own, task, Columns(rename=names), evaluated=model)
    expected = asked_records(table, task, evaluated=model)
    assert (found.total() == expected.total()).all()
    misspelt = Columns(rename=names | {"agee": "Alter"})
    with pytest.raises(Misconfiguration, match="no such column: age, readmitted, sex"):
        asked_records(own, task, misspelt, evaluated=model)


def test_another_model_is_refused() -> None:
    model = trained(READMITTED)
    table = table_of(model, 10, 1)
    task = question(model)
    with pytest.raises(Misconfiguration, match="evaluated_model"):
        asked_records(table, task)
    other = model_at(READMITTED, np.ones(4, np.float32))
    with pytest.raises(Misconfiguration, match=str(model.digest)[:12]):
        asked_records(table, task, evaluated=other)
    levels = {"name": "readmitted", "kind": "categorical", "levels": ["yes", "no"]}
    turned = question(model, columns=[levels])
    with pytest.raises(Misconfiguration, match="own target"):
        asked_records(table, turned, evaluated=model)


def test_a_training_evaluates_no_model() -> None:
    model = trained(READMITTED)
    with pytest.raises(Misconfiguration, match=r"evaluated_model.*leave it out"):
        data_owner("ward-1", READMITTED, table_of(model, 10, 1), evaluated=model)


def test_a_record_is_scored_by_itself() -> None:
    model = trained(READMITTED)
    table = table_of(model, 50, 8)
    task = question(model)
    whole = asked_records(table, task, evaluated=model)
    alone = [
        asked_records(
            {name: [cells[place]] for name, cells in table.items()},
            task,
            evaluated=model,
        ).total()
        for place in range(50)
    ]
    assert (whole.total() == np.sum(alone, axis=0)).all()


def test_a_model_that_says_nothing_of_a_record_counts_it_as_missing() -> None:
    model = model_at(READMITTED, np.array([3e38, -3e38, 3e38, 0], np.float32))
    table = {"age": ["1e9", "0"], "readmitted": ["yes", "yes"]}
    task = question(model)
    total = asked_records(table, task, evaluated=model).total()
    (block,) = task.blocks
    assert total[-1] == block.unit
    assert total.sum() == 2 * block.unit


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"column": None}, "column"),
        ({"lower": 0, "upper": 1}, "leave out lower and upper"),
        ({"column": "age"}, "needs listed levels"),
        ({"edges": [0.2, 0.4]}, "0.5 among them"),
        ({"edges": [0.5, 1.0]}, "between 0 and 1"),
        ({"bins": 10}, "leave it out"),
    ],
)
def test_an_evaluation_that_cant_be_asked_is_refused(
    changes: Document, said: str
) -> None:
    with pytest.raises(Misconfiguration, match=said):
        question(trained(READMITTED), **changes)
    with pytest.raises(Misconfiguration, match="two levels"):
        question(trained(WARDS), edges=[0.4, 0.5])


def test_what_noise_makes_negative_in_all_is_no_count() -> None:
    """Of a group that nobody is in: AUC is 1/2, and bad owners may make it anything."""
    model = trained(READMITTED)
    task = question(model, edges=EDGES)
    total = np.zeros(task.dimension, np.int64)
    [block] = task.blocks
    # Of both levels some are less negative than most.
    total[:-1] = -block.unit * np.concatenate([np.arange(1, 8), np.arange(7, 0, -1)])
    released = decode(total, task.fractional_bits)
    assert by_of(answers_of(task, released, 0))["", "AUC"].value == 0.5
    area = by_of(answers_of(task, released, 50, bad_records=50))["", "AUC"]
    assert (area.low_without_bad, area.high_without_bad) == (0.0, 1.0)


def test_of_owners_who_may_be_most_of_the_records_auc_has_no_bound() -> None:
    """Without them the cells may sum to less than nothing."""
    model = trained(READMITTED)
    task = question(model, edges=EDGES)
    table = table_of(model, 300, 3)
    exact = exactly(task, asked_records(table, task, evaluated=model))
    area = by_of(answers_of(task, exact, 300, bad_records=200))["", "AUC"]
    assert (area.low_without_bad, area.high_without_bad) == (0.0, 1.0)


@pytest.mark.parametrize("bad", [2, 20])
def test_auc_without_bad_owners_is_between_the_bounds(bad: int) -> None:
    """As it would be printed, of the same noise, whatever they add to the cells."""
    model = trained(READMITTED)
    task = question(model, edges=EDGES)
    table = table_of(model, RECORDS, 3)
    total = asked_records(table, task, evaluated=model).total()
    generator = np.random.default_rng(bad)
    noise = math.sqrt(2.0) * task.mechanism.noise_units
    total = total + np.rint(generator.normal(0, noise, total.size)).astype(np.int64)
    honest = by_of(answers_of(task, decode(total, task.fractional_bits), RECORDS))
    rising = np.concatenate([-np.arange(7.0), np.arange(7.0), [0.0]])
    widths = []
    for place in range(60):
        added = generator.standard_normal(total.size)
        if place % 3:
            added = (rising if place % 2 else -rising) + 0.5 * added
        added *= bad * task.mechanism.sensitivity_units / np.linalg.norm(added)
        moved = decode(total + added.astype(np.int64), task.fractional_bits)
        found = by_of(answers_of(task, moved, RECORDS + bad, bad_records=bad))
        area = found["", "AUC"]
        assert area.low_without_bad is not None
        assert area.high_without_bad is not None
        assert area.low_without_bad <= honest["", "AUC"].value <= area.high_without_bad
        widths.append(area.high_without_bad - area.low_without_bad)
    assert max(widths) < 0.04 * bad
