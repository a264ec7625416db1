"""The README's snippet for data owners does what it says, against real servers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.deployment.conftest import Deploy

from precad.cli.local_deployment import LINGER_S
from precad.client import Participation
from precad.client.gradients.torch_models import logistic
from precad.common.identifiers import ClientId

README = Path(__file__).parents[3] / "README.md"
ROUNDS = 3


def snippet() -> str:
    section = README.read_text("utf-8").split("## For data owners: the SDK")[1]
    (code, *_) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return str(code)


def test_it_trains_and_brings_the_model_home(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [{"name": name} for name in ("a", "b", "c")]
    target = {"name": "y", "kind": "categorical", "levels": ["0", "1"]}
    changes = {"data": {"target": target, "columns": columns}, "training.rounds": ROUNDS}
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
    assert (result.ended, result.counted) == ("finished", ROUNDS)
    assert result.model is not None
    flat = torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()
    assert (flat == result.model.theta.astype(np.float32)).all()
    assert (there.folder / "state" / "model.safetensors").is_file()
    printed = capsys.readouterr().out
    assert printed.count("RoundInfo(number=") == ROUNDS
    assert str(result.model) in printed
