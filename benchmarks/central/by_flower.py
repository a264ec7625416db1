"""One training by Flower's server-side fixed clipping, for `../whole_owners.py`.

Flower's own strategy runs over a grid in this process, whose nodes train logistic
regression by torch's SGD. Needs torch and Flower, and no precad.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

Share = tuple[NDArray[np.float32], NDArray[np.int64]]
"""An owner's inputs, ``[n, features]``, and labels."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How owners train, and what the server does with it."""

    rounds: int
    epochs: int
    learning_rate: float
    clip: float
    noise_multiplier: float
    classes: int

    def locally(self, start: NDArray[np.float32], share: Share) -> NDArray[np.float32]:
        """What a client's own training makes of a model, ``[d]``."""
        x, y = map(torch.from_numpy, share)
        module = model_at(start, self.classes)
        optimiser = torch.optim.SGD(module.parameters(), lr=self.learning_rate)
        for _ in range(self.epochs):
            optimiser.zero_grad()
            functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        vector = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
        return np.asarray(vector)


def model_at(theta: NDArray[np.float32], classes: int) -> nn.Module:
    """Logistic regression with these weights, ``[d]``."""
    module = nn.Linear(len(theta) // classes - 1, classes)
    nn.utils.vector_to_parameters(torch.from_numpy(theta), module.parameters())
    return module


class InProcess(Grid):
    """A grid whose nodes are the owners."""

    def __init__(self, shares: Sequence[Share], training: Training) -> None:
        self._shares = shares
        self._training = training

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """None."""

    def create_message(self, *_: Any, **__: Any) -> Any:
        """None: messages are made as such."""

    def get_node_ids(self) -> Iterable[int]:
        """The owners, from 1 on."""
        return range(1, len(self._shares) + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Not used by strategies."""
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Not used by strategies."""
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], **_: Any
    ) -> Iterable[Message]:
        """What each owner's training makes of the model that it gets."""
        replies = []
        for message in messages:
            (start,) = message.content.array_records["arrays"].to_numpy_ndarrays()
            share = self._shares[message.metadata.dst_node_id - 1]
            trained = ArrayRecord([self._training.locally(start, share)])
            weight = MetricRecord({"num-examples": len(share[1])})
            content = RecordDict({"arrays": trained, "metrics": weight})
            replies.append(Message(content, reply_to=message))
        return replies


def trained_by_flower(
    shares: Sequence[Share], held_out: Share, training: Training, *, seed: int
) -> dict[str, float]:
    """Its accuracy on held-out records, and the CPU time that it took."""
    began = time.process_time()
    for name in ("run_id", "node_id", "task_id"):
        setattr(TaskIdentity, name, 1)
    np.random.seed(seed)  # noqa: NPY002 -- Flower draws its noise from it
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0),
        noise_multiplier=training.noise_multiplier,
        clipping_norm=training.clip,
        num_sampled_clients=len(shares),
    )
    x, y = map(torch.from_numpy, held_out)
    start = np.zeros(training.classes * (x.shape[1] + 1), np.float32)
    grid = InProcess(shares, training)
    done = strategy.start(grid, ArrayRecord([start]), num_rounds=training.rounds)
    (theta,) = done.arrays.to_numpy_ndarrays()
    with torch.no_grad():
        right = (model_at(theta, training.classes)(x).argmax(1) == y).double().mean()
    return {
        "accuracy": float(right),
        "cpu_seconds": round(time.process_time() - began, 1),
    }
