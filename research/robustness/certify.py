"""A trained model's votes under noise, and the certificates that they make."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.certify.intervals import ConfidenceBudget
from precad.certify.prediction import SmoothingCertificates, certify_smoothing
from precad.client.gradients.noisy_votes import VoteSampling, sample_votes
from precad.simulation.datasets import DataSet
from research.robustness.train import Training, Weights, train

CONFIDENCE = 0.999
"""Of each input's certificate (DP-CERT App. C.3)."""
RADII = tuple(round(0.05 * step, 2) for step in range(61))


@dataclass(frozen=True, slots=True)
class Model:
    """A trained model and the held-out records that it is judged by.

    Attributes:
        module: in evaluation mode.
        name: names it in kept files: of its data and all its settings.
        accuracy: of all held-out records, without noise.
        x: ``[points, …]``, those that are certified.
        y: ``[points]``.
    """

    module: nn.Module
    name: str
    accuracy: float
    x: torch.Tensor
    y: torch.Tensor

    @classmethod
    def of(cls, module: nn.Module, name: str, data: DataSet, every: int) -> "Model":
        """Judged by all held-out records, certified at each ``every``-th."""
        module.eval()
        with torch.no_grad():
            labels = module(torch.from_numpy(data.test_x)).argmax(dim=1).numpy()
        right = float((labels == data.test_y).mean())
        x, y = (
            torch.from_numpy(data.test_x[::every]),
            torch.from_numpy(data.test_y[::every]),
        )
        return cls(module, name, right, x, y)


def name_of(how: Training) -> str:
    """The same for the same training alone."""
    said = json.dumps(how.to_json(), sort_keys=True)
    return f"{how.data}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Certified:
    """Certificates of a model's points.

    Attributes:
        found: CERTIFY's.
        right: ``[points] bool``, certified for the true label.
    """

    found: SmoothingCertificates
    right: NDArray[np.bool_]

    @property
    def radii(self) -> NDArray[np.float64]:
        """``[points]``; 0 where it abstained or is wrong."""
        return np.where(self.right, self.found.radius, 0.0)


def certify(
    model: Model, how: VoteSampling, classes: int, keep: Path | None = None
) -> Certified:
    """CERTIFY of the model's points; ``keep`` is a folder, where the votes are gone on from."""
    file = None
    if keep is not None:
        file = (
            keep
            / f"{model.name}-{len(model.y)}-{how.sigma:g}-{how.copies}-{how.draw}.jsonl"
        )
    votes = sample_votes(model.module, model.x, how, keep=file, model=model.name)
    budget = ConfidenceBudget(confidence=CONFIDENCE, classes=classes)
    found = certify_smoothing(votes.votes, how.sigma, budget, votes.selection)
    return Certified(
        found, np.asarray(found.certified & (found.labels == model.y.numpy()))
    )


def trained(
    how: Training,
    data: DataSet,
    every: int,
    keep: Path | None = None,
    said: Callable[[int, float], object] = lambda _, __: None,
    weights: Weights | None = None,
) -> Model:
    """Trained in one place; ``keep`` is a folder, where a training is gone on from."""
    file = None if keep is None else keep / f"{name_of(how)}.npz"
    return Model.of(train(how, data, file, said, weights), name_of(how), data, every)
