"""Whole owners' local training, the second kind of contribution: what an owner adds.

The client, its rehearsal and the simulation call one function, `local_update`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.rig.documents import Arguments, Document
from tests.rig.tasks import data_owner, task_with
from torch import nn
from torch.nn import functional

import precad
from precad.accounting.adversaries import Adversary
from precad.client.gradients.hostile_models import hostile_models
from precad.client.gradients.local_update import local_update, padded_work_s
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.gradients.rehearsal import rehearse
from precad.client.gradients.torch_models import logistic, model_section
from precad.client.participation import RoundView
from precad.client.records.torch_records import Records
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import squared_norm
from precad.common.identifiers import Digest, Secret
from precad.common.mechanism import Unit
from precad.common.task import Task
from precad.simulation import View

FEATURES, CLASSES = 6, 3
LOCAL = {"epochs": 3, "learning_rate": 0.2, "batch_size": 4}
refuses = partial(pytest.raises, Misconfiguration)
KEY = Secret(bytes(32))
MODEL = Digest(bytes(32))


def task_of(
    local: Document | None = None, more: Document | None = None, **privacy: object
) -> Task:
    changes: Document = {
        "model": model_section(logistic(FEATURES, CLASSES), architecture="logistic"),
        "local": LOCAL if local is None else local,
        "privacy.client_clip": 0.5,
        "privacy.record_clip": 0.5,
        "privacy.record_rate": 1.0,
        "privacy.client_rate": 1.0,
        "enrolment.clients": 5,
        "enrolment.max_expected_records": 1000.0,
        **(more or {}),
    }
    return task_with(changes | {f"privacy.{n}": value for n, value in privacy.items()})


def records(count: int, scale: float = 1.0, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    inputs = scale * torch.randn(count, FEATURES, generator=generator)
    return Records(inputs, torch.randint(CLASSES, (count,), generator=generator))


def update(
    task: Task,
    own: Records,
    theta: NDArray[Any] | None = None,
    *,
    some: NDArray[np.int64] | None = None,
    on_failure: Callable[[int], object] = lambda _: None,
) -> NDArray[np.int64]:
    """One owner's contribution, ``[d] int64``."""
    return local_update(
        logistic(FEATURES, CLASSES),
        functional.cross_entropy,
        own,
        np.arange(len(own)) if some is None else some,
        np.zeros(task.dimension, np.float32) if theta is None else theta,
        task,
        most=len(own),
        on_failure=on_failure,
        randomness=KEY,
    )


def test_an_owner_adds_what_its_own_plain_gradient_descent_changed() -> None:
    task = task_of(
        {"epochs": 2, "learning_rate": 0.1}, client_clip=30.0, record_clip=30.0
    )
    own = records(8)
    module = logistic(FEATURES, CLASSES)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        loss = functional.cross_entropy(module(own.inputs), own.targets)
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimiser.step()
    expected = torch.cat([each.detach().reshape(-1) for each in module.parameters()])
    found = update(task, own) * 2.0**-task.fractional_bits
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1e4, 1e30, 1e37])
@pytest.mark.parametrize("at", [0.0, 5.0, 1e30])
def test_no_owner_moves_the_sum_by_more_than_the_stated_sensitivity(
    scale: float, at: float
) -> None:
    """Whatever its records and θ are: an owner's whole contribution is what is zeroed
    out."""
    task = task_of()
    theta = np.full(task.dimension, at, dtype=np.float32)
    found = update(task, records(8, scale), theta)
    assert squared_norm(found) <= task.mechanism.sensitivity_units**2


def test_the_largest_update_reaches_the_sensitivity() -> None:
    task = task_of({"epochs": 50, "learning_rate": 5.0})
    length = math.sqrt(squared_norm(update(task, records(8))))
    assert length > 0.999 * task.mechanism.sensitivity_units


def test_batches_come_in_a_fresh_order_that_a_seed_repeats() -> None:
    own = records(9)
    task = task_of()
    first = update(task, own)
    np.testing.assert_array_equal(first, update(task, own))
    whole = update(task_of({"epochs": 3, "learning_rate": 0.2}), own)
    assert (first != whole).any()


