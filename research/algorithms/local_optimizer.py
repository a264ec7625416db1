"""A user's local steps: SGD's, with momentum where there is any, or Adam's.

Where gradients are noisy already, either only processes what the noise has hidden, so
that the account is the same. In their experiments Xie et al. have SGD with momentum
(Sec. 6.1.2; their Algorithms 1 to 3 write it without), Liu et al. Adam (Kingma and Ba,
ICLR 2015).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

OPTIMIZERS = ("sgd", "adam")
MOMENTUM = 0.9
WEIGHT_DECAY = 0.0005
"""Those of Xie et al.'s users (Sec. 6.1.2)."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's state, by torch's names."""


class LocalOptimizer:
    """Of all pairs of a model and a user at once, each for itself.

    Args:
        name: ``sgd`` or ``adam``, the latter with torch's defaults.
        rate: η.
        momentum: of SGD's steps: a step goes along this much of the last one's
            direction too.
        weight_decay: SGD's gradient has this much of the weights added.

    Raises:
        Misconfiguration: another name, a momentum or decay out of range, or one for
            Adam.
    """

    def __init__(
        self, name: str, rate: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        if name not in OPTIMIZERS:
            raise Misconfiguration(
                "optimizer", name, f"must be one of {', '.join(OPTIMIZERS)}"
            )
        self._adam, self._rate = name == "adam", rate
        self._momentum, self._decay = momentum, weight_decay
        for field, value in (("momentum", momentum), ("weight_decay", weight_decay)):
            if not 0 <= value < 1:
                raise Misconfiguration(field, value, "must be at least 0 and below 1")
            if value and self._adam:
                raise Misconfiguration(
                    field, value, "only sgd has it: leave it at 0 with adam"
                )
        self._inner: torch.optim.Adam | None = None
        self._velocity: torch.Tensor | None = None

    def begin(self) -> None:
        """A round begins: nothing is known of earlier gradients."""
        self._inner = self._velocity = None

    def step(
        self,
        at: torch.Tensor,
        gradient: torch.Tensor,
        stepping: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The weights after a step.

        Args:
            at: ``[pairs, d] float32``; Adam changes them in place, and a round goes on
                with these.
            gradient: likewise.
            stepping: which pairs of SGD's take it, ``[pairs] bool``; all by default.
                The others are left where they are, their momentum too.
        """
        if not self._adam:
            moved = at - self._rate * self._direction(at, gradient, stepping)
            return (
                moved if stepping is None else torch.where(stepping[:, None], moved, at)
            )
        if self._inner is None:
            self._inner = torch.optim.Adam([at], lr=self._rate)
        at.grad = gradient
        self._inner.step()
        at.grad = None
        return at

    def _direction(
        self, at: torch.Tensor, gradient: torch.Tensor, stepping: torch.Tensor | None
    ) -> torch.Tensor:
        if self._decay:
            gradient = gradient + self._decay * at
        if not self._momentum:
            return gradient
        before = self._velocity
        direction = gradient if before is None else self._momentum * before + gradient
        if stepping is None:
            self._velocity = direction
        else:
            kept = torch.zeros_like(direction) if before is None else before
            self._velocity = torch.where(stepping[:, None], direction, kept)
        return direction

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps beside the weights, by names of its own."""
        if self._velocity is not None:
            return {"velocity": self._velocity.cpu().numpy()}
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
        if "velocity" in kept:
            self._velocity = torch.from_numpy(kept["velocity"]).to(at)
        if "adam_step" not in kept:
            return
        self._inner = torch.optim.Adam([at], lr=self._rate)
        self._inner.state[at] = {
            "step": torch.tensor(float(kept["adam_step"])),
            **{
                name: torch.from_numpy(kept[f"adam_{name}"]).to(at) for name in _MOMENTS
            },
        }
