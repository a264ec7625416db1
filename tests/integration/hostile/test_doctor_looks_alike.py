"""The doctor asks both servers the same, whatever an owner's records are, bad ones included."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.fake_server import FakeServer, started
from tests.rig.keys import identity

import precad
from precad.common.identifiers import Role
from precad.common.identity.principal import Principal
from precad.experiments.local.files import task_to_toml, to_toml

GOOD = "a,y\n1,0\n2,1\n"
BAD = {
    "a cell that is no number": GOOD.replace("2", "two"),
    "a missing value": GOOD.replace("2", ""),
    "a label that is no class": GOOD.replace("2,1", "2,7"),
    "no records": "a,y\n",
    "no file": None,
}


def asked(folder: Path, task: Any, text: str | None) -> tuple[int, dict[str, list[Any]]]:
    """Exit status, and what each server saw."""
    keys = folder / "keys"
    keys.mkdir(parents=True)
    mine = identity(Principal.client("ward-1"))
    for name, data in (("ca", mine.ca), ("cert", mine.cert), ("key", mine.key.reveal())):
        (keys / f"{name}.pem").write_bytes(data)
        (keys / f"{name}.pem").chmod(0o600)
    (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    if text is not None:
        (folder / "ward.csv").write_text(text, encoding="utf-8")
    shared: dict[str, Any] = {"versions": {}, "opened": {}}
    servers = [
        FakeServer(role, task, np.zeros(4), rounds=1, covers=False, **shared)
        for role in (Role.SERVER_A, Role.SERVER_B)
    ]
    with started(*servers):
        settings = {
            "client": "ward-1",
            "task": "task.toml",
            "identity": "keys",
            "server_a": servers[0].address,
            "server_b": servers[1].address,
            "data": "ward.csv",
            "state": "state",
            "columns": {"inputs": ["a"], "target": "y"},
        }
        (folder / "owner.toml").write_text(to_toml(settings), encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-m", "precad", "doctor", "--config", str(folder / "owner.toml")],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONPATH": str(Path(precad.__file__).parents[1])},
        )
    assert ended.stdout, ended.stderr
    assert not (folder / "state").exists()
    return ended.returncode, {server.role.value: server.calls for server in servers}


@pytest.fixture(scope="module")
def task(make_task: Any) -> Any:
    weight, bias = {"name": "1.weight", "shape": [2, 1]}, {"name": "1.bias", "shape": [2]}
    return make_task(4, {"model.architecture": "logistic", "model.parameters": [weight, bias]})


@pytest.fixture(scope="module")
def good(task: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, list[Any]]]:
    return asked(tmp_path_factory.mktemp("good"), task, GOOD)


def test_good_records_cost_each_server_one_call(good: tuple[int, dict[str, list[Any]]]) -> None:
    status, calls = good
    assert status == 0
    assert {role: [rpc for rpc, _ in seen] for role, seen in calls.items()} == {
        "server-a": ["Describe"],
        "server-b": ["Describe"],
    }


@pytest.mark.parametrize("kind", BAD)
def test_bad_records_show_in_nothing_that_is_asked(
    kind: str, task: Any, good: tuple[int, dict[str, list[Any]]], tmp_path: Path
) -> None:
    status, calls = asked(tmp_path / "bad", task, BAD[kind])
    assert status == 1
    assert calls == good[1]
