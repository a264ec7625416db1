"""Per-record gradients: values, determinism, and models that are refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from precad.client.gradients.record_gradients import MOST_RECORDS, RecordGradients, chunk_records
from precad.client.gradients.torch_models import model_section
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.task_schema import ModelSection, Parameter

RECORDS = 23


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 2), nn.Flatten(), nn.LayerNorm(20), nn.Linear(20, 3),
    )  # fmt: skip


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(24, 3))


class Last(nn.Module):
    """The last step of a recurrent layer, over an image's lines."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.cell(x.squeeze(1))[0][:, -1]
        return outputs


def lstm() -> nn.Module:
    return nn.Sequential(Last(nn.LSTM(6, 5, 2, batch_first=True)), nn.Linear(5, 3))


def gru() -> nn.Module:
    cell = nn.GRU(6, 4, batch_first=True, bidirectional=True)
    return nn.Sequential(Last(cell), nn.Linear(8, 3))


MODELS = pytest.mark.parametrize("make", [linear, convolution, embedding, lstm, gru])
_FALLBACK = pytest.mark.filterwarnings("ignore:There is a performance drop")


def parameters_of(model: nn.Module) -> tuple[Parameter, ...]:
    return ModelSection.model_validate(model_section(model, "custom")).parameters


def data_for(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(0, 3, (RECORDS,), generator=generator)
    if isinstance(model[0], nn.Embedding):  # type: ignore[index]
        return torch.randint(0, 50, (RECORDS, 6), generator=generator), targets
    return torch.randn(RECORDS, 1, 6, 6, generator=generator), targets


def theta_for(model: nn.Module) -> NDArray[np.float64]:
    size = sum(p.numel() for p in model.parameters())
    return np.random.default_rng(3).normal(0, 0.3, size)


def rows(
    model: nn.Module, indices: NDArray[np.int64], chunk: int | None = None
) -> NDArray[np.float64]:
    gradients = RecordGradients(model, cross_entropy, parameters_of(model), chunk)
    records = as_records(data_for(model))
    chunks = list(gradients.chunks(records, indices, theta_for(model)))
    return np.concatenate(chunks)[: len(indices)]


@_FALLBACK
@MODELS
def test_a_gradient_has_the_same_bits_whatever_its_neighbours_and_place(
    make: Callable[[], nn.Module],
) -> None:
    model = make()
    everything = rows(model, np.arange(RECORDS), chunk=8)
    generator = np.random.default_rng(1)
    for _ in range(5):
        some = generator.permutation(RECORDS)[: generator.integers(1, RECORDS)].astype(np.int64)
        assert (rows(model, some, chunk=8) == everything[some]).all()


def test_dense_gradients_have_the_same_bits_in_any_chunk_size() -> None:
    model = linear()
    alone = rows(model, np.arange(RECORDS), chunk=1)
    for chunk in (2, 5, 16, RECORDS, None):
        assert (rows(model, np.arange(RECORDS), chunk) == alone).all()


def test_chunks_fit_the_budget_and_hold_at_least_one_record() -> None:
    assert chunk_records(650) == MOST_RECORDS
    assert chunk_records(2**13) == 128
    assert chunk_records(2**15) == 64
    assert 1 <= chunk_records(10**6) < 10
    assert chunk_records(10**6) * 10**6 * 64 <= 256 * 2**20
    assert chunk_records(10**9) == 1


class Counting(nn.Module):
    """Keeps a running statistic without being a known layer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        outputs: torch.Tensor = self.linear(x.flatten(1))
        return outputs


class Noisy(nn.Module):
    """Random without a dropout layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(x.flatten(1))
        return outputs + torch.randn_like(outputs)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4)), "layer 2.*GroupNorm"),
        (nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3)), "layer 1.*dropout"),
        (nn.Flatten(), "no parameters"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).requires_grad_(False), "frozen"),  # noqa: FBT003
    ],
)
def test_models_that_cannot_be_protected_are_refused_before_training(
    model: nn.Module, message: str
) -> None:
    parameters = tuple(Parameter(name=n, shape=tuple(p.shape)) for n, p in model.named_parameters())
    with pytest.raises(Misconfiguration, match=message):
        RecordGradients(model, cross_entropy, parameters)


@pytest.mark.parametrize(
    ("model", "message"),
    [(Counting(), "buffer seen.*GroupNorm"), (Noisy(), "random layers aren't supported")],
)
def test_models_found_out_by_running_them_are_refused(model: nn.Module, message: str) -> None:
    gradients = RecordGradients(model, cross_entropy, parameters_of(model))
    records = as_records((torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])))
    with pytest.raises(Misconfiguration, match=message):
        list(gradients.chunks(records, np.arange(4), theta_for(model)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), r"parameter 0.*1\.weight\[3, 36\].*7, 36"),
        (
            nn.Sequential(
                nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 3)
            ),
            "parameter 4.*the task has none",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 7)), "parameter 2.*absent.*3.weight"),
    ],
)
def test_a_model_other_than_the_tasks_names_the_first_difference(
    other: nn.Module, message: str
) -> None:
    with pytest.raises(Misconfiguration, match=message):
        RecordGradients(other, cross_entropy, parameters_of(linear()))
