"""The SDK as a data owner uses it: own data, own model, own loss, own limit; README's snippet."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.deployment.conftest import Deploy, limit_of
from torch.nn import functional
from torch.utils.data import TensorDataset

from precad.accounting.exact import record_epsilon
from precad.cli.local_deployment import LINGER_S
from precad.client import DataOwner, Participation, RoundInfo, TrainedModel
from precad.client.gradients.torch_models import logistic
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId, Role

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
    deploy: Deploy,
) -> None:
    deployment = deploy(
        {
            "model.architecture": "custom",
            "model.parameters": [
                {"name": "slope", "shape": [FEATURES]},
                {"name": "offset", "shape": [1]},
            ],
            "training.rounds": ROUNDS,
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

    def owner(name: str, data: object, limit: float | None, held_out: object = None) -> DataOwner:
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
            held_out=held_out,
        )

    told: list[RoundInfo] = []

    def fails(info: RoundInfo) -> None:
        told.append(info)
        raise ZeroDivisionError

    dataset = TensorDataset(torch.from_numpy(x_bad), torch.from_numpy(y))
    unlimited = owner("ward-00", dataset, None, held_out=(x[:30], y[:30]))
    limited = owner("ward-01", (x, y), limit_of(deployment.task, ALLOWED))
    deployment.start_servers()
    with ThreadPoolExecutor(2) as threads:
        ends = threads.submit(unlimited.run, on_round=fails)
        to_the_limit = threads.submit(limited.run).result()
        to_the_end = ends.result()

    assert (to_the_end.ended, to_the_end.submitted, to_the_end.counted) == (
        "finished",
        ROUNDS,
        ROUNDS,
    )
    assert to_the_end.epsilon == pytest.approx(cost(ROUNDS))
    assert to_the_end.model is not None
    assert to_the_end.model.theta.shape == (FEATURES + 1,)
    assert np.any(to_the_end.model.theta != 0)
    check_what_was_told(to_the_end, told)
    check_the_model(to_the_end, deployment.folder, x[:30], y[:30])
    assert to_the_limit.model is not None
    assert to_the_limit.model.version == ALLOWED
    assert to_the_limit.model_file == deployment.folder / "own" / "ward-01" / "model.safetensors"
    for role in (Role.SERVER_A, Role.SERVER_B):
        status = deployment.operator(role).status()
        assert status.model_digest == to_the_end.model.digest.value
        assert dict(status.participations) == {"ward-00": ROUNDS, "ward-01": ALLOWED}
        assert dict(status.rejected_by_client) == {}
    assert (to_the_limit.ended, to_the_limit.submitted) == ("budget", ALLOWED)
    private = (deployment.folder / "own" / "ward-00" / "failed-records.log").read_text()
    assert private.count("attempt") == ROUNDS
    assert private.count(" 0 records") < ROUNDS
    assert to_the_limit.epsilon <= (limited.budget.epsilon()) == pytest.approx(cost(ALLOWED))


def check_what_was_told(result: Participation, told: list[RoundInfo]) -> None:
    """A callback that raises each time stops nothing, and isn't silent."""
    assert (result.callback_failures, len(told)) == (ROUNDS, ROUNDS)
    assert isinstance(result.callback_error, ZeroDivisionError)
    assert [(info.number, info.counted) for info in told] == [
        (number, True) for number in range(1, ROUNDS + 1)
    ]
    assert told[-1].epsilon == pytest.approx(result.epsilon)
    assert [row["round"] for row in result.table()] == [info.number for info in told]


def check_the_model(result: Participation, folder: Path, x: Any, y: Any) -> None:
    """It goes into a module and a file of the owner's own, and was tried on held-out records."""
    mine = result.load_into(Median())
    with torch.no_grad():
        expected = float(functional.mse_loss(mine(torch.from_numpy(x)), torch.from_numpy(y)))
    assert result.validation is not None
    assert result.validation.loss == pytest.approx(expected, rel=1e-5)
    assert result.validation.accuracy is None
    result.save(folder / "elsewhere.safetensors")
    saved = TrainedModel.load(folder / "elsewhere.safetensors", folder / "task.toml")
    assert result.model is not None
    assert saved.digest == result.model.digest
    with pytest.raises(Misconfiguration, match="parameter 0"):
        result.load_into(torch.nn.Linear(FEATURES, 1))


README = Path(__file__).parents[3] / "README.md"


def snippet() -> str:
    section = README.read_text("utf-8").split("## For data owners: the SDK")[1]
    (code, *_) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return str(code)


def test_it_trains_and_brings_the_model_home(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [{"name": name} for name in ("a", "b", "c")]
    target = {"name": "y", "kind": "categorical", "levels": ["0", "1"]}
    changes = {"data": {"target": target, "columns": columns}, "training.rounds": 3}
    x = np.random.default_rng(2).normal(size=(60, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    there = deploy(changes, 1, {ClientId("ward-3"): (x, y)}, linger_s=LINGER_S)
    rows = [",".join(f"{value:.6g}" for value in row) for row in np.column_stack([x, y])]
    (there.folder / "ward.csv").write_text("\n".join(["a,b,c,y", *rows]), encoding="utf-8")
    with there:
        there.start_servers()
        code = snippet()
        for name, role in (("a.example:7301", "server-a"), ("b.example:7302", "server-b")):
            assert name in code
            code = code.replace(name, there.addresses[role])
        monkeypatch.chdir(there.folder)
        net = logistic(3, 2)
        names: dict[str, Any] = {"net": net}
        exec(code, names)
    result = names["result"]
    assert isinstance(result, Participation)
    assert (result.ended, result.counted) == ("finished", 3)
    assert result.model is not None
    flat = torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()
    assert (flat == result.model.theta.astype(np.float32)).all()
    assert (there.folder / "state" / "model.safetensors").is_file()
    printed = capsys.readouterr().out
    assert printed.count("RoundInfo(number=") == 3
    assert str(result.model) in printed
