"""DP-CERT's record objectives: their gradients, their formulas, and what they cost:
nothing."""

import json
import math
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack, get_args
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.rig import model_corpus, refusals
from tests.rig.tasks import task_of
from torch import nn
from torch.nn import functional

from precad.accounting.guarantees import planned_guarantees
from precad.client.gradients import objectives, rehearsal, torch_models
from precad.client.gradients.local_update import local_update
from precad.client.gradients.objectives import MOST_COPIES, Objective, augmentation
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.records.torch_records import as_records
from precad.common import fixed_point, identifiers, task_schema
from precad.common.task import Task, with_objective

NAMES = get_args(task_schema.ObjectiveSection.model_fields["name"].annotation)
KEY = identifiers.Secret(bytes(range(32)))
MANY = MOST_COPIES + 3
RECORDS, FEATURES, CLASSES = 13, 12, 4


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 9), nn.Tanh(), nn.Linear(9, CLASSES))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(RECORDS, FEATURES, generator=generator)
    return x, torch.randint(0, CLASSES, (RECORDS,), generator=generator)


def theta_of(model: nn.Module) -> NDArray[np.float64]:
    return np.random.default_rng(2).normal(
        0, 0.7, sum(p.numel() for p in model.parameters())
    )


def loss_of(
    objective: Objective,
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    noise: torch.Tensor,
) -> torch.Tensor:
    """L' of one record; Algorithm 2, line 5."""
    return objective.of_outputs(
        model(objective.copies(model, x=x, y=y, randomness=noise).detach()), y
    )


def section(name: str, **how: object) -> task_schema.ObjectiveSection:
    return task_schema.ObjectiveSection.model_validate({"name": name} | how)


def rows(
    of: task_schema.ObjectiveSection, indices: NDArray[np.int64], model: nn.Module
) -> NDArray[np.float64]:
    parameters = task_of(model).model.parameters
    gradients = RecordGradients(model, functional.cross_entropy, parameters, 5, of)
    found = gradients.chunks(
        as_records(data()), indices, theta_of(model), randomness=KEY
    )
    return np.concatenate(list(found))[: len(indices)]


class How(TypedDict, total=False):
    """Options of ``local_update``."""

    chunk: int
    most: int
    on_failure: Callable[[int], None]
    randomness: identifiers.Secret


def update(
    task: Task,
    records: tuple[torch.Tensor, torch.Tensor],
    indices: Sequence[int],
    **how: Unpack[How],
) -> NDArray[np.int64]:
    model, some = net(), np.array(indices, np.int64)
    theta, loss = theta_of(model), functional.cross_entropy
    return local_update(model, loss, records, some, theta, task, **how)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copies", [1, 2, MANY])
@pytest.mark.parametrize("original", [True, False])
def test_one_call_gives_every_records_gradient(
    name: str, copies: int, *, original: bool
) -> None:
    model, of = net(), section(name, copies=copies, original=original, noise=0.4)
    found = rows(of, np.arange(RECORDS), model)
    torch_models.load_vector(model, theta_of(model))
    objective = Objective(of)
    x, y = data()
    for record in (0, 7, RECORDS - 1):
        noise = augmentation(KEY, (objective.noisy, FEATURES), np.array([record]), 1)[0]
        loss = loss_of(objective, model, x[record], y[record], noise)
        expected = torch.autograd.grad(loss, list(model.parameters()))
        flat = torch.cat([each.ravel() for each in expected]).numpy()
        np.testing.assert_allclose(found[record], flat, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copies", [2, MOST_COPIES, MANY])
def test_neighbours_change_no_bit_of_a_record_that_keeps_its_place(
    name: str, copies: int
) -> None:
    """What the guarantee needs: a record replaced by one with zero gradient moves no
    other."""
    first = (
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 4, 2),
        nn.Tanh(),
        nn.Conv2d(4, 5, 2),
    )
    model = nn.Sequential(*first, nn.GroupNorm(1, 5), nn.Flatten(), nn.Linear(10, 4))
    of = section(name, copies=copies)
    one = rows(of, np.array([0, 3, 2, 5, 6, 7, 8]), model)
    other = rows(of, np.array([9, 3, 12, 10, 11, 7, 1]), model)
    assert (one[[1, 5]] == other[[1, 5]]).all()


