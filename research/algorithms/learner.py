"""Gradients of plain losses at any weights, of one model or of many at once (torch.func)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from precad.client.gradients.torch_models import load_vector

Reals = NDArray[np.float64]
_TESTED_AT_ONCE = 2000
_VOTED_AT_ONCE = 20_000
_IMAGES = 4
"""Dimensions of a batch of them."""
_WORTH_A_CALL = 32
"""Images a model from which on a processor convolves for each model by itself: with
weights of many models at once it takes longer, and that it is called less often makes
up for few images alone (benchmarks/ensembles.py)."""


class Learner:
    """A module as a function of its weights in one vector.

    Args:
        module: without buffers that training changes.
        device: where it computes.
    """

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self._module, self._device = module.float().to(device), device
        self._shapes = {name: value.shape for name, value in module.named_parameters()}
        self.dimension = sum(shape.numel() for shape in self._shapes.values())
        ends = np.cumsum([shape.numel() for shape in self._shapes.values()]).tolist()
        self.layers = tuple(
            slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)
        )
        """Where each tensor lies in the vector."""
        self._one_by_one = device == "cpu" and any(
            isinstance(layer, nn.Conv2d) for layer in self._module.modules()
        )
        self._one: Callable[..., torch.Tensor] = grad(self._loss)
        self._of_stacked: Callable[..., torch.Tensor] = vmap(grad(self._loss))
        self._by_record: Callable[..., torch.Tensor] = vmap(
            grad(self._loss), (None, 0, 0, 0)
        )

    def named(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """One vector, ``[…, d]``, as tensors by name, ``[…, *shape]``."""
        pieces = torch.split(
            theta, [shape.numel() for shape in self._shapes.values()], dim=-1
        )
        return {
            name: piece.reshape(*theta.shape[:-1], *shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }

    def gradients(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """Of each model's weighted loss on records of its own, the faster way.

        Args:
            thetas: ``[models, d] float32``.
            x: ``[models, records, …]``.
            y: ``[models, records]``.
            weights: ``[models, records]``, 0 for what only fills up.

        Returns:
            ``[models, d]``.
        """
        if self._one_by_one and x.shape[1] >= _WORTH_A_CALL:
            each = zip(thetas, x, y, weights, strict=True)
            return torch.stack([self.gradient(*one) for one in each])
        return self.stacked(thetas, x, y, weights)

    def stacked(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """As ``gradients``, of all models by the same operations of torch."""
        return self._of_stacked(thetas, x, y, weights)

    def gradient(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """Of one model's weighted loss on all records, ``[d]``.

        As ``gradients`` of one model; of images in half the time, because their
        channels come last.

        Args:
            theta: ``[d] float32``.
            x: ``[n, …]``.
            y: ``[n]``.
            weights: ``[n]``.
        """
        found: torch.Tensor = self._one(theta, _last_channels(x), y, weights)
        return found

    def of_records(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Of one model's loss on each record alone, with one copy of the weights: ``[n, d]``.

        Args:
            theta: ``[d] float32``.
            x: ``[n, …]``.
            y: ``[n]``.
        """
        ones = torch.ones(len(x), 1, device=theta.device)
        found: torch.Tensor = self._by_record(theta, x[:, None], y[:, None], ones)
        return found

    def votes(self, thetas: torch.Tensor, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """What each of many models names the records, ``[models, n]``."""
        found: NDArray[np.int64] = self._outputs(thetas, x, lambda o: o.argmax(dim=2))
        return found

    def probabilities(
        self, thetas: torch.Tensor, x: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """What each of many models takes each class's probability for, ``[models, n, classes]``."""
        found: Reals = self._outputs(thetas, x, lambda o: o.double().softmax(dim=2))
        return found

    def _outputs(
        self,
        thetas: torch.Tensor,
        x: NDArray[np.float32],
        of: Callable[[torch.Tensor], torch.Tensor],
    ) -> Any:
        inputs = torch.from_numpy(x).to(self._device)
        with torch.no_grad():
            if self._one_by_one:
                found = [of(self._named_by(theta, inputs)[None]) for theta in thetas]
            else:
                each = vmap(
                    lambda t, some: functional_call(
                        self._module, self.named(t), (some,)
                    )
                )
                found = [
                    of(each(some, inputs.expand(len(some), *inputs.shape))).cpu()
                    for some in torch.split(thetas, max(1, _VOTED_AT_ONCE // len(x)))
                ]
        return torch.cat(found).numpy()

    def _named_by(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """What one model gives for the records, ``[n, classes]``."""
        named = self.named(theta)
        pieces = torch.split(_last_channels(x), _TESTED_AT_ONCE)
        return torch.cat(
            [functional_call(self._module, named, (some,)) for some in pieces]
        )

    def descend(
        self,
        theta: Reals,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        rate: float,
        steps: int,
    ) -> Reals:
        """One model after so many steps on the mean loss of all records, ``[d]``."""
        at = torch.tensor(theta, dtype=torch.float32, device=self._device)
        inputs = torch.from_numpy(x).to(self._device)
        targets = torch.from_numpy(y).to(self._device)
        weights = torch.full(targets.shape, 1 / len(y), device=self._device)
        for _ in range(steps):
            at = at - rate * self.gradient(at, inputs, targets, weights)
        return np.asarray(at.double().cpu().numpy())

    def accuracy(
        self, theta: Reals, x: NDArray[np.float32], y: NDArray[np.int64]
    ) -> float:
        """Share of records that the model names as ``y`` does."""
        return float((self.labels(theta, x) == y).mean())

    def labels(self, theta: Reals, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """What the model names the records, ``[n]``."""
        load_vector(self._module, theta)
        with torch.no_grad():
            found = [
                self._module(some.to(self._device)).argmax(dim=1).cpu()
                for some in torch.split(torch.from_numpy(x), _TESTED_AT_ONCE)
            ]
        return torch.cat(found).numpy()

    def _loss(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        outputs = functional_call(self._module, self.named(theta), (x,))
        return (functional.cross_entropy(outputs, y, reduction="none") * weights).sum()


def _last_channels(x: torch.Tensor) -> torch.Tensor:
    """The same, laid out so that a processor convolves and pools images twice as fast."""
    return x.to(memory_format=torch.channels_last) if x.ndim == _IMAGES else x
