"""Models of the robustness experiments."""

from torch import nn

from precad.client.gradients.torch_models import logistic, mlp
from precad.common.errors import Misconfiguration

OURS = ("logistic", "mlp", "cnn")
"""What ``make`` makes."""


def cnn() -> nn.Module:
    """Four layers for images of 28×28 (Tramèr and Boneh 2021, as DP-CERT Sec.

    4.2 takes it).
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def make(name: str, features: int, classes: int) -> nn.Module:
    """``logistic``, ``mlp`` or ``cnn``. Raises Misconfiguration for another name."""
    match name:
        case "logistic":
            return logistic(features, classes)
        case "mlp":
            return mlp(features, 64, classes)
        case "cnn":
            return cnn()
    raise Misconfiguration("model", name, "use logistic, mlp or cnn")
