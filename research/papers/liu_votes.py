"""What Liu et al.'s figures need: ensembles by DP-SGD, on bags and on parts, with their votes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from precad.accounting.events import SampledGaussian
from precad.accounting.group_rdp import mixture_divergences
from precad.accounting.losses import SampledRound, group_shift
from precad.certify.group_guarantees import (
    ORDERS,
    ExactGroups,
    RenyiCurves,
    RenyiGroups,
)
from precad.certify.guarantee import Guarantee
from precad.certify.intervals import (
    ConfidenceBudget,
    Intervals,
    hoeffding_half_width,
    simuem,
)
from precad.certify.prediction import (
    certified_accuracy,
    certify_predictions,
    largest_group,
)
from precad.client.gradients.torch_models import model_section
from precad.common.arrays import Booleans, Floats, Integers
from precad.common.model import unrounded_start
from precad.common.task_schema import ModelSection
from research.algorithms.instance_level import InstanceLevel, train
from research.algorithms.learner import Learner
from research.algorithms.user_level import Users
from research.datasets import DataSet, load
from research.defences.ensembles import bagging_radii, partition_radii
from research.models import MODELS
from research.study import Result, Settings, Surroundings

CONFIDENCE = 0.999
RECORDS_AT_ONCE = 10_000
"""Of the plain models that train together."""
_DIGITS = 3
"""Of the sums of probabilities that are kept."""


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """Votes and summed probabilities of the cell's models for each held-out record that is tested.

    ``tested`` of them, at equal distances; all unless given.
    """
    data = load(settings["data"], around.data)
    module = MODELS[settings["model"]](data)
    learner = Learner(module, around.device)
    initial = "zeros" if settings["model"] == "logistic" else "uniform"
    section = model_section(
        module, architecture=settings["model"], initial=initial, initial_seed=0
    )
    start = torch.tensor(
        unrounded_start(ModelSection.model_validate(section)), dtype=torch.float32
    )
    if settings["arm"] == "dp":
        thetas = _private(learner, start, data, settings, around)
    else:
        thetas = _plain(learner, start, data, settings, around)
    count = len(data.test_y)
    tested = settings.get("tested", count)
    rows = np.arange(tested) * count // tested
    found = learner.probabilities(thetas, data.test_x[rows])
    labels = found.argmax(axis=2)
    votes = (labels[:, :, None] == np.arange(data.classes)).sum(axis=0)
    return {
        "votes": votes.tolist(),
        "sums": np.round(found.sum(axis=0), _DIGITS).tolist(),
        "labels": data.test_y[rows].tolist(),
        "records": len(data.train_y),
        "accuracy": round(float((labels == data.test_y[rows]).mean()), 4),
    }


def _private(
    learner: Learner,
    start: torch.Tensor,
    data: DataSet,
    settings: Settings,
    around: Surroundings,
) -> torch.Tensor:
    """DP-SGD by one who holds all records: T steps on Poisson samples."""
    chosen = InstanceLevel(
        users_per_round=1,
        rounds=1,
        noise_multiplier=settings["noise_multiplier"],
        clip=settings["clip"],
        batch_rate=settings["batch"] / len(data.train_y),
        local_rate=settings["learning_rate"],
        local_steps=settings["steps"],
        optimizer=settings.get("optimizer", "sgd"),
    )
    users = Users.of([(data.train_x, data.train_y)], around.device)
    seeds = [
        settings["seed"] * settings["models"] + one for one in range(settings["models"])
    ]
    return train(
        learner,
        users,
        start,
        chosen,
        seeds,
        checkpoint=around.checkpoint,
        on_step=around.progress,
    )[0]


def _plain(
    learner: Learner,
    start: torch.Tensor,
    data: DataSet,
    settings: Settings,
    around: Surroundings,
) -> torch.Tensor:
    """Each model on its own bag, drawn with replacement, or on its own part of all records."""
    count, models = len(data.train_y), settings["models"]
    generator = np.random.default_rng(settings["seed"])
    if settings["arm"] == "bagging":
        rows = generator.integers(0, count, (models, settings["bag"]))
        used = np.ones(rows.shape)
    else:
        parts = np.array_split(generator.permutation(count), models)
        most = max(map(len, parts))
        rows = np.array([np.resize(part, most) for part in parts])
        used = np.array([np.arange(most) < len(part) for part in parts], dtype=float)
    weights = (
        torch.from_numpy(used / used.sum(axis=1, keepdims=True))
        .float()
        .to(around.device)
    )
    thetas, first, steps = start.repeat(models, 1), 0, settings["plain_steps"]
    if around.checkpoint is not None:
        first, thetas, _ = around.checkpoint.found(thetas, ())
    together = max(1, RECORDS_AT_ONCE // rows.shape[1])
    for begin in range(first, models, together):
        some = slice(begin, begin + together)
        x = torch.from_numpy(data.train_x[rows[some]]).to(around.device)
        y = torch.from_numpy(data.train_y[rows[some]]).to(around.device)
        trained = min(begin + together, models)
        for step in range(steps):
            gradients = learner.gradients(thetas[some], x, y, weights[some])
            thetas[some] -= settings["plain_rate"] * gradients
            around.progress(
                begin * steps + (step + 1) * (trained - begin), models * steps
            )
        if around.checkpoint is not None:
            around.checkpoint.keep(trained, thetas, ())
    return thetas


def mechanism(result: Result) -> SampledGaussian:
    """What a record is hidden by in a private cell."""
    settings = result.settings
    return InstanceLevel(
        users_per_round=1,
        rounds=1,
        noise_multiplier=settings["noise_multiplier"],
        clip=settings["clip"],
        batch_rate=settings["batch"] / result.values["records"],
        local_rate=settings["learning_rate"],
        local_steps=settings["steps"],
    ).local(1)


def guarantees(one: SampledGaussian) -> Mapping[str, Guarantee]:
    """By which the votes and the probabilities are certified, by the paper's short names."""
    exact = ExactGroups(one)
    return {"RDP": RenyiGroups(one), "ADP": exact.as_approximate(), "exact": exact}


