"""Before enrolment: which records, models and losses an owner is told can't be used.

What people bring, thirty models and fifteen losses, is in test_models_that_train.py.
"""

import functools
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from tests.rig.model_corpus import Own
from tests.rig.tasks import task_of
from torch import nn
from torch.nn import functional

from precad.client.gradients.rehearsal import check_processor, rehearse
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration

N = 20
WEIGHTS = torch.tensor([0.1, 1.0, 5.0])
GENERATOR = np.random.default_rng(1)
X = GENERATOR.normal(size=(N, 6)).astype(np.float32)
Y = GENERATOR.integers(0, 3, N)
SHARES = np.abs(X[:, :3]) / np.abs(X[:, :3]).sum(axis=1, keepdims=True)
cross_entropy = functional.cross_entropy


def linear(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, outputs))


def check(model: nn.Module, loss: Any, x: object, y: object, initial: str = "zeros") -> None:
    rehearse(model, loss, as_records((x, y)), task_of(model, initial), most=14)


def refused(said: str, model: nn.Module, loss: Any, *records: Any) -> None:
    with pytest.raises(Misconfiguration, match=said):
        check(model, loss, *records)


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        nn.CrossEntropyLoss(reduction="none"),
        functools.partial(cross_entropy, label_smoothing=0.1),
    ],
)
@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_that_is_no_class_is_named(loss: Any, label: int) -> None:
    y = np.where(np.arange(N) == 13, label, Y)
    refused(f"target of record 13 = {label}.*from 0 to 2", linear(), loss, X, y)


def test_what_another_loss_or_a_table_cannot_take_is_found_by_trying() -> None:
    def own(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 2 * cross_entropy(outputs, targets)

    y = np.where(np.arange(N) == 13, 3, Y)
    refused(r"record 13.*can't take it.*mend", linear(), own, X, y)
    model = nn.Sequential(nn.Embedding(50, 2), nn.Flatten(), nn.Linear(12, 3))
    tokens = GENERATOR.integers(0, 50, (N, 6))
    check(model, cross_entropy, tokens, Y)
    tokens[17, 2] = 50
    refused(r"record 17.*IndexError", model, cross_entropy, tokens, Y)


def test_parts_of_a_record_may_be_left_without_a_label_but_not_all() -> None:
    model = nn.Conv1d(1, 3, 1)
    x, y = X[:, None, :], np.tile(Y[:, None], (1, 6))
    y[4, 1:] = -100
    check(model, cross_entropy, x, y)
    y[4] = -100
    refused("loss of record 4 = nan", model, cross_entropy, x, y)
    y[4] = 0
    y[4, 2] = 7
    refused(r"target\[2\] of record 4 = 7", model, cross_entropy, x, y)


def test_a_record_whose_loss_overflows_is_named() -> None:
    x, y = X.copy(), X[:, :1]
    x[11] = 3e38
    check(linear(1), functional.mse_loss, x, y)  # all outputs are 0 at zero parameters
    said = r"loss of record 11 = inf.*mend this record"
    refused(said, linear(1), functional.mse_loss, x, y, "uniform")


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
    refused(said, linear(), cross_entropy, x, y)


def pairs(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Neighbours in the batch are two views of one thing (as NT-Xent has it)."""
    unit = functional.normalize(outputs, dim=1)
    partner = (
        torch.arange(len(outputs)) ^ 1 if len(outputs) > 1 else torch.zeros(1, dtype=torch.int64)
    )
    return cross_entropy(unit @ unit.T / 0.1, partner)


def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets) + (outputs - outputs.mean(dim=0)).pow(2).sum()


CALLS = count(1)
CENTRED = Own(lambda m, x: m.head(x - x.mean(dim=0) / 2))
"""Batch statistics without being a known layer."""
REMEMBERING = Own(lambda m, x: m.head(x * next(CALLS)))
"""What it gives depends on what it saw before, and it keeps that outside of buffers."""


@pytest.mark.parametrize(
    ("model", "loss"),
    [(linear(), pairs), (linear(), spread), (CENTRED, cross_entropy), (REMEMBERING, cross_entropy)],
    ids=["pairs", "spread", "centred", "remembering"],
)
def test_what_mixes_records_is_refused_with_a_way_out(model: nn.Module, loss: Any) -> None:
    refused(r"mixes the records.*reduction='sum'", model, loss, X, Y)


class Weighted(nn.Module):
    """A loss of an owner's own around torch's."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = self.loss(outputs, targets)
        return own + 0.01 * outputs.square().sum()


def masked(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs.flip(1), targets, ignore_index=0)


LABELS = np.maximum(Y, 1)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.CrossEntropyLoss(reduction="none"), SHARES),
        (nn.MSELoss(reduction="none"), X[:, :3]),
        (nn.BCEWithLogitsLoss(reduction="none"), (X[:, :3] > 0).astype(np.float32)),
        (functools.partial(cross_entropy, weight=WEIGHTS, reduction="sum"), LABELS),
        (Weighted(nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none")), LABELS),
        (masked, LABELS),
    ],
    ids=["shares", "squares", "bits", "weighted sum", "weighted none", "a mean without a class"],
)
def test_losses_of_each_record_alone_are_taken(loss: Any, targets: Any) -> None:
    check(linear(), loss, X, targets)


@pytest.mark.parametrize(
    "loss",
    [
        nn.NLLLoss(weight=WEIGHTS),
        lambda outputs, targets: cross_entropy(outputs, targets, WEIGHTS),
        lambda outputs, targets: functional.nll_loss(outputs.log_softmax(1), targets, WEIGHTS),
        Weighted(nn.CrossEntropyLoss(weight=WEIGHTS)),
        functools.partial(cross_entropy, weight=WEIGHTS),
        functools.partial(functional.nll_loss, weight=WEIGHTS, reduction="mean"),
    ],
)
def test_class_weights_that_would_do_nothing_are_refused(loss: Any) -> None:
    """A record's weighted mean is w·l/w: the model was the same to the bit, and nobody said so."""
    refused(r"weights cancel in one record's.*reduction='sum'", linear(), loss, X, Y)


def test_a_model_that_is_not_on_the_processor_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3, device="meta"))
    with pytest.raises(Misconfiguration, match=r"model, 1.weight = 'meta': .*give model.cpu\(\)"):
        check_processor(model)


def test_the_rehearsal_leaves_the_model_as_it_was() -> None:
    model = linear().eval()
    before = [p.clone() for p in model.parameters()]
    check(model, cross_entropy, X, Y)
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