def test_all_owners_weigh_alike_and_are_what_is_protected() -> None:
    task = task_of()
    data = {f"w{n}": records(3 + 40 * n, seed=n) for n in range(5)}
    training = precad.simulate(task, data, seed=1)
    mechanism = training.task.mechanism
    assert (mechanism.unit, mechanism.unit_rates) == (Unit.OWNER, (1.0,))
    # As many full steps with σ as rounds, whatever the owners' sizes.
    statements = {each.adversary: each for each in training.statements()}
    server = statements[Adversary.ONE_SERVER]
    assert server.adversary.adjacency(server.unit) == "zero-out-client"
    assert (server.compositions, server.record_rate) == (len(training.rounds), 1.0)
    # Whoever sees the models alone meets both servers' noise over the same bound.
    whole = statements[Adversary.CLIENT_LEVEL]
    others = statements[Adversary.CLIENTS_ONLY]
    assert whole.noise_multiplier == pytest.approx(others.noise_multiplier)
    assert "of an owner against one curious server" in str(training)
    claims = [Mock(records, rate) for records, rate in ((1, 1.0), (900, 1.0))]
    assert mechanism.denominator(claims) == len(claims)


class Mock:
    """A claim of so many records."""

    def __init__(self, count: int, rate: float) -> None:
        self.records = count
        self.record_rate = rate


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"record_rate": 0.5}, "privacy.record_rate = 0.5: must be 1"),
        (
            {"record_clip": 0.4},
            "privacy.record_clip = 0.4: must be privacy.client_clip",
        ),
    ],
)
def test_a_task_whose_unit_isnt_the_owner_is_refused(
    changes: Document, says: str
) -> None:
    with pytest.raises(Misconfiguration, match=says):
        task_of(**changes)


def test_a_task_without_it_has_the_digest_that_it_had() -> None:
    task = task_with({})
    assert b"local" not in task.canonical
    assert b'"local":{' in task_of().canonical


def test_local_training_goes_with_no_objective_of_records() -> None:
    values = task_of().model_dump(mode="json") | {"objective": {"name": "dp-gaussian"}}
    with refuses(match="objective"):
        Task.parse(values)


# --- what hostile records and models do


@pytest.mark.parametrize(
    ("name", "theta"), list(hostile_models(CLASSES * (FEATURES + 1)))
)
def test_a_training_that_leaves_the_finite_numbers_adds_zeros(
    name: str, theta: NDArray[np.float64]
) -> None:
    failed: list[int] = []
    found = update(task_of(), records(9), theta, on_failure=failed.append)
    if "nan" in name or "inf" in name:
        assert failed == list(range(9))
    # Steps are lost beside 3e38.
    assert found.any() == (len(failed) < 9 and "3e+38" not in name)


def test_a_label_that_the_loss_cant_take_counts_as_zero() -> None:
    own = records(9)
    own.targets[3] = 77
    failed: list[int] = []
    found = update(task_of(), own, on_failure=failed.append)
    assert failed == [3]
    others = records(9)
    others.inputs[3] = 0.0
    assert found.any()
    assert (found != update(task_of(), others)).any()


def kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The records in each call of a kernel from now on, padding left out."""
    calls: list[int] = []
    real = RecordGradients.kernel

    def counted(self: RecordGradients, *args: Any, **kwargs: Any) -> Any:
        calls.append(len(kwargs["inputs"]))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(RecordGradients, "kernel", counted)
    return calls


def test_work_depends_on_the_number_of_records_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = kernels(monkeypatch)
    task = task_of()
    nobody = np.empty(0, np.int64)
    wide = np.full(task.dimension, np.inf)
    for own, theta, some in (
        (records(9), None, None),
        (records(9, scale=1e37), None, None),
        (records(9), wide, None),
        # For show: the work is done and zeros are uploaded.
        (records(9), None, nobody),
    ):
        calls.clear()
        found = update(task, own, theta, some=some)
        assert calls == [4, 4, 1] * 3
        assert found.any() == (theta is None and some is None)


def test_an_owner_without_memory_is_absent_and_doesnt_add_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(RecordGradients, "kernel", fails)
    with pytest.raises(MemoryError):
        update(task_of(), records(3))


def test_denormal_numbers_are_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bool] = []
    real = RecordGradients.chunks

    def looks(self: RecordGradients, *args: Any, **kwargs: Any) -> Any:
        tiny = torch.tensor([1e-30]) * torch.tensor([1e-10])
        flushed.append(not tiny.any())
        return real(self, *args, **kwargs)

    monkeypatch.setattr(RecordGradients, "chunks", looks)
    update(task_of({"epochs": 1, "learning_rate": 0.1}), records(3))
    assert flushed == [True]


class Reads(nn.Module):
    """Reads a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last: torch.Tensor = self.lstm(x)[0][:, -1]
        return last


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_recurrent_layers_and_losses_that_sum_are_trained_on_the_mean() -> None:
    model = Reads()
    task = task_of(
        {"epochs": 1, "learning_rate": 0.5},
        {"model": model_section(model, architecture="reads", initial="uniform")},
        record_clip=20.0,
        client_clip=20.0,
    )
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 4, 2, generator=generator)
    y = torch.tensor([0, 1, 2, 0, 1])
    theta = np.random.default_rng(4).normal(0, 0.3, task.dimension)
    torch.nn.utils.vector_to_parameters(
        torch.from_numpy(theta).float(), model.parameters()
    )
    functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    slopes = [each.grad.ravel() for each in model.parameters() if each.grad is not None]
    expected = -0.5 * torch.cat(slopes).numpy()
    summed = partial(functional.cross_entropy, reduction="sum")
    for loss in (functional.cross_entropy, summed):
        found = local_update(model, loss, (x, y), np.arange(5), theta, task)
        np.testing.assert_allclose(
            found * 2.0**-task.fractional_bits, expected, atol=3e-6
        )


