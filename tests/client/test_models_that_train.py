"""Thirty models and fifteen losses as people bring them: each trains right, or is named.

The page docs/own-model.md has what came out here, line by line.
"""

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.rig.model_corpus import (
    CLASSES,
    LOSSES,
    REFUSED,
    REFUSED_LOSSES,
    TRAINED,
    N,
    P,
    X,
    Y,
    outcome,
    row_on_the_page,
)
from tests.rig.tasks import task_of
from torch import nn
from torch.nn import functional

from precad.client.gradients.rehearsal import rehearse, try_model
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.model import initial_vector
from precad.simulation import simulate

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop|.*oneDNN")


@pytest.fixture(autouse=True)
def distributions_check() -> Iterator[None]:
    """torch.compile's own module turns it off for the whole process."""
    yield
    torch.distributions.Distribution.set_default_validate_args(value=True)


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_s_gradients_are_autograd_s_one_by_one(name: str) -> None:
    make, x = TRAINED[name]
    torch.manual_seed(2)
    model = make()
    with torch.no_grad():
        outputs = model(torch.from_numpy(x))
    # Labels, a pixel each where there are pixels.
    y = np.resize(Y, (N, *outputs.shape[2:])) if outputs.ndim > 2 else Y
    assert outcome(model, functional.cross_entropy, x, y) == "trains"
    assert row_on_the_page(name) == "trains"
    assert try_model(model, task_of(model, "uniform"), x.shape[1:]) is not None


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_train_is_named_before_there_are_records(name: str) -> None:
    make, x = REFUSED[name]
    torch.manual_seed(2)
    model = make()
    said = outcome(model, functional.cross_entropy, x, Y)
    assert said == row_on_the_page(name)
    assert not re.search("mend this record|don't go together|record [0-9]", said)
    with pytest.raises(Misconfiguration):
        try_model(model, task_of(model, "uniform"), x.shape[1:])


@pytest.mark.parametrize("name", ["the old weight_norm", "torch.compile", "pruning"])
def test_a_simulation_names_what_cannot_be_copied(name: str) -> None:
    """It was the device that couldn't be used."""
    model = REFUSED[name][0]()
    with pytest.raises(Misconfiguration, match=re.escape(row_on_the_page(name))):
        simulate(task_of(model, "uniform"), (X, Y), model, clients=2, rounds=1)


def test_a_recurrent_net_is_simulated_on_either_path() -> None:
    make, x = TRAINED["GRU, two layers, both ways"]
    model = make()
    task = task_of(model, "uniform")
    one, other = (
        simulate(task, (x, Y), model, clients=2, rounds=2, seed=3, path=path).theta
        for path in ("stacked", "per-client")
    )
    assert np.abs(one - other).max() < 1e-4
    assert np.abs(one - initial_vector(task.model)).max() > 0


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_s_gradients_are_autograd_s_one_by_one(name: str) -> None:
    loss, columns, y = LOSSES[name]
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, columns))
    assert outcome(model, loss, X, y) == "trains"
    assert row_on_the_page(name) == "trains"


@pytest.mark.parametrize("name", REFUSED_LOSSES)
def test_a_loss_that_cannot_be_one_of_records_is_named(name: str) -> None:
    loss, columns, y = REFUSED_LOSSES[name]
    said = outcome(nn.Linear(6, columns), loss, X, y)
    assert said == row_on_the_page(f"{name} (loss)")
    assert "mend this record" not in said


def test_no_record_is_blamed_for_a_start_at_which_no_loss_is_finite() -> None:
    class Cooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.temperature = nn.Linear(6, CLASSES), nn.Parameter(torch.tensor(1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.linear(x) / self.temperature
            return outputs

    task = task_of(Cooled(), "uniform")
    with pytest.raises(Misconfiguration, match=r"starts at 0.*start from a file of weights"):
        rehearse(Cooled(), functional.cross_entropy, as_records((X, Y)), task)


def test_without_a_shape_such_as_the_first_layer_takes_is_tried() -> None:
    for name in ("logistic regression", "LSTM", "embedding", "transformer's encoder"):
        model = TRAINED[name][0]()
        if name == "embedding":
            model = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(32, CLASSES))
        assert try_model(model, task_of(model, "uniform")) is not None, name
    strange = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 7 * 9, 2))
    assert try_model(strange, task_of(strange, "uniform")) is None
    with pytest.raises(Misconfiguration, match=r"takes no record of shape \[2, 8, 8\]"):
        try_model(strange, task_of(strange, "uniform"), P.shape[1:])
