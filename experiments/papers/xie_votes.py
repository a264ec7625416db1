"""What Xie et al.'s figures share: ensembles of models, their votes, certificates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.client.train import model_section
from precad.common.account.events import SampledGaussian
from precad.common.certify.exact import ExactGroups
from precad.common.certify.guarantee import Direction, Replacements
from precad.common.certify.intervals import ConfidenceBudget, simuem
from precad.common.certify.prediction import certified_accuracy, certify_predictions
from precad.common.description import ModelSection
from precad.common.model import initial_vector
from precad.experiments.algorithms.learner import Learner
from precad.experiments.algorithms.user_level import UserLevel, Users, train
from precad.experiments.data import DataSet, load
from precad.experiments.models import MODELS
from precad.experiments.partition import iid
from precad.experiments.study import Result, Scale, Settings, Surroundings

DELTA = 0.0029
CONFIDENCE = 0.99
BINARY = 2
GROUPS = tuple(range(9))
"""k, for which certified accuracy is shown."""
PUBLISHED: Mapping[float, tuple[float, float]] = {
    0.5: (6.9269, 0.9972),
    0.6: (4.8913, 0.9969),
    0.8: (2.8305, 0.9971),
    1.0: (1.8504, 0.9959),
    1.5: (0.8694, 0.9886),
    1.8: (0.6298, 0.9742),
    2.3: (0.4187, 0.8915),
    3.0: (0.2808, 0.7279),
}
"""ε at δ = 0.0029 and accuracy by σ, on MNIST's zeros and ones (Xie et al. Table 4)."""
_FIELDS = (
    *("user_rate", "rounds", "noise_multiplier", "clip", "clipping"),
    *("local_steps", "local_rate"),
)

SETTINGS: Mapping[Scale, Settings] = {
    scale: {
        "data": data,
        "model": model,
        "users": 200,
        "user_rate": 0.1,
        "rounds": 3,
        "clip": 0.7,
        "clipping": "flat",
        "local_steps": 10,
        "local_rate": 0.02,
        "models": models,
    }
    for scale, data, model, models in (
        (Scale.SMALL, "digits", "logistic", 200),
        (Scale.PAPER, "mnist", "opacus-cnn", 50),
    )
}
"""``models`` are those of one cell."""


def zeros_and_ones(data: DataSet) -> DataSet:
    """The two digits that the paper's main part has."""
    train_part, test_part = data.train_y < BINARY, data.test_y < BINARY
    return DataSet(
        data.name,
        data.train_x[train_part],
        data.train_y[train_part],
        data.test_x[test_part],
        data.test_y[test_part],
        BINARY,
    )


def prepared(
    settings: Settings, around: Surroundings
) -> tuple[DataSet, Learner, torch.Tensor, Users]:
    """Records, the model as a function of θ, θ_0 and the users of a cell."""
    data = zeros_and_ones(load(settings["data"], around.data))
    module = MODELS[settings["model"]](data)
    learner = Learner(module, around.device)
    initial = "zeros" if settings["model"] == "logistic" else "uniform"
    section = model_section(module, settings["model"], initial, initial_seed=0)
    start = torch.tensor(initial_vector(ModelSection.model_validate(section)), dtype=torch.float32)
    parts = iid(len(data.train_y), settings["users"], seed=0)
    users = Users.of([(data.train_x[mine], data.train_y[mine]) for mine in parts], around.device)
    return data, learner, start, users


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """How many models of the cell named each held-out record right, and their mean accuracy."""
    data, learner, start, users = prepared(settings, around)
    chosen = UserLevel(**{name: settings[name] for name in _FIELDS})
    count = settings["models"]
    seeds = [settings["seed"] * count + model for model in range(count)]
    thetas = train(learner, users, start, chosen, seeds, around.progress)
    right = learner.votes(thetas, data.test_x) == data.test_y
    return {"right": right.sum(axis=0).tolist(), "accuracy": round(float(right.mean()), 4)}


def grouped(results: Sequence[Result], by: str) -> dict[Any, list[Result]]:
    """Results of all cells with the same value of ``by``."""
    found: dict[Any, list[Result]] = {}
    for result in results:
        found.setdefault(result.settings[by], []).append(result)
    return found


def accuracy(group: Sequence[Result]) -> float:
    """Mean over all models."""
    return float(np.mean([each.values["accuracy"] for each in group]))


def user_mechanism(group: Sequence[Result]) -> SampledGaussian:
    """What one user is hidden by."""
    return UserLevel(**{name: group[0].settings[name] for name in _FIELDS}).mechanism


def sound_curve(
    group: Sequence[Result], mechanism: SampledGaussian, groups: Sequence[int] = GROUPS
) -> NDArray[np.float64]:
    """Certified accuracy for each number of users, or records, that are replaced, by the votes.

    Exact, with Clopper and Pearson's bounds at 99 % a point.
    """
    right, models = _votes(group)
    # Column 0 is the right label: a point that is certified for it is right.
    counts = np.stack([right, models - right], axis=1)
    intervals = simuem(counts, ConfidenceBudget(CONFIDENCE, BINARY, strict=True), models)
    guarantee = Replacements(ExactGroups(mechanism))
    found = certify_predictions(intervals, guarantee, (Direction.ADDITIONS,), limit=groups[-1])
    counted = found.certified & (intervals.labels == 0)
    return np.asarray(certified_accuracy(found.radius, counted, groups))


def published_curve(
    group: Sequence[Result], epsilon: float, delta: float = DELTA, groups: Sequence[int] = GROUPS
) -> NDArray[np.float64]:
    """The same as the paper computes it (Theorem 2), which certifies nothing.

    Shares of votes count as if they were known, ε is the printed one, what is bad is added.
    """
    right, models = _votes(group)
    share = right / models
    with np.errstate(divide="ignore"):
        ahead = np.log(share * np.expm1(epsilon) + delta)
        behind = np.log((1 - share) * np.expm1(epsilon) + delta)
    radius = (ahead - behind) / (2 * epsilon)
    return np.array([float((radius > k).mean()) for k in groups])


def _votes(group: Sequence[Result]) -> tuple[NDArray[np.int64], int]:
    right = np.sum([each.values["right"] for each in group], axis=0)
    return np.asarray(right, np.int64), sum(each.settings["models"] for each in group)


def share(value: float) -> str:
    """In percent."""
    return f"{100 * value:.1f} %"
