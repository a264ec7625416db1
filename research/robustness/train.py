"""Central training for one table row: DP-SGD with a record objective, or without privacy."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.accounting.events import poisson_gaussian
from precad.accounting.guarantees import least_noise_multiplier
from precad.client.gradients.objectives import augmentation
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.gradients.torch_models import load_vector, model_section
from precad.client.records.torch_records import Records
from precad.common.identifiers import Secret
from precad.common.model import tensors, unrounded_start
from precad.common.ring import derive
from precad.common.task_schema import ModelSection, ObjectiveSection
from precad.simulation.datasets import DataSet
from research.models import MODELS
from research.robustness.models import OURS, make

PIECE = 128
"""Records whose gradients are held at once: more leave the processor's cache."""
_KEEP_S = 60.0
Weights = Mapping[str, NDArray[np.float64]]
"""Tensors by the parameters' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One model; symbols as in DP-CERT Algorithm 2.

    Attributes:
        data: name of the data set.
        model: as ``make`` takes it, or one of ``MODELS``.
        objective: what a record's gradient is of, and its clipping.
        epsilon: ε of one record at ``delta``, add/remove; None trains without clip and
            noise.
        rate: B/N, of the Poisson sample.
        rounds: T.
        learning_rate: λ, of the mean over B.
        clip: C.
        seed: of start, samples, copies and noise: an experiment protects nobody.
        momentum: of the steps; it is applied to what was released, and costs nothing.
        given_noise: ρ, where it isn't to be the least for ``epsilon``.
        start: digest of the public weights that it starts from; random ones without it.
    """

    data: str
    model: str
    objective: ObjectiveSection
    epsilon: float | None
    rate: float
    rounds: int
    learning_rate: float
    clip: float
    seed: int
    delta: float = 1e-5
    momentum: float = 0.0
    given_noise: float | None = None
    start: str = ""

    @property
    def noise_multiplier(self) -> float:
        """ρ: the least for (ε, δ); 0 without privacy. No objective is asked."""
        if self.given_noise is not None:
            return self.given_noise
        if self.epsilon is None:
            return 0.0
        return _calibrated(self.rate, self.rounds, self.epsilon, self.delta)

    def to_json(self) -> dict[str, object]:
        """Everything, and ρ."""
        plain = asdict(self) | {"objective": self.objective.model_dump()}
        del plain["given_noise"]
        if not self.start:
            del plain["start"]
        return plain | {"noise_multiplier": self.noise_multiplier}


def module_of(name: str, data: DataSet) -> nn.Module:
    """A module of this name for the data, its weights random."""
    return (
        make(name, data.features, data.classes) if name in OURS else MODELS[name](data)
    )


def first_vector(section: ModelSection, weights: Weights | None) -> NDArray[np.float64]:
    """θ_0: the section's, with the given weights wherever name and shape are the model's own.

    A last layer of other classes stays as it is drawn.
    """
    theta = unrounded_start(section)
    for name, values in tensors(theta, section.parameters).items():
        given = (weights or {}).get(name)
        if given is not None and given.shape == values.shape:
            values[...] = given
    return theta


@cache
def _calibrated(rate: float, rounds: int, epsilon: float, delta: float) -> float:
    return least_noise_multiplier(
        lambda sigma: poisson_gaussian(rate=rate, noise_multiplier=sigma, count=rounds),
        epsilon=epsilon,
        delta=delta,
    )


def train(
    how: Training,
    data: DataSet,
    keep: Path | None = None,
    said: Callable[[int, float], object] = lambda _, __: None,
    weights: Weights | None = None,
) -> nn.Module:
    """The trained module.

    Args:
        how: what to train.
        data: its records.
        keep: a file that keeps θ every minute; a later call goes on from it.
        said: told the round and the seconds so far.
        weights: those of ``how.start``.
    """
    module = module_of(how.model, data)
    section = ModelSection.model_validate(
        model_section(
            module, architecture=how.model, initial="uniform", initial_seed=how.seed
        )
    )
    gradients = RecordGradients(
        module, nn.functional.cross_entropy, section.parameters, objective=how.objective
    )
    records = Records(data.train_x, data.train_y)
    gradients.prepare(records)
    theta, speed, first = (
        first_vector(section, weights),
        np.zeros(gradients.dimension),
        0,
    )
    if keep is not None and keep.exists():
        with np.load(keep, allow_pickle=False) as kept:
            theta, speed, first = kept["theta"], kept["speed"], int(kept["round"])
    expected, key = how.rate * len(records), Secret(how.seed.to_bytes(32, "little"))
    sigma, shape = (
        how.noise_multiplier,
        (gradients.objective.noisy, *records.inputs.shape[1:]),
    )
    began = kept_at = time.monotonic()
    for number in range(first, how.rounds):
        # A generator for each round: a training that goes on draws what it would have
        # drawn.
        draw = np.random.default_rng([how.seed, number])
        drawn = np.flatnonzero(draw.random(len(records)) < how.rate)
        named = gradients.loaded(theta)
        of_round = derive(key, "experiment", number)
        total = torch.zeros(gradients.dimension, dtype=torch.float64)
        for start in range(0, len(drawn), PIECE):
            some = drawn[start : start + PIECE]
            inputs, targets = records.take(some)
            found = gradients.shared(
                named,
                inputs=inputs,
                targets=targets,
                noise=augmentation(of_round, shape, some, len(some)),
            )
            factors = torch.ones(len(some))
            if how.epsilon is not None:
                factors = factors_of(found.norm(dim=1), how.clip, how.objective)
            total += factors @ found
        step = total.numpy() + how.clip * sigma * draw.standard_normal(
            gradients.dimension
        )
        speed = how.momentum * speed + step / expected
        theta = theta - how.learning_rate * speed
        said(number + 1, time.monotonic() - began)
        if keep is not None and time.monotonic() - kept_at > _KEEP_S:
            _keep(keep, theta, speed, number + 1)
            kept_at = time.monotonic()
    if keep is not None:
        _keep(keep, theta, speed, how.rounds)
    load_vector(module, theta)
    return module


def factors_of(
    norms: torch.Tensor, clip: float, objective: ObjectiveSection | None
) -> torch.Tensor:
    """What each gradient is multiplied by, by the rules of ``clip_record``.

    ``norms`` are the gradients' own; both are ``[n]``.
    """
    if objective is None or objective.clipping == "flat":
        return torch.clamp(clip / norms, max=1.0)
    stabiliser = objective.stabiliser
    return clip / (norms + stabiliser / (norms + stabiliser))


def _keep(path: Path, theta: object, speed: object, number: int) -> None:
    # Two processes may train the same model.
    draft = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(draft, theta=np.asarray(theta), speed=np.asarray(speed), round=number)
    draft.replace(path)