def test_operations_that_may_raise_need_time_for_every_epoch() -> None:
    """A record that is computed alone is so each time that the owner comes to it."""
    own = records(9)
    rehearsed = partial(
        rehearse, logistic(FEATURES, CLASSES), functional.cross_entropy, own
    )
    any_operations: Document = {"training.any_operations": True}
    task = task_of({"epochs": 1000, "learning_rate": 0.1}, any_operations)
    with refuses(match="9000 records, each computed alone"):
        rehearsed(task, len(own))
    rehearsed(task_of(), len(own))


# --- one implementation


def test_an_owners_update_has_the_simulations_bits() -> None:
    task = task_of({"epochs": 2, "learning_rate": 0.2})
    shares = {f"w{n}": records(5 + n, seed=n) for n in range(5)}
    submitted: list[NDArray[np.int64]] = []

    def looked_at(rows: NDArray[np.int64], _: View) -> Any:
        submitted.append(rows)
        return rows.sum(axis=0)

    seen: Arguments = {"seed": 1, "rounds": 1, "aggregate": looked_at}
    precad.simulate(task, shares, path="per-client", **seen)
    theta = np.zeros(task.dimension, np.float32)
    for row, (name, own) in zip(submitted[0], shares.items(), strict=True):
        owner = data_owner(name, task, own)
        view = RoundView(attempt=0, theta=theta, model=MODEL)
        np.testing.assert_array_equal(owner.update(view), row)
        shown = RoundView(attempt=0, theta=theta, model=MODEL, covering=True)
        assert not owner.update(shown).any()


@pytest.mark.parametrize("batch_size", [None, 4])
def test_all_owners_at_once_add_what_each_would(batch_size: int | None) -> None:
    """To float32's last bits; owners of unlike sizes, a bad label, one whose steps overflow."""
    local = {"epochs": 3, "learning_rate": 0.2, "batch_size": batch_size}
    task = task_of(local, {"enrolment.planned_units": 5})
    shares = {f"w{n}": records(5 + 3 * n, seed=n) for n in range(5)}
    shares["w1"].targets[2] = 77
    shares["w2"].inputs[:] = 3e38
    taken: list[NDArray[np.int64]] = []

    def looked_at(rows: NDArray[np.int64], _: View) -> Any:
        taken.append(rows)
        return rows.sum(axis=0)

    simulated = partial(
        precad.simulate,
        task,
        shares,
        seed=1,
        rounds=2,
        aggregate=looked_at,
    )
    stacked = simulated(path="stacked")
    each = simulated(path="per-client")
    for together, alone in zip(taken[:2], taken[2:], strict=True):
        assert np.abs(together - alone).max() <= 8
        assert together.any(axis=1).all()
    failed = [[played.failed for played in one.rounds] for one in (stacked, each)]
    assert failed[0] == failed[1]
    assert failed[0][0] > 1


def test_padded_work_is_of_all_records_of_an_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = kernels(monkeypatch)
    task = task_of()
    own = records(4)
    padded_work_s(
        logistic(FEATURES, CLASSES),
        functional.cross_entropy,
        own,
        count=10,
        rate=1.0,
        task=task,
        repeats=1,
    )
    # Four made-up records stand for the ten that the owner will have.
    assert calls[-9:] == [4, 4, 2] * 3
