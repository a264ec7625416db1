"""Whole owners' local training: the second kind of contribution, simulated so far."""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.rig.documents import Document
from tests.rig.tasks import task_with
from torch import nn
from torch.nn import functional

import precad
from precad.accounting.adversaries import Adversary
from precad.aggregator.server_process import open_session
from precad.aggregator.settings import ServerBSettings
from precad.cli.local_deployment import task_to_toml
from precad.client import DataOwner
from precad.client.gradients.torch_models import logistic, model_section
from precad.client.records.torch_records import Records
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import squared_norm
from precad.common.identifiers import Role, Secret
from precad.common.mechanism import LocalTraining, Unit
from precad.common.task import Task
from precad.dealer.process import DealerSettings, serve
from precad.simulation.local_training import LocallyTrained
from precad.simulation.virtual_owners import Drawn, Owner

FEATURES, CLASSES = 6, 3
LOCAL = {"epochs": 3, "learning_rate": 0.2, "batch_size": 4}
KEY = Secret(bytes(32))


def task_of(local: Document | None = None, **privacy: object) -> Task:
    changes: Document = {
        "model": model_section(logistic(FEATURES, CLASSES), architecture="logistic"),
        "local": LOCAL if local is None else local,
        "privacy.client_clip": 0.5,
        "privacy.record_clip": 0.5,
        "privacy.record_rate": 1.0,
        "privacy.client_rate": 1.0,
        "enrolment.clients": 5,
        "enrolment.max_expected_records": 1000.0,
    }
    return task_with(changes | {f"privacy.{n}": value for n, value in privacy.items()})


def records(count: int, scale: float = 1.0, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    inputs = scale * torch.randn(count, FEATURES, generator=generator)
    return Records(inputs, torch.randint(CLASSES, (count,), generator=generator))


def update(
    task: Task, own: Records, theta: NDArray[np.float32] | None = None
) -> NDArray[np.int64]:
    """One owner's contribution, ``[d] int64``."""
    training = task.mechanism.contribution
    assert isinstance(training, LocalTraining)
    honest = LocallyTrained(
        logistic(FEATURES, CLASSES), functional.cross_entropy, task, training
    )
    owner = Owner(
        name="a",
        records=own,
        start=0,
        most=len(own),
        bound=task.mechanism.bound,
    )
    drawn = Drawn(owner=owner, indices=np.arange(len(own)), copies=KEY)
    start = np.zeros(task.dimension, np.float32) if theta is None else theta
    (found,) = honest.updates(start, [drawn])
    return np.asarray(found)


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


def test_servers_and_owners_refuse_what_is_simulated_alone(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_text(task_to_toml(task_of()))
    state, identity = tmp_path / "state", tmp_path / "identity"
    server = ServerBSettings(
        task=file, identity=identity, state=state, listen="127.0.0.1:0"
    )
    deals = DealerSettings(task=file, identity=identity, listen="127.0.0.1:0")
    parties: list[Callable[[], object]] = [
        lambda: open_session(Role.SERVER_B, server),
        lambda: asyncio.run(serve(deals)),
        lambda: DataOwner(
            task=file,
            client="ward",
            server_a="localhost:1",
            server_b="localhost:2",
            identity=identity,
            data=records(3),
        ),
    ]
    for party in parties:
        with pytest.raises(Misconfiguration, match="precad simulate"):
            party()


def test_a_task_without_it_has_the_digest_that_it_had() -> None:
    task = task_with({})
    assert b"local" not in task.canonical
    assert b'"local":{' in task_of().canonical


refuses = partial(pytest.raises, Misconfiguration)


def test_local_training_goes_with_no_objective_of_records() -> None:
    values = task_of().model_dump(mode="json") | {"objective": {"name": "dp-gaussian"}}
    with refuses(match="objective"):
        Task.parse(values)
