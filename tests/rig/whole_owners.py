"""Owners that train by themselves, as processes beside real servers without noise; and
the same simulated."""

from collections.abc import Mapping

import numpy as np
from examples.demo.local_processes import LocalDeployment
from numpy.typing import NDArray
from tests.rig.waiting import DEADLINE_S

from precad.common.identifiers import ClientId, Role
from precad.common.model import load_model
from precad.common.task import Task
from precad.simulation import simulate

Share = tuple[NDArray[np.float32], NDArray[np.int64]]
Shares = Mapping[str, Share]

WITHOUT_NOISE = {
    name: ("-m", "tests.rig.server_without_noise", "serve", name[-1])
    for name in ("server-a", "server-b")
}


def nothing(_server: Role, _version: int, dimension: int) -> NDArray[np.int64]:
    return np.zeros(dimension, np.int64)


def changes(owners: int, rounds: int) -> dict[str, object]:
    """Of a task, for whole owners that all take part in every round."""
    return {
        "local": {"epochs": 2, "learning_rate": 0.5},
        "privacy.record_clip": 0.3,
        "privacy.client_clip": 0.3,
        "privacy.record_rate": 1.0,
        "privacy.client_rate": 1.0,
        "training.rounds": rounds,
        "enrolment.max_expected_records": 100.0,
        "enrolment.planned_units": owners,
        "training.compact_release": True,
    }


def trained(deployment: LocalDeployment, shares: Shares) -> None:
    """Train it with every owner in every round, and see that the bits are those of the
    simulation."""
    deployment.start_servers()
    deployment.start_clients()
    assert deployment.wait(tuple(shares), DEADLINE_S) == dict.fromkeys(shares, 0)
    name = next(iter(shares))
    path = deployment.folder / "state" / name / "model.safetensors"
    model = load_model(path, deployment.task)
    simulated = simulated_model(deployment.task, shares)
    assert simulated.any()
    np.testing.assert_array_equal(model.theta, simulated)
    assert model.version == deployment.task.mechanism.releases


def simulated_model(task: Task, shares: Shares) -> NDArray[np.float32]:
    training = simulate(task, dict(shares), seed=1, noise=nothing, path="per-client")
    assert {played.accepted for played in training.rounds} == {len(shares)}
    return training.theta


def by_client(shares: Shares) -> dict[ClientId, Share]:
    return {ClientId(name): share for name, share in shares.items()}
