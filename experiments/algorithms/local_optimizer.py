"""A user's local steps from gradients that are noisy already: SGD's, or Adam's.

Either only processes what the noise has hidden, so that the account is the same. Xie et al. have
SGD (Algorithms 2 and 3), Liu et al. Adam (Kingma and Ba, ICLR 2015) in their experiments.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

OPTIMIZERS = ("sgd", "adam")
_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's state, by torch's names."""


class LocalOptimizer:
    """Of all pairs of a model and a user at once, each for itself.

    Args:
        name: ``sgd`` or ``adam``, the latter with torch's defaults.
        rate: η.

    Raises:
        Misconfiguration: another name.
    """

    def __init__(self, name: str, rate: float) -> None:
        if name not in OPTIMIZERS:
            raise Misconfiguration("optimizer", name, f"must be one of {', '.join(OPTIMIZERS)}")
        self._adam, self._rate = name == "adam", rate
        self._inner: torch.optim.Adam | None = None

    def begin(self) -> None:
        """A round begins: nothing is known of earlier gradients."""
        self._inner = None

    def step(self, at: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The weights after a step.

        Args:
            at: ``[pairs, d] float32``; Adam changes them in place, and a round goes on with these.
            gradient: likewise.
        """
        if not self._adam:
            return at - self._rate * gradient
        if self._inner is None:
            self._inner = torch.optim.Adam([at], lr=self._rate)
        at.grad = gradient
        self._inner.step()
        at.grad = None
        return at

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps beside the weights, by names of its own."""
        if self._inner is None:
            return {}
        (kept,) = self._inner.state.values()
        return {
            "adam_step": np.asarray(float(kept["step"])),
            **{f"adam_{name}": kept[name].cpu().numpy() for name in _MOMENTS},
        }

    def restore(self, at: torch.Tensor, kept: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave, for these weights."""
        self.begin()
        if "adam_step" not in kept:
            return
        self._inner = torch.optim.Adam([at], lr=self._rate)
        self._inner.state[at] = {
            "step": torch.tensor(float(kept["adam_step"])),
            **{name: torch.from_numpy(kept[f"adam_{name}"]).to(at) for name in _MOMENTS},
        }
