"""Votes under noise: whose they are, how they go on, and that their certificates hold."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from research.robustness.attack import attacked
from research.robustness.metrics import metrics, penultimate
from torch import nn
from torch.nn import functional

from precad.certify.intervals import ConfidenceBudget
from precad.certify.prediction import certify_smoothing
from precad.client.gradients.noisy_votes import VoteSampling, sample_votes
from precad.common.errors import Misconfiguration
from precad.simulation.datasets import load

Trained = tuple[nn.Module, torch.Tensor]


@pytest.fixture(scope="module")
def trained() -> Trained:
    data = load("digits")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    optimiser = torch.optim.Adam(module.parameters(), 0.02)
    for _ in range(100):
        optimiser.zero_grad()
        loss = functional.cross_entropy(module(x + 0.25 * torch.randn_like(x)), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return module, torch.from_numpy(data.test_x)


def test_votes_are_each_inputs_own_and_of_the_asked_number(trained: Trained) -> None:
    module, x = trained
    how = VoteSampling(sigma=0.25, selection=30, copies=200, draw=7)
    whole = sample_votes(module, x[:6], how)
    assert (whole.selection.sum(axis=1) == 30).all()
    assert (whole.votes.sum(axis=1) == 200).all()
    assert (sample_votes(module, x[:3], how).votes == whole.votes[:3]).all()
    assert (sample_votes(module, x[:6], how, batch=64).votes.sum(axis=1) == 200).all()
    other = sample_votes(
        module, x[:6], VoteSampling(sigma=0.25, selection=30, copies=200, draw=8)
    )
    assert (other.votes != whole.votes).any()


def test_broken_off_it_goes_on_where_it_ended(trained: Trained, tmp_path: Path) -> None:
    module, x = trained
    how, keep = (
        VoteSampling(sigma=0.25, selection=10, copies=100),
        tmp_path / "votes.jsonl",
    )
    whole = sample_votes(module, x[:5], how, keep=keep, model="m")
    lines = keep.read_text().splitlines()
    keep.write_text("\n".join([*lines[:3], lines[3][:7]]))
    done: list[int] = []
    again = sample_votes(module, x[:5], how, keep=keep, model="m", progress=done.append)
    assert done == [2, 3, 4, 5]
    assert (again.votes == whole.votes).all()
    assert sorted(
        json.loads(line)[0] for line in keep.read_text().splitlines()[1:]
    ) == [*range(5)]
    with pytest.raises(Misconfiguration, match="real numbers"):
        sample_votes(module, x[:2].long(), how)
    with pytest.raises(Misconfiguration, match="column for each class"):
        sample_votes(nn.Linear(64, 1), x[:2], how)
    for other_model, other_sampling in (
        ("n", how),
        ("m", VoteSampling(sigma=0.5, selection=10, copies=100)),
    ):
        with pytest.raises(Misconfiguration, match="another model or other sampling"):
            sample_votes(module, x[:5], other_sampling, keep=keep, model=other_model)


def test_an_attack_within_the_radius_never_wins_and_one_beyond_it_does(
    trained: Trained,
) -> None:
    """PGD in L2 on the smoothed model; an attack wins where fresh votes change the label."""
    module, x = trained
    x, sigma = x[:40], 0.25
    votes = sample_votes(
        module, x, VoteSampling(sigma=sigma, selection=100, copies=2000, draw=1)
    )
    budget = ConfidenceBudget(confidence=0.999, classes=10, points=len(x))
    found = certify_smoothing(votes.votes, sigma, budget, votes.selection)
    some = np.flatnonzero(found.certified)
    assert len(some) > 25
    inside = torch.from_numpy(0.999 * found.radius[some])
    won = {}
    for name, radius in {"inside": inside, "beyond": inside + 1.0}.items():
        moved = attacked(
            module, x[some], torch.from_numpy(found.labels[some]), radius, sigma
        )
        assert ((moved - x[some]).flatten(1).norm(dim=1) <= radius * (1 + 1e-5)).all()
        fresh = sample_votes(
            module, moved, VoteSampling(sigma=sigma, selection=1, copies=4000, draw=2)
        ).votes
        # Wins surely: another class leads by four standard deviations of the vote.
        held = fresh[np.arange(len(some)), found.labels[some]]
        best = np.where(np.arange(10) == found.labels[some][:, None], 0, fresh).max(
            axis=1
        )
        won[name] = int((best - held > 4 * np.sqrt(best + held)).sum())
    assert won["inside"] == 0
    assert won["beyond"] > len(some) / 2


def test_metrics_are_those_of_a_model_where_they_are_known() -> None:
    torch.manual_seed(1)
    first, last = nn.Linear(6, 4, bias=False), nn.Linear(4, 3)
    module = nn.Sequential(first, last)
    x, y = torch.rand(5, 6), torch.tensor([0, 1, 2, 0, 1])
    found = metrics(module, penultimate(module), x, y, steps=60)

    def loss(one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(one.unsqueeze(0)), label.unsqueeze(0))

    pairs = list(zip(x, y, strict=True))
    slopes = [torch.func.grad(loss)(*pair).norm().item() for pair in pairs]
    curves = [
        torch.linalg.matrix_norm(torch.func.hessian(loss)(*pair), 2) for pair in pairs
    ]
    np.testing.assert_allclose(found.gradient, slopes, rtol=1e-4)
    np.testing.assert_allclose(
        found.hessian, [curve.item() for curve in curves], rtol=1e-2
    )
    # A linear map: max of ‖W v‖₁ over ‖v‖_∞ = 1 is at a corner.
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)
    most = (corners @ first.weight.detach().T).abs().sum(dim=1).max().item()
    assert 0.95 * most < found.lipschitz.max() <= most * (1 + 1e-4)