@pytest.mark.parametrize("clipping", ["flat", "psac"])
@pytest.mark.parametrize("name", NAMES)
def test_one_record_moves_the_sum_by_at_most_its_clip(name: str, clipping: str) -> None:
    task = with_objective(task_of(net(), "uniform"), section(name, clipping=clipping))
    # A loud record: what it adds must be bounded, not small by luck.
    x, y = data()
    x[4] *= 1000
    how: How = {"most": RECORDS, "randomness": KEY}
    whole = update(task, (x, y), range(RECORDS), **how)
    for record in range(RECORDS):
        without = [each for each in range(RECORDS) if each != record]
        moved = (whole - update(task, (x, y), without, **how)).astype(object)
        assert 0 < int((moved**2).sum()) <= 2 ** (2 * task.fractional_bits)


def test_an_objective_is_in_the_digest_and_costs_nothing() -> None:
    task = task_of(net(), "uniform")
    for name in NAMES:
        for how in (
            {},
            {"copies": 64, "clipping": "psac", "noise": 3.0, "original": False},
        ):
            asked = with_objective(task, section(name, **how))
            assert planned_guarantees(asked) == planned_guarantees(task)
    assert b"objective" not in task.canonical
    others = [with_objective(task, name) for name in NAMES]
    assert len({each.digest for each in (task, *others)}) == len(NAMES) + 1
    assert Task.parse(json.loads(others[1].canonical)) == others[1]
    refusals.refused(r"objective\.name", with_objective, task, "dp-nothing")


def test_work_is_the_padded_samples() -> None:
    task, real = (
        with_objective(task_of(net(), "uniform"), "dp-gaussian"),
        RecordGradients._batched,
    )
    for drawn in (0, 1, 9, 12):
        with patch.object(
            RecordGradients, "_batched", autospec=True, side_effect=real
        ) as counted:
            update(task, data(), range(drawn), chunk=5, most=12)
        noises = [call.kwargs["noise"].shape for call in counted.call_args_list]
        assert noises == [(5, 2, FEATURES)] * 3


def test_a_records_noise_is_its_own_and_normal() -> None:
    whole = augmentation(KEY, (3, 50, 7), np.arange(200), 210)
    assert whole.shape == (210, 3, 50, 7)
    assert torch.equal(
        whole[[7, 3]], augmentation(KEY, (3, 50, 7), np.array([7, 3]), 2)
    )
    assert not torch.equal(
        whole,
        augmentation(identifiers.Secret(bytes(32)), (3, 50, 7), np.arange(200), 210),
    )
    values = np.sort(whole.numpy().ravel())
    assert len(np.unique(values)) > 0.9 * len(values)
    # Kolmogorov and Smirnov: beyond 2.5/√n about once in 130,000.
    expected = torch.special.ndtr(torch.from_numpy(values.astype(np.float64))).numpy()
    ranks = np.arange(len(values)) / len(values)
    assert np.abs(expected - ranks).max() < 2.5 / math.sqrt(len(values))


def test_the_gaussian_objective_is_the_mean_of_the_copies_losses() -> None:
    model, (x, y) = net(), data()
    noise = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(1))
    objective = Objective(section("dp-gaussian", noise=0.5))
    found = loss_of(objective, model, x[0], y[0], noise)
    copies = torch.stack([x[0], x[0] + 0.5 * noise[0], x[0] + 0.5 * noise[1]])
    expected = functional.cross_entropy(model(copies), y[0].expand(3))
    torch.testing.assert_close(found, expected)


