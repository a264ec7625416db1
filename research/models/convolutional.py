"""The papers' small convolutional networks."""

from itertools import pairwise

from torch import nn

from precad.simulation.datasets import DataSet
from research.models import MODELS


@MODELS.register("opacus-cnn")
def opacus_cnn(data: DataSet) -> nn.Module:
    """The CNN of Opacus's MNIST example, for 28×28 grey images; PRECAD Sec. 6.1.

    26,010 weights.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, data.classes),
    )


@MODELS.register("tensorflow-cnn")
def tensorflow_cnn(data: DataSet) -> nn.Module:
    """The CNN of TensorFlow's tutorial, for 32×32 colour images; PRECAD Sec. 6.1."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, data.classes),
    )


@MODELS.register("lenet5")
def lenet5(data: DataSet) -> nn.Module:
    """LeNet-5 for 28×28 grey images; Liu et al. Sec. 5."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, data.classes),
    )


@MODELS.register("opacus-cifar-cnn")
def opacus_cifar_cnn(data: DataSet) -> nn.Module:
    """The CNN of Opacus's CIFAR-10 example, for 32×32 colour images; Xie et al. Sec.

    6.1.
    """
    widths = (data.train_x.shape[1], 32, 64, 64)
    layers: list[nn.Module] = []
    for enter, leave in pairwise(widths):
        layers += [nn.Conv2d(enter, leave, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [
        nn.Conv2d(widths[-1], 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, data.classes))
