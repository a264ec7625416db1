"""Per-sample robustness metrics (DP-CERT Sec.

5.2): of one input each, beside its radius.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import grad, jvp, vmap
from torch.nn import functional

_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Metrics:
    """Each ``[points] float64``.

    Attributes:
        gradient: ‖∇_x L‖₂.
        hessian: spectral norm of ∇²_x L.
        lipschitz: max ‖f(x) − f(x')‖₁/‖x − x'‖_∞ over a box around x (eq. 7), from
            below.
    """

    gradient: NDArray[np.float64]
    hessian: NDArray[np.float64]
    lipschitz: NDArray[np.float64]


def metrics(
    module: nn.Module,
    features: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    box: float = 0.1,
    steps: int = 20,
    seed: int = 0,
) -> Metrics:
    """All three for each input.

    Args:
        module: a row of logits for each input.
        features: its penultimate layer, ``[n, …]`` to ``[n, width]``.
        x: ``[points, …]``.
        y: ``[points]``.
        box: ζ, half the box's side.
        steps: of power iteration, and of the ascent.
        seed: of where both start.
    """
    generator = torch.Generator().manual_seed(seed)

    def loss(one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(one.unsqueeze(0)), label.unsqueeze(0))

    slopes = vmap(grad(loss))(x, y).flatten(1).norm(dim=1)
    return Metrics(
        slopes.detach().double().numpy(),
        _spectral(loss, x, y, steps, generator).double().numpy(),
        _lipschitz(features, x, box, steps, generator).double().numpy(),
    )


def penultimate(module: nn.Sequential) -> Callable[[torch.Tensor], torch.Tensor]:
    """All layers but the last."""
    return nn.Sequential(*list(module)[:-1])


def _spectral(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    steps: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Power iteration by Hessian-vector products: the largest |eigenvalue|, ``[points]``."""

    def product(
        one: torch.Tensor, label: torch.Tensor, way: torch.Tensor
    ) -> torch.Tensor:
        found: torch.Tensor = jvp(lambda at: grad(loss)(at, label), (one,), (way,))[1]
        return found

    way = _unit(torch.randn(x.shape, generator=generator))
    length = torch.zeros(len(x))
    for _ in range(steps):
        moved = vmap(product)(x, y, way).detach()
        length = moved.flatten(1).norm(dim=1)
        way = _unit(moved)
    return length


def _lipschitz(
    features: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    box: float,
    steps: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Projected gradient ascent (Yang et al. 2020); the best of all steps, ``[points]``."""
    here = features(x).detach()

    def quotient(moved: torch.Tensor) -> torch.Tensor:
        apart = (features(moved) - here).flatten(1).abs().sum(dim=1)
        return apart / (moved - x).flatten(1).abs().amax(dim=1).clamp_min(_TINY)

    moved = x + box * (2 * torch.rand(x.shape, generator=generator) - 1)
    best = torch.zeros(len(x))
    for _ in range(steps):
        variable = moved.detach().requires_grad_()
        found = quotient(variable)
        best = torch.maximum(best, found.detach())
        (slope,) = torch.autograd.grad(found.sum(), variable)
        moved = x + (variable.detach() + box / 5 * slope.sign() - x).clamp(-box, box)
    return torch.maximum(best, quotient(moved).detach())


def _unit(rows: torch.Tensor) -> torch.Tensor:
    length = rows.flatten(1).norm(dim=1).clamp_min(_TINY)
    unit: torch.Tensor = rows / length.reshape(-1, *[1] * (rows.ndim - 1))
    return unit
