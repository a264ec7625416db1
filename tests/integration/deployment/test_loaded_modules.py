"""What each started process has loaded when its training is over: no more than its role needs."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.rig.commands import printed
from tests.rig.light_client import joined, play_round
from tests.rig.waiting import DEADLINE_S
from tests.rig.warm import forked

from precad.cli import local_deployment as local
from precad.cli.local_deployment import LocalDeployment

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

NOBODY = (
    *("dp_accounting", "joblib", "matplotlib", "opendp", "pandas", "PIL", "sklearn"),
    *("torchvision", "precad.certify", "research"),
)
"""Tens of megabytes each, for plots, tables, reference values and public data."""
DATABASE = ("alembic", "crypten", "sqlalchemy", "precad.aggregator")
TORCH = ("safetensors.torch", "scipy", "sympy", "torch", "tqdm", "precad.accounting")
"""torch loads tqdm where it finds it."""
NEVER = {
    "dealer": (*NOBODY, *DATABASE, *TORCH, "precad.client", "safetensors"),
    "server": (*NOBODY, "precad.client", "scipy", "alembic", "click"),
    "owner": (*NOBODY, *DATABASE),
    "light": (*NOBODY, *DATABASE, *TORCH),
}
"""An owner has SciPy for its ε; a server only where a task limits ε."""
ROLES = {"dealer": "dealer", "ward-00": "owner", "ward-01": "light"}
METRICS = "precad.common.wire.metrics_page"
"""A dealer loads it where its settings ask for metrics."""
DEALER_LINES = 6_100
"""Of which 450 are its port's guard."""
METRICS_LINES = 170
"""Of a dealer's metrics, with all that they load: the dealer has the rest already."""


Loaded = dict[str, dict[str, str | None]]
"""Module names and files of each process of a whole training, by the process's name."""


OneRound = Callable[..., LocalDeployment]


@contextmanager
def listed(folder: Path) -> Iterator[Callable[[LocalDeployment], Loaded]]:
    """Parts that are really started list what they loaded: a fork has what its parent loaded."""
    (folder / "sitecustomize.py").write_text(LISTER)
    lists = folder / "lists"
    lists.mkdir()

    def read(deployment: LocalDeployment) -> Loaded:
        files = {name: lists / f"{each.pid}.json" for name, each in deployment.processes.items()}
        return {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "Popen", subprocess.Popen)
        patch.setenv("PRECAD_TEST_LOADED", str(lists))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))
        yield read


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, one_round: OneRound) -> Loaded:
    """One owner who trains, and a light client."""
    folder = tmp_path_factory.mktemp("loaded")
    with listed(folder) as read, one_round(folder / "deployment") as deployment:
        deployment.start_server("dealer")
        deployment.start_server("server-a")
        owner, light = deployment.clients
        deployment.start_client(owner)
        deployment._start(light.name, "-m", "tests.rig.light_process")
        # Server B's list is that of a training without CrypTen, which takes less time to load.
        deployment._popen = forked
        deployment.start_server("server-b")
        names = (owner.name, light.name, "server-b", "server-a")
        assert set(deployment.wait(names, DEADLINE_S).values()) == {0}, deployment.log("server-a")
        deployment.stop()
        return read(deployment)


def unneeded(modules: Iterable[str], role: str) -> list[str]:
    assert "precad.common.task_schema" in modules  # the list isn't empty
    return [
        module
        for module in modules
        if any(module == never or module.startswith(f"{never}.") for never in NEVER[role])
    ]


@pytest.mark.parametrize("name", ["dealer", "server-a", "ward-00", "ward-01"])
def test_a_process_loads_nothing_that_its_role_does_not_need(loaded: Loaded, name: str) -> None:
    assert unneeded(loaded[name], ROLES.get(name, "server")) == []


def test_servers_of_a_task_without_crypten_load_no_torch(
    tmp_path: Path, one_round: OneRound
) -> None:
    """More than half of what a server holds."""
    with listed(tmp_path) as read:
        deployment = one_round(tmp_path / "deployment", {"validation": "proof"})
        for name in ("server-b", "server-a"):
            deployment.start_server(name)
    with deployment:
        deployment._popen = forked
        with joined(deployment) as clients:
            play_round(*clients)
        statuses = deployment.wait(("server-a", "server-b"), DEADLINE_S)
        assert statuses == {"server-a": 0, "server-b": 0}
        modules = read(deployment)
    for name in ("server-a", "server-b"):
        assert "precad.aggregator.validate.check_by_proof" in modules[name]
        assert not {"torch", "crypten"} & set(modules[name])
        assert unneeded(modules[name], "server") == []


def test_the_dealer_is_small_enough_to_be_read_in_a_day(loaded: Loaded) -> None:
    ours = {
        name: len(Path(file).read_text(encoding="utf-8").splitlines())
        for name, file in loaded["dealer"].items()
        if file and name.startswith("precad") and "_pb2" not in file
    }
    assert len(ours) > 20
    assert sum(ours.values()) <= DEALER_LINES, sorted(ours.items(), key=lambda item: -item[1])
    assert not [name for name in ours if name.startswith(METRICS)]


def test_what_a_dealer_with_metrics_loads_besides_is_short_too() -> None:
    program = (
        "import json, sys, precad.dealer.process\n"
        "before = set(sys.modules)\n"
        "import precad.common.wire.metrics_page\n"
        "new = set(sys.modules) - before\n"
        "print(json.dumps({n: getattr(sys.modules[n], '__file__', None) for n in new}))"
    )
    loaded: dict[str, str | None] = json.loads(printed("-c", program))
    assert not [name for name in loaded if name.startswith((*DATABASE, *TORCH))]
    ours = [file for name, file in loaded.items() if file and name.startswith("precad")]
    assert ours
    lines = sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in ours)
    assert lines <= METRICS_LINES
