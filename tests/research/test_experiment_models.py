"""Models of the papers: each record has a gradient of its own, which torch.func finds."""

import numpy as np
import pytest
import torch
from research.algorithms.learner import Learner
from research.models import MODELS
from torch import nn

from precad.client.gradients.torch_models import load_vector, model_section
from precad.common.model import initial_vector
from precad.common.task_schema import ModelSection
from precad.simulation.datasets import DataSet


def some(*shape: int, classes: int = 2, words: int = 0) -> DataSet:
    generator = np.random.default_rng(0)
    x = generator.random((3, *shape)).astype(np.float32)
    if words:
        x = np.floor(x * words).astype(np.float32)
    y = np.array([0, 1, classes - 1])
    return DataSet("some", x, y, x, y, classes)


COLOUR = some(3, 32, 32, classes=10)
CASES = {
    "resnet18": (COLOUR, 11_173_962),
    "opacus-cifar-cnn": (COLOUR, 896 + 18_496 + 36_928 + 73_856 + 1_290),
    "pooled-logistic": (COLOUR, 192 * 10 + 10),
    "lstm": (some(4, 300), (4 * 256 * 301 + 4 * 256 * 256) + (4 * 256 * 257 + 4 * 256 * 256) + 514),
    "small-lstm": (
        some(5, words=1024),
        1024 * 16 + (128 * 17 + 128 * 32) + (128 * 33 + 128 * 32) + 66,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_has_its_size_and_per_record_gradients(name: str) -> None:
    data, dimension = CASES[name]
    torch.set_num_threads(1)
    module = MODELS[name](data)
    learner = Learner(module)
    assert learner.dimension == dimension
    section = ModelSection.model_validate(model_section(module, name, "uniform", 1))
    theta = initial_vector(section)
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    thetas = torch.tensor(theta, dtype=torch.float32).expand(2, -1)
    stacked = learner.gradients(thetas, x[:2, None], y[:2, None], torch.ones(2, 1))
    load_vector(module, theta)
    for record, found in enumerate(stacked):
        # Alone: no other record takes part.
        one = slice(record, record + 1)
        loss = nn.functional.cross_entropy(module(x[one]), y[one])
        alone = [each.ravel() for each in torch.autograd.grad(loss, list(module.parameters()))]
        torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-3)
    assert not torch.allclose(stacked[0], stacked[1])
    assert module(x).shape == (3, data.classes)


def test_the_lstm_is_torchs() -> None:
    torch.manual_seed(0)
    own = MODELS["lstm"](some(6, 300))
    theirs = nn.LSTM(300, 256, num_layers=2, batch_first=True)
    with torch.no_grad():
        for number, layer in enumerate(("first", "second")):
            found = getattr(own, layer)
            getattr(theirs, f"weight_ih_l{number}").copy_(found.from_input.weight)
            getattr(theirs, f"bias_ih_l{number}").copy_(found.from_input.bias)
            getattr(theirs, f"weight_hh_l{number}").copy_(found.from_state.weight)
            getattr(theirs, f"bias_hh_l{number}").zero_()
        x = torch.randn(3, 6, 300)
        hidden, _ = theirs(x)
        assert isinstance(own.last, nn.Linear)
        torch.testing.assert_close(own(x), own.last(hidden[:, -1]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["opacus-cnn", "opacus-cifar-cnn"])
def test_models_that_convolve_one_by_one_get_what_they_get_together(name: str) -> None:
    torch.set_num_threads(1)
    data = some(1, 28, 28, classes=10) if name == "opacus-cnn" else COLOUR
    learner = Learner(MODELS[name](data))
    generator = torch.Generator().manual_seed(4)
    thetas = torch.randn(3, learner.dimension, generator=generator) * 0.1
    x = torch.rand(3, 32, *data.train_x.shape[1:], generator=generator)
    y = torch.randint(0, 10, (3, 32), generator=generator)
    weights = torch.rand(3, 32, generator=generator)
    found = learner.gradients(thetas, x, y, weights)
    torch.testing.assert_close(found, learner.stacked(thetas, x, y, weights), atol=1e-5, rtol=1e-3)
    # Whichever others are beside it: to the bit.
    alone = learner.gradients(thetas[1:2], x[1:2], y[1:2], weights[1:2])
    assert torch.equal(found[1:2], alone)
    seen = x[0].numpy()
    outputs = learner.probabilities(thetas, seen)
    for theta, own in zip(thetas, outputs, strict=True):
        assert (learner.labels(theta.double().numpy(), seen) == own.argmax(axis=1)).all()
        assert learner.accuracy(theta.double().numpy(), seen, own.argmax(axis=1)) == 1.0
    np.testing.assert_allclose(outputs.sum(axis=2), 1.0)
    assert (learner.votes(thetas, seen) == outputs.argmax(axis=2)).all()
