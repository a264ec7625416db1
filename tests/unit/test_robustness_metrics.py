"""Per-sample metrics against closed forms, and the attack against its own ball."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from precad.experiments.robustness.metrics import metrics, penultimate


def test_metrics_are_those_of_a_model_where_they_are_known() -> None:
    torch.manual_seed(1)
    first, last = nn.Linear(6, 4, bias=False), nn.Linear(4, 3)
    module = nn.Sequential(first, last)
    x, y = torch.rand(5, 6), torch.tensor([0, 1, 2, 0, 1])
    found = metrics(module, penultimate(module), x, y, steps=60)

    def loss(one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(one.unsqueeze(0)), label.unsqueeze(0))

    for i in range(len(x)):
        variable = x[i].clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(variable, y[i]), variable)
        curves = torch.func.hessian(loss)(x[i], y[i])
        np.testing.assert_allclose(found.gradient[i], slope.norm().item(), rtol=1e-4)
        largest = torch.linalg.matrix_norm(curves, 2).item()
        np.testing.assert_allclose(found.hessian[i], largest, rtol=1e-2)
    # A linear map: max of ‖W v‖₁ over ‖v‖_∞ = 1 is at a corner.
    weight = first.weight.detach()
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)
    most = (corners @ weight.T).abs().sum(dim=1).max().item()
    assert (found.lipschitz <= most * (1 + 1e-4)).all()
    assert found.lipschitz.max() > 0.95 * most
