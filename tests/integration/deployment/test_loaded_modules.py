"""What each started process has loaded when its training is over: no more than its role needs."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from precad.experiments.local import LocalDeployment

ROOT = Path(__file__).parents[3]
LISTER = """
import atexit, json, os, sys

def write():
    folder = os.environ.get("PRECAD_TEST_LOADED")
    if folder and "precad" in sys.modules:
        names = {n: getattr(m, "__file__", None) for n, m in list(sys.modules.items())}
        with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as file:
            json.dump(names, file)

atexit.register(write)
"""
"""A ``sitecustomize`` for the processes under test."""

NEVER = {
    "dealer": ("sqlalchemy", "alembic", "crypten", "sklearn", "matplotlib", "torch", "scipy"),
    "client": ("sqlalchemy", "alembic", "crypten", "sklearn", "matplotlib"),
    "server": ("sklearn", "matplotlib", "pandas", "precad.experiments", "precad.client"),
}
NEVER["dealer"] += ("precad.common.aggregator", "precad.common.account", "precad.common.certify")
NEVER["client"] += ("precad.common.aggregator", "precad.common.certify", "precad.experiments")
DEALER_LINES = 2_000


@pytest.fixture(scope="module")
def loaded(
    tmp_path_factory: pytest.TempPathFactory, one_round: Callable[[Path], LocalDeployment]
) -> dict[str, dict[str, str | None]]:
    """Module names and files of each process of a whole training, by the process's name."""
    folder = tmp_path_factory.mktemp("loaded")
    (folder / "sitecustomize.py").write_text(LISTER)
    lists = folder / "lists"
    lists.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRECAD_TEST_LOADED", str(lists))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))
        with one_round(folder / "deployment") as deployment:
            deployment.start_servers()
            deployment.start_clients()
            names = (*(client.name for client in deployment.clients), "server-b", "server-a")
            assert set(deployment.wait(names, 120).values()) == {0}, deployment.log("server-a")
    pids = {name: process.pid for name, process in deployment.processes.items()}
    return {name: json.loads((lists / f"{pid}.json").read_text()) for name, pid in pids.items()}


@pytest.mark.parametrize("name", ["dealer", "server-a", "server-b", "ward-00"])
def test_a_process_loads_nothing_that_its_role_does_not_need(
    loaded: dict[str, dict[str, str | None]], name: str
) -> None:
    role = {"dealer": "dealer", "ward-00": "client"}.get(name, "server")
    modules = loaded[name]
    assert "precad.common.description" in modules  # the list isn't empty
    extra = sorted(
        module
        for module in modules
        if any(module == never or module.startswith(f"{never}.") for never in NEVER[role])
    )
    assert extra == []


def test_the_dealer_is_small_enough_to_be_read_in_an_afternoon(
    loaded: dict[str, dict[str, str | None]],
) -> None:
    ours = {
        name: len(Path(file).read_text(encoding="utf-8").splitlines())
        for name, file in loaded["dealer"].items()
        if file and name.startswith("precad") and "_pb2" not in file
    }
    assert len(ours) > 20
    assert sum(ours.values()) <= DEALER_LINES, sorted(ours.items(), key=lambda item: -item[1])
