"""Per-record gradients: the same bits in any batch, and models that are refused.

That they are autograd's: test_models_that_train.py, with most models that can't be protected.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.rig.model_corpus import TRAINED, Own
from torch import nn
from torch.nn.functional import cross_entropy

from precad.client.gradients.record_gradients import MOST_RECORDS, RecordGradients, chunk_records
from precad.client.gradients.torch_models import model_section
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.task_schema import ModelSection, Parameter

RECORDS = 23
GENERATOR = torch.Generator().manual_seed(5)
Y = torch.randint(0, 3, (RECORDS,), generator=GENERATOR)
X = torch.randn(RECORDS, 1, 6, 6, generator=GENERATOR)
STEPS = X.squeeze(1)
TOKENS = torch.randint(0, 11, (RECORDS, 7), generator=GENERATOR)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 2), nn.Flatten(), nn.LayerNorm(20), nn.Linear(20, 3),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (linear, X),
    "convolution": (convolution, X),
    "embedding": (TRAINED["embedding"][0], TOKENS),
    **{name: (TRAINED[name][0], STEPS) for name in ("LSTM", "GRU, two layers, both ways")},
}


def parameters_of(model: nn.Module) -> tuple[Parameter, ...]:
    return ModelSection.model_validate(model_section(model, "custom")).parameters


def rows(
    model: nn.Module, x: torch.Tensor, indices: Any, chunk: int | None = None
) -> NDArray[np.float64]:
    gradients = RecordGradients(model, cross_entropy, parameters_of(model), chunk)
    theta = np.random.default_rng(3).normal(0, 0.3, sum(p.numel() for p in model.parameters()))
    chunks = list(gradients.chunks(as_records((x, Y[: len(x)])), np.array(indices), theta))
    return np.concatenate(chunks)[: len(indices)]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", MODELS)
def test_a_gradient_has_the_same_bits_whatever_its_neighbours_and_place(name: str) -> None:
    make, x = MODELS[name]
    model = make()
    everything = rows(model, x, range(RECORDS), chunk=8)
    generator = np.random.default_rng(1)
    for _ in range(5):
        some = generator.permutation(RECORDS)[: generator.integers(1, RECORDS)]
        assert (rows(model, x, some, chunk=8) == everything[some]).all()


def test_dense_gradients_have_the_same_bits_in_any_chunk_size() -> None:
    alone = rows(linear(), X, range(RECORDS), chunk=1)
    for chunk in (2, 5, 16, RECORDS, None):
        assert (rows(linear(), X, range(RECORDS), chunk) == alone).all()


def test_chunks_fit_the_budget_and_hold_at_least_one_record() -> None:
    sizes = [chunk_records(dimension) for dimension in (650, 2**13, 2**15, 10**6, 10**9)]
    *some, large, one = sizes
    assert (some, one) == ([MOST_RECORDS, 128, 64], 1)
    assert 1 <= large < 10
    assert large * 10**6 * 64 <= 256 * 2**20


def counting(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Keeps a running statistic without being a known layer."""
    m.seen += 1
    found: torch.Tensor = m.head(x.flatten(1))
    return found


def test_a_model_that_is_found_out_by_running_it_is_refused() -> None:
    with pytest.raises(Misconfiguration, match=r"buffer seen.*GroupNorm"):
        rows(Own(counting, 36, seen=torch.zeros(())), X, range(4))


LARGER = nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 3))
OTHER = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


@pytest.mark.parametrize(
    ("model", "parameters", "message"),
    [
        (nn.Flatten(), (), "no parameters"),
        # Other models than the task's, by the first difference.
        (LARGER[:2], parameters_of(linear()), "parameter 2.*absent.*3.weight"),
        (LARGER, parameters_of(linear()), "parameter 4.*the task has none"),
        (OTHER, parameters_of(linear()), r"parameter 0.*1\.weight\[3, 36\].*7, 36"),
    ],
    ids=["no parameters", "too few", "too many", "another shape"],
)
def test_models_that_cannot_be_trained_are_refused_before_training(
    model: nn.Module, parameters: tuple[Parameter, ...], message: str
) -> None:
    with pytest.raises(Misconfiguration, match=message):
        RecordGradients(model, cross_entropy, parameters)
