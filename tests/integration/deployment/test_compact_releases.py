"""Releases in few bytes through running servers: cut shares, steps to owners, restarts."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from examples.demo.local_processes import LINGER_S, LocalDeployment
from tests.integration.deployment.conftest import Deploy
from tests.rig.tasks import logistic
from tests.rig.waiting import DEADLINE_S, until

from precad.common.identifiers import ClientId, Role
from precad.common.model import load_model
from precad.common.wire.calls import ServerStatus

FEATURES, CLASSES, ROUNDS = 1000, 2, 6
OWNERS = ("ward-1", "ward-2", "ward-3")


def changes(validation: str) -> dict[str, object]:
    return {
        **logistic(FEATURES, CLASSES),
        "validation": validation,
        "training.rounds": ROUNDS,
        "training.compact_release": True,
        "enrolment.planned_units": 60,
        "privacy.record_rate": 1.0,
    }


def data() -> dict[ClientId, tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(3)
    shares = {}
    for name in OWNERS:
        x = generator.normal(size=(20, FEATURES)).astype(np.float32)
        shares[ClientId(name)] = x, (x.sum(axis=1) > 0).astype(np.int64)
    return shares


def served(deployment: LocalDeployment) -> int:
    """Bytes of models and steps that both servers served to owners."""
    total = 0
    for role in (Role.SERVER_A, Role.SERVER_B):
        links = deployment.operator(role).status().bytes_by_link
        total += links[f"{role.value} to clients"]
    return total


def models(deployment: LocalDeployment) -> set[bytes]:
    """The final models of all owners and both servers."""
    state = deployment.folder / "state"
    found = set()
    for name in (*OWNERS, "server-a", "server-b"):
        model = load_model(state / name / "model.safetensors", deployment.task)
        assert model.version == ROUNDS
        found.add(model.theta.tobytes())
    return found


@contextmanager
def training(deploy: Deploy, validation: str) -> Iterator[LocalDeployment]:
    """Servers and owners at work; in the end all owners have ended well, with one model."""
    with deploy(
        changes(validation), len(OWNERS), data(), linger_s=LINGER_S
    ) as deployment:
        deployment.start_servers()
        deployment.start_clients()
        yield deployment
        assert deployment.wait(OWNERS, DEADLINE_S) == dict.fromkeys(OWNERS, 0)
        assert len(models(deployment)) == 1


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_owners_fetch_one_model_and_then_steps_of_a_quarter_of_it(
    deploy: Deploy, validation: str
) -> None:
    with training(deploy, validation) as deployment:
        assert deployment.wait(OWNERS, DEADLINE_S) == dict.fromkeys(OWNERS, 0)
        dimension = deployment.task.dimension
        step = 1 + -(-dimension * 10 // 8)
        most = len(OWNERS) * (4 * dimension + ROUNDS * step)
        least = len(OWNERS) * (4 * dimension + ROUNDS * dimension // 2)
        assert least <= served(deployment) <= most
        for name in OWNERS:
            assert "fetching whole models" not in deployment.log(name)


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_after_a_server_restarts_owners_fetch_the_model_whole_and_go_on_with_steps(
    deploy: Deploy, validation: str
) -> None:
    with training(deploy, validation) as deployment:
        operator = deployment.operator(Role.SERVER_B)

        def status() -> ServerStatus:
            return operator.status(wait=True, timeout_s=DEADLINE_S)

        until(lambda: status().version >= 2, "two rounds", poll_s=0.05)
        deployment.processes["server-a"].kill()
        deployment.processes["server-a"].wait()
        deployment.start_server("server-a")
        assert deployment.wait(OWNERS, DEADLINE_S) == dict.fromkeys(OWNERS, 0)
        # Without steps each would have fetched one of each round and one at the end.
        whole = 4 * deployment.task.dimension
        assert served(deployment) < len(OWNERS) * whole * (ROUNDS - 1)
