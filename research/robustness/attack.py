"""Projected gradient ascent in L2 against a smoothed classifier: what certificates withstand."""

import torch
from torch import nn
from torch.nn import functional

COPIES = 32
STEPS = 20
_TINY = 1e-12


def attacked(
    module: nn.Module,
    x: torch.Tensor,
    labels: torch.Tensor,
    radius: torch.Tensor,
    sigma: float,
    *,
    steps: int = STEPS,
    copies: int = COPIES,
    seed: int = 0,
) -> torch.Tensor:
    """Inputs near x at which the smoothed model likes the labels least (Salman et al. 2019).

    Args:
        module: a row of logits for each input.
        x: ``[points, …]``.
        labels: ``[points]``, to be left.
        radius: ``[points]``, largest L2 distance of each.
        sigma: of the smoothing.
        steps: of size radius/5 each.
        copies: noisy ones behind each gradient, fresh at each step.
        seed: of the noise.

    Returns:
        ``[points, …]``, within the radius of x.
    """
    generator = torch.Generator().manual_seed(seed)
    limit = radius.to(x).reshape(-1, *[1] * (x.ndim - 1))
    moved = x.clone()
    for _ in range(steps):
        noise = sigma * torch.randn((copies, *x.shape), generator=generator)
        variable = moved.detach().requires_grad_()
        logs = functional.log_softmax(module((variable + noise).flatten(0, 1)), dim=1)
        mine = logs.reshape(copies, len(x), -1).gather(
            2, labels.expand(copies, -1).unsqueeze(2)
        )
        cost = -torch.logsumexp(mine.squeeze(2), dim=0).sum()
        (slope,) = torch.autograd.grad(cost, variable)
        moved = x + _within(moved + limit / 5 * slope / _length(slope) - x, limit)
    return moved.detach()


def _length(rows: torch.Tensor) -> torch.Tensor:
    """L2 norm of each row, shaped to divide it."""
    found = rows.flatten(1).norm(dim=1).clamp_min(_TINY)
    shaped: torch.Tensor = found.reshape(-1, *[1] * (rows.ndim - 1))
    return shaped


def _within(away: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    return away * torch.clamp(limit / _length(away), max=1.0)
