"""Before enrolment: which records, models and losses an owner is told can't be used."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.rig.tasks import task_of
from torch import nn
from torch.nn import functional

from precad.client.gradients.rehearsal import check_processor, rehearse
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration

N = 20
WEIGHTS = torch.tensor([0.1, 1.0, 5.0])


def linear(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, outputs))


def check(
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    x: object,
    y: object,
    initial: str = "zeros",
) -> None:
    rehearse(model, loss, as_records((x, y)), task_of(model, initial), most=14)


GENERATOR = np.random.default_rng(1)
X = GENERATOR.normal(size=(N, 6)).astype(np.float32)
Y = GENERATOR.integers(0, 3, N)


@pytest.mark.parametrize(
    "loss",
    [
        functional.cross_entropy,
        nn.CrossEntropyLoss(reduction="none"),
        functools.partial(functional.cross_entropy, label_smoothing=0.1),
    ],
)
@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_that_is_no_class_is_named(loss: Any, label: int) -> None:
    y = Y.copy()
    y[13] = label
    with pytest.raises(Misconfiguration, match=f"target of record 13 = {label}.*from 0 to 2"):
        check(linear(), loss, X, y)


def test_a_label_that_another_loss_cannot_take_is_found_by_trying() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 2 * functional.cross_entropy(outputs, targets)

    y = Y.copy()
    y[13] = 3
    with pytest.raises(Misconfiguration, match=r"record 13.*can't take it.*mend"):
        check(linear(), loss, X, y)


def test_a_token_that_the_model_lacks_is_named() -> None:
    model = nn.Sequential(nn.Embedding(50, 2), nn.Flatten(), nn.Linear(12, 3))
    tokens = GENERATOR.integers(0, 50, (N, 6))
    check(model, functional.cross_entropy, tokens, Y)
    tokens[17, 2] = 50
    with pytest.raises(Misconfiguration, match=r"record 17.*IndexError"):
        check(model, functional.cross_entropy, tokens, Y)


def test_parts_of_a_record_may_be_left_without_a_label_but_not_all() -> None:
    model = nn.Conv1d(1, 3, 1)
    x, y = X[:, None, :], np.tile(Y[:, None], (1, 6))
    y[4, 1:] = -100
    check(model, functional.cross_entropy, x, y)
    y[4] = -100
    with pytest.raises(Misconfiguration, match="loss of record 4 = nan"):
        check(model, functional.cross_entropy, x, y)
    y[4] = 0
    y[4, 2] = 7
    with pytest.raises(Misconfiguration, match=r"target\[2\] of record 4 = 7"):
        check(model, functional.cross_entropy, x, y)


def test_a_record_whose_loss_overflows_is_named() -> None:
    x, y = X.copy(), X[:, :1]
    x[11] = 3e38
    check(linear(1), functional.mse_loss, x, y)  # all outputs are 0 at zero parameters
    with pytest.raises(Misconfiguration, match=r"loss of record 11 = inf.*mend this record"):
        check(linear(1), functional.mse_loss, x, y, "uniform")


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (X[:, :5], Y, "don't go together"),
        (X, X, "don't go together"),
        (X, Y.astype(np.float32), "labels are whole numbers"),
        (X.astype(np.int64), Y, "don't go together"),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_told_in_words(x: Any, y: Any, said: str) -> None:
    with pytest.raises(Misconfiguration, match=said):
        check(linear(), functional.cross_entropy, x, y)


# --- losses and models that mix records ----------------------------------------------------------


def pairs(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Neighbours in the batch are two views of one thing (as NT-Xent has it)."""
    unit = functional.normalize(outputs, dim=1)
    partner = (
        torch.arange(len(outputs)) ^ 1 if len(outputs) > 1 else torch.zeros(1, dtype=torch.int64)
    )
    return functional.cross_entropy(unit @ unit.T / 0.1, partner)


def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets) + (outputs - outputs.mean(dim=0)).pow(2).sum()


class Centred(nn.Module):
    """Batch statistics without being a known layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(x - x.mean(dim=0) / 2)
        return outputs


class Remembering(nn.Module):
    """Adds what it saw last time, and keeps it outside of buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        outputs: torch.Tensor = self.linear(x * self.calls)
        return outputs


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (linear(), pairs),
        (linear(), spread),
        (Centred(), functional.cross_entropy),
        (Remembering(), functional.cross_entropy),
    ],
)
def test_what_mixes_records_is_refused_with_a_way_out(model: nn.Module, loss: Any) -> None:
    with pytest.raises(Misconfiguration, match=r"mixes the records.*reduction='sum'"):
        check(model, loss, X, Y)


_FALLBACK = pytest.mark.filterwarnings("ignore:There is a performance drop")


@_FALLBACK
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    ("outputs", "loss", "targets"),
    [
        (3, nn.CrossEntropyLoss, Y),
        (3, nn.CrossEntropyLoss, np.abs(X[:, :3]) / np.abs(X[:, :3]).sum(axis=1, keepdims=True)),
        (1, nn.MSELoss, X[:, :1]),
        (1, nn.BCEWithLogitsLoss, (X[:, :1] > 0).astype(np.float32)),
    ],
)
def test_usual_losses_are_accepted(outputs: int, loss: Any, targets: Any, reduction: str) -> None:
    check(linear(outputs), loss(reduction=reduction), X, targets)


class Weighted(nn.Module):
    """A loss of an owner's own around torch's."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = self.loss(outputs, targets)
        return own + 0.01 * outputs.square().sum()


def masked(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flip(1), targets, ignore_index=0)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"),
        functools.partial(functional.cross_entropy, weight=WEIGHTS, reduction="sum"),
        Weighted(nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none")),
        masked,
    ],
)
def test_means_that_are_weighted_by_labels_are_losses_of_records(loss: Any) -> None:
    check(linear(), loss, X, np.maximum(Y, 1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("loss", [nn.MSELoss(), functional.l1_loss, nn.SmoothL1Loss()])
def test_one_number_a_record_fits_a_model_with_one_output(loss: Any) -> None:
    """torch warns of [n, 1] beside [n], once for each record."""
    check(linear(1), loss, X, X[:, 0])


def test_a_model_that_is_not_on_the_processor_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3, device="meta"))
    with pytest.raises(Misconfiguration, match=r"model, 1.weight = 'meta': .*give model.cpu\(\)"):
        check_processor(model)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=WEIGHTS),
        nn.NLLLoss(weight=WEIGHTS),
        lambda outputs, targets: functional.cross_entropy(outputs, targets, WEIGHTS),
        lambda outputs, targets: functional.nll_loss(outputs.log_softmax(1), targets, WEIGHTS),
        Weighted(nn.CrossEntropyLoss(weight=WEIGHTS)),
        functools.partial(functional.cross_entropy, weight=WEIGHTS),
        functools.partial(functional.nll_loss, weight=WEIGHTS, reduction="mean"),
    ],
)
def test_class_weights_that_would_do_nothing_are_refused(loss: Any) -> None:
    """A record's weighted mean is w·l/w: the model was the same to the bit, and nobody said so."""
    with pytest.raises(Misconfiguration, match=r"weights cancel in one record's.*reduction='sum'"):
        check(linear(), loss, X, Y)


def test_the_rehearsal_leaves_the_model_as_it_was() -> None:
    model = linear().eval()
    before = [p.clone() for p in model.parameters()]
    check(model, functional.cross_entropy, X, Y)
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
