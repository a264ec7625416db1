"""The same training by a federation: rounds of the protocol in one process, at the same ε."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from precad.client.gradients.torch_models import load_vector, model_section
from precad.common.mechanism import MAX_BOUND
from precad.common.task import MAX_CLIP_RATIO, Task
from precad.simulation.datasets import DataSet
from precad.simulation.simulated_training import simulate
from research.robustness.certify import Model, name_of
from research.robustness.train import Training, module_of

_MOST_BITS = 20
_ROOM = 4.0
"""Of the client clip above an owner's expected number of records: honest owners stay
below."""


def task_of(how: Training, data: DataSet, clients: int) -> Task:
    """A task whose record has ``how``'s ε against one curious server.

    Each server adds ρ·R, as much as the central training does, so that the sum has √2
    times as much: the price of not having to trust either. The server's step has no
    momentum, and ``learning_rate`` is scaled to go as far.
    """
    expected = how.rate * len(data.train_y) / clients
    clip = how.clip * min(MAX_CLIP_RATIO, _ROOM * expected)
    return Task.parse(
        {
            "name": "dp-cert",
            "model": model_section(
                module_of(how.model, data),
                architecture=how.model,
                initial="uniform",
                initial_seed=how.seed,
            ),
            "privacy": {
                "record_clip": how.clip,
                "client_clip": clip,
                "noise_multiplier": how.noise_multiplier,
                "record_rate": how.rate,
                "client_rate": 1.0,
                "delta": how.delta,
            },
            "training": {
                "learning_rate": how.learning_rate / (1 - how.momentum),
                "rounds": how.rounds,
            },
            "fractional_bits": min(_MOST_BITS, math.floor(math.log2(MAX_BOUND / clip))),
            "enrolment": {"clients": clients, "max_expected_records": 2 * expected},
            "objective": how.objective.model_dump(),
        }
    )


def federated(
    how: Training,
    data: DataSet,
    every: int,
    clients: int,
    keep: Path | None = None,
    said: Callable[[int, float], object] = lambda _, __: None,
) -> tuple[Model, float]:
    """The model, and ε of a record against one server.

    ``keep`` is a folder, for the last θ.
    """
    name, module = f"federated-{clients}-{name_of(how)}", module_of(how.model, data)
    file = None if keep is None else keep / f"{name}.npz"
    if file is not None and file.exists():
        with np.load(file, allow_pickle=False) as kept:
            theta, epsilon = kept["theta"], float(kept["epsilon"])
    else:
        found = simulate(
            task_of(how, data, clients),
            (data.train_x, data.train_y),
            module,
            seed=how.seed,
            on_round=lambda shown, _: said(shown.number, shown.seconds),
        )
        spent = found.epsilon(how.rounds)
        assert spent is not None
        theta, epsilon = found.theta, spent[0]
        if file is not None:
            np.savez(file, theta=theta, epsilon=epsilon)
    load_vector(module, theta)
    return Model.of(module, name, data, every), epsilon