def test_the_adversarial_copies_lie_in_the_ball_and_cost_more() -> None:
    model, (x, y) = net().requires_grad_(requires_grad=False), data()
    attack = section("dp-smoothadv", noise=0.1, attack_radius=0.7, attack_steps=6)
    noise = torch.randn(16, FEATURES, generator=torch.Generator().manual_seed(1))
    copies = Objective(attack).copies(model, x=x[0], y=y[0], randomness=noise)
    moved = copies[1:] - 0.1 * noise - x[0]
    assert torch.equal(copies[0], x[0])
    assert 0.5 < float(moved.norm(dim=1).max()) <= 0.7 * (1 + 1e-5)

    def cost(inputs: torch.Tensor) -> float:
        return float(-torch.log(torch.softmax(model(inputs), dim=1)[:, y[0]].mean()))

    assert cost(copies[1:]) > cost(x[0] + 0.1 * noise)


def test_regularisers_are_zero_where_copies_agree_or_the_prediction_is_wrong() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    assert float(objectives.divergence(logits, logits.expand(3, 3)).abs().max()) < 1e-6
    other = torch.tensor([[0.0, 1.0, 0.5]])
    p, q = torch.softmax(logits, dim=1), torch.softmax(other, dim=1)
    torch.testing.assert_close(
        objectives.divergence(logits, other), (p * (p / q).log()).sum(dim=1)
    )
    for top, right in ((0.7, True), (0.2, False)):
        probabilities = torch.tensor([top, 0.9 - top, 0.1], requires_grad=True)
        hinge = objectives.macer_hinge(probabilities, torch.tensor(0), 8.0)
        (slope,) = torch.autograd.grad(hinge, probabilities)
        assert (bool(hinge > 0), bool(slope.any())) == (right, right)
        assert torch.isfinite(slope).all()


def test_psac_keeps_every_norm_below_the_clip_and_raises_middling_ones() -> None:
    lengths = np.array([0.0, 1e-300, 1e-9, 0.01, 0.5, 1.0, 3.0, 1e30, 1e300])
    gradients = lengths[:, None] * np.array([[0.6, 0.8, 0.0]])
    norms = np.linalg.norm(
        fixed_point.clip_record_adaptively(gradients, 0.5, 0.1), axis=1
    )
    assert (norms < 0.5).all()
    assert (np.diff(norms) >= 0).all()
    assert norms[0] == 0
    assert norms[4] > 0.35
    refusals.refused(
        "must be finite",
        fixed_point.clip_record_adaptively,
        np.array([[np.nan]]),
        1.0,
        0.1,
    )


def test_a_label_that_no_class_has_costs_its_record_alone() -> None:
    x, y = data()
    y[2], y[5] = 77, -100
    task = with_objective(task_of(net(), "uniform"), "dp-smoothadv")
    failed: list[int] = []
    how: How = {"chunk": RECORDS, "on_failure": failed.append, "randomness": KEY}
    whole = update(task, (x, y), range(RECORDS), **how)
    assert failed == [2, 5]
    assert whole.any()
    others = [each for each in range(RECORDS) if each not in (2, 5)]
    assert (whole == update(task, (x, y), others, **how)).all()


def test_records_no_objective_can_be_of_are_refused_before_training() -> None:
    model = model_corpus.Own(
        lambda m, x: m.whole(x.float()), whole=nn.Linear(FEATURES, CLASSES)
    )
    ones, labels = torch.ones(3, FEATURES), torch.zeros(3, dtype=torch.int64)
    for records, loss, name, said in (
        ((ones.long(), labels), functional.cross_entropy, "dp-gaussian", "noise"),
        ((ones, torch.zeros(3, CLASSES)), functional.mse_loss, "dp-macer", "classes"),
    ):
        task = with_objective(task_of(model, "uniform"), name)
        refusals.refused(
            said, rehearsal.rehearse, model, loss, as_records(records), task
        )
