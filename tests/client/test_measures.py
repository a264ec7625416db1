"""Measures of predictions are scikit-learn's, and their intervals cover what they say."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn import metrics
from tests.rig import tasks
from tests.rig.held_out import (
    CENTRE,
    KINDS,
    READMITTED,
    SCALE,
    STAYS,
    WARDS,
    by_name,
    coverage,
    measured,
    numbers,
    three_classes,
    two_classes,
)
from tests.rig.tasks import task_with

from precad.client.gradients.evaluation import own_words

RECORDS = 250


def test_of_two_classes_each_value_is_scikit_learns() -> None:
    outputs, labels, _ = two_classes(np.random.default_rng(1), RECORDS)
    found = measured(READMITTED, outputs, labels)
    share = expit(outputs[:, 1])
    said = outputs.argmax(axis=1)
    expected = {
        ("accuracy", "readmitted"): metrics.accuracy_score(labels, said),
        ("Brier score", "yes"): metrics.brier_score_loss(labels, share),
        ("AUC", "yes"): metrics.roc_auc_score(labels, share),
        ("sensitivity", "yes"): metrics.recall_score(labels, said),
        ("specificity", "no"): metrics.recall_score(labels, said, pos_label=0),
    }
    rows = by_name(found.measures)
    assert {key: row.value for key, row in rows.items()} == pytest.approx(expected)
    assert all(row.low < row.value < row.high for row in rows.values())
    assert found.levels == ["no", "yes"]
    assert found.confusion == metrics.confusion_matrix(labels, said).tolist()
    # Tenths of the records by what is predicted, from the least on.
    tenths = [row for row in found.measures if row.predicted is not None]
    assert found.measures[-10:] == tenths, "after the others"
    in_order = np.sort(share).reshape(10, -1).mean(axis=1)
    assert [row.predicted for row in tenths] == pytest.approx(in_order.tolist())
    for row in tenths:
        assert row.name == "calibration: share that is yes"
        assert (row.records, row.of) == (
            25,
            f"25 records predicted {row.predicted:.4g}",
        )
    assert np.mean([row.value for row in tenths]) == pytest.approx(labels.mean())


def test_of_more_classes_there_are_accuracy_the_recall_of_each_and_the_matrix() -> None:
    outputs, labels, _ = three_classes(np.random.default_rng(2), RECORDS)
    found = measured(WARDS, outputs, labels)
    said = outputs.argmax(axis=1)
    recalls = metrics.recall_score(labels, said, average=None)
    expected = {("accuracy", "ward"): metrics.accuracy_score(labels, said)}
    expected |= {
        ("recall", name): value for name, value in zip("abc", recalls, strict=True)
    }
    rows = by_name(found.measures)
    assert {key: row.value for key, row in rows.items()} == pytest.approx(expected)
    assert found.confusion == metrics.confusion_matrix(labels, said).tolist()


def test_of_numbers_each_value_is_in_the_targets_own_unit() -> None:
    outputs, targets, _ = numbers(np.random.default_rng(3), RECORDS)
    found = measured(STAYS, outputs, targets)
    said = SCALE * outputs[:, 0] + CENTRE
    days = SCALE * targets + CENTRE
    expected = {
        ("R²", "stay"): metrics.r2_score(days, said),
        ("mean absolute error", "stay"): metrics.mean_absolute_error(days, said),
        ("root mean squared error", "stay"): metrics.root_mean_squared_error(
            days, said
        ),
    }
    rows = by_name(found.measures)
    assert {key: row.value for key, row in rows.items()} == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_what_they_are_of(kind: str) -> None:
    """In 400 draws within 2 points of 95 %: tests/soak/test_intervals_cover.py."""
    shares = coverage(kind, draws=40, records=100)
    assert {key: share for key, share in shares.items() if share < 0.82} == {}


def test_what_records_do_not_say_is_left_out_and_what_is_sure_has_an_interval() -> None:
    apart = np.array([[4.0, -4.0], [3.0, -3.0], [-4.0, 4.0], [-3.0, 3.0]])
    rows = by_name(measured(READMITTED, apart, [0, 0, 1, 1]).measures)
    assert rows["AUC", "yes"].value == 1
    assert rows["AUC", "yes"].low < 0.5
    alone = by_name(measured(READMITTED, apart, [0, 0, 0, 0]).measures)
    assert {name for name, _ in alone} == {"accuracy", "Brier score", "specificity"}
    # A single record of a class has no variance to see.
    rare = by_name(measured(READMITTED, apart, [0, 1, 0, 0]).measures)
    assert 0 <= rare["AUC", "yes"].low < rare["AUC", "yes"].high <= 1
    assert measured(READMITTED, apart[:1], [0]).measures == []
    exact = by_name(measured(STAYS, apart[:, :1], apart[:, 0]).measures)
    assert exact["R²", "stay"].value == 1
    assert exact["mean absolute error", "stay"].high == 0
    for row in [*rows.values(), *alone.values(), *rare.values(), *exact.values()]:
        assert np.isfinite([row.value, row.low, row.high]).all()


def test_outputs_are_read_as_the_task_says_or_not_at_all() -> None:
    one = np.array([[0.5], [1.0]], np.float32)
    many = np.array([[0.0, 9.0], [9.0, 0.0]], np.float32)
    days = own_words(STAYS, one)
    assert days is not None
    assert days.tolist() == [15.0, 18.0]
    assert own_words(STAYS, many) is None, "two numbers for one target"
    assert own_words(READMITTED, one) is None, "one number for two classes"
    shares = own_words(READMITTED, many)
    assert shares is not None
    assert shares.argmax(axis=1).tolist() == [1, 0]
    plain = task_with(tasks.logistic(1, 1))
    assert own_words(plain, one) == pytest.approx(one[:, 0])
    # Neither an output that is no number nor a soft label is measured.
    assert measured(READMITTED, many * np.nan, [0, 1]).measures == []
    assert measured(STAYS, one, many).measures == []