def votes(group: Sequence[Result]) -> Intervals:
    """Of all models of the cells."""
    counts = np.sum([each.values["votes"] for each in group], axis=0)
    return simuem(counts, _budget(counts.shape[1]))


def probabilities(group: Sequence[Result]) -> Intervals:
    """Bounds on expected probabilities, by Hoeffding and a union over classes.

    The sums are kept rounded: half a unit of their last place widens each bound.
    """
    sums = np.sum([each.values["sums"] for each in group], axis=0)
    models = sum(each.settings["models"] for each in group)
    rounding = len(group) * 0.5 * 10.0**-_DIGITS / models
    error = _budget(sums.shape[1]).per_interval
    width = hoeffding_half_width(models, error) + rounding
    mean = sums / models
    labels = mean.argmax(axis=1)
    rows = np.arange(len(mean))
    others = mean.copy()
    others[rows, labels] = -1
    p_a = np.clip(mean[rows, labels] - width, 0, 1)
    p_b = np.clip(others.max(axis=1) + width, 0, 1)
    return Intervals(labels, p_a, np.minimum(p_b, 1 - p_a))


def _budget(classes: int) -> ConfidenceBudget:
    return ConfidenceBudget(confidence=CONFIDENCE, classes=classes, strict=True)


def certified(
    intervals: Intervals, guarantee: Guarantee, truth: Any
) -> tuple[Floats, Floats]:
    """Radius and whether it counts, by point: certified, and the label right."""
    found = certify_predictions(intervals, guarantee)
    counted = found.certified & (intervals.labels == np.asarray(truth))
    return np.where(counted, found.radius, -1.0), counted


def as_published(
    intervals: Intervals, one: SampledGaussian, truth: Any, most: int
) -> tuple[Floats, Floats]:
    """The same by Theorems 8 and 10 as printed, which certify nothing.

    Theorem 8 takes r records for one that is drawn with probability 1 − (1 − q)^r: but
    together they move a sum by up to r clips.

    Args:
        intervals: of votes or probabilities.
        one: what was run.
        truth: the right labels.
        most: r is searched up to this.
    """
    counted = (intervals.p_a > intervals.p_b) & (intervals.labels == np.asarray(truth))
    a, b = intervals.p_a[counted], intervals.p_b[counted]

    def holds(r: int, points: Integers) -> Booleans:
        joint = -math.expm1(r * math.log1p(-one.rate))
        found = mixture_divergences(
            group_shift(SampledRound(joint, one.effective_noise_multiplier, 1.0)),
            noise=one.effective_noise_multiplier,
            orders=np.asarray(ORDERS),
        )
        worst = one.count * np.maximum(*found)
        curves = RenyiCurves(
            orders=np.asarray(ORDERS),
            poisoned_over_clean=worst,
            clean_over_poisoned=worst,
            refined=False,
        )
        return curves.separates(a[points], b[points])

    radii = np.full(len(counted), -1.0)
    radii[counted] = largest_group(holds, len(a), most)
    return radii, counted


def baseline(group: Sequence[Result]) -> tuple[Floats, Floats]:
    """The same of an ensemble on bags or parts."""
    first, truth = group[0], np.asarray(group[0].values["labels"])
    counts = np.sum([each.values["votes"] for each in group], axis=0)
    if first.settings["arm"] == "bagging":
        radii = bagging_radii(
            votes(group), first.values["records"], first.settings["bag"]
        )
    else:
        radii = partition_radii(counts)
    counted = radii.certified & (radii.labels == truth)
    return np.where(counted, radii.radius, -1.0), counted


def curve(radii: Floats, counted: Floats, at: Sequence[int]) -> Floats:
    """Certified accuracy at each radius."""
    return certified_accuracy(np.maximum(radii, 0), counted, at)
