"""What both systems of `../simulate.py` train on: NumPy and scikit-learn alone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

RECORDS, RATE, LEARNING_RATE = 50, 0.2, 2.0
SIDE = 28


def records(case: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All digits, ``[n, 64]`` in [0, 1]; or as images ``[n, 1, 28, 28]``, each pixel 3 × 3."""
    inputs, labels = load_digits(return_X_y=True)
    x = (inputs / 16).astype(np.float32)
    if case == "cnn":
        large = np.kron(x.reshape(-1, 8, 8), np.ones((3, 3), np.float32))
        x = np.pad(large, ((0, 0), (2, 2), (2, 2)))[:, None]
    return x, labels.astype(np.int64)


def owners_of(case: str, clients: int) -> list[NDArray[np.int64]]:
    """Which records each client holds: 50, drawn with replacement, the same for both systems."""
    count = len(records(case)[1])
    return list(np.random.default_rng(8).integers(count, size=(clients, RECORDS)))


def cnn() -> Any:
    """16 and 32 channels of tanh, 26,010 parameters: the usual one for images of 28 × 28."""
    from torch import nn  # noqa: PLC0415 -- logistic regression needs none

    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
    )
