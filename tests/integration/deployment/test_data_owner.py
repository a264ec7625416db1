"""The SDK as a data owner uses it: own data, own model, own loss, own limit; real servers."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from precad.client import DataOwner
from precad.client.own_account import OwnAccount
from precad.common.account.participations import record_epsilon
from precad.common.identifiers import Role
from precad.experiments.local.files import LINGER_S

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Deploy

ROUNDS = 4
ALLOWED = 2
FEATURES = 5


class Median(torch.nn.Module):
    """A model that isn't built in."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.ones(FEATURES))
        self.offset = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.slope + self.offset


def test_owners_train_their_own_model_on_a_dataset_and_on_arrays_within_their_limits(
    deploy: "Deploy",
) -> None:
    deployment = deploy(
        {
            "model.architecture": "custom",
            "model.parameters": [
                {"name": "slope", "shape": [FEATURES]},
                {"name": "offset", "shape": [1]},
            ],
            "training.rounds": ROUNDS,
            "deadlines.peer": 20.0,
            "deadlines.outage": 20.0,
        },
        linger_s=LINGER_S,
    )
    privacy = deployment.task.privacy
    rng = np.random.default_rng(5)
    x = rng.normal(size=(80, FEATURES)).astype(np.float32)
    y = x.sum(axis=1)
    # Finite, but not so their gradients: drawn in some attempt but with probability 1e-7 or less.
    x_bad = x.copy()
    x_bad[:20] = 3e38

    def cost(participations: int) -> float:
        return record_epsilon(
            record_rate=privacy.record_rate,
            noise_multiplier=privacy.noise_multiplier,
            participations=participations,
            delta=privacy.delta,
        )

    def admitted(limit: float) -> int:
        account = OwnAccount(deployment.task, privacy.record_rate, limit, None)
        version = 0
        while account.allows(version):
            account.charge(version)
            version += 1
        return version

    def owner(name: str, data: object, limit: float | None) -> DataOwner:
        return DataOwner(
            name,
            task=deployment.folder / "task.toml",
            data=data,
            model=Median(),
            loss=functional.mse_loss,
            server_a=deployment.addresses["server-a"],
            server_b=deployment.addresses["server-b"],
            identity=deployment.folder / "keys" / name,
            state=deployment.folder / "own" / name,
            epsilon_limit=limit,
        )

    dataset = TensorDataset(torch.from_numpy(x_bad), torch.from_numpy(y))
    unlimited = owner("ward-00", dataset, None)
    limits = (cost(ALLOWED) * (1 + n / 50) for n in range(50))
    limited = owner("ward-01", (x, y), next(e for e in limits if admitted(e) == ALLOWED))
    deployment.start_servers()
    with ThreadPoolExecutor(2) as threads:
        to_the_end, to_the_limit = threads.map(DataOwner.run, (unlimited, limited))

    assert (to_the_end.ended, to_the_end.submitted, to_the_end.counted) == (
        "finished",
        ROUNDS,
        ROUNDS,
    )
    assert to_the_end.epsilon == pytest.approx(cost(ROUNDS))
    assert to_the_end.theta is not None
    assert to_the_end.theta.shape == (FEATURES + 1,)
    assert np.any(to_the_end.theta != 0)
    for role in (Role.SERVER_A, Role.SERVER_B):
        status = deployment.operator(role).status()
        assert to_the_end.model is not None
        assert status.model_digest == to_the_end.model.value
        assert dict(status.participations) == {"ward-00": ROUNDS, "ward-01": ALLOWED}
        assert dict(status.rejected_by_client) == {}
    assert (to_the_limit.ended, to_the_limit.submitted) == ("budget", ALLOWED)
    private = (deployment.folder / "own" / "ward-00" / "failed-records.log").read_text()
    assert private.count("attempt") == ROUNDS
    assert private.count(" 0 records") < ROUNDS
    assert to_the_limit.epsilon <= (limited.budget.epsilon()) == pytest.approx(cost(ALLOWED))
