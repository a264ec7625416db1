"""What each started process has loaded when its training is over: no more than its role needs."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from benchmarks.readability import measure
from tests.integration.deployment.conftest import Deploy, set_in
from tests.rig import light_client, warm
from tests.rig.tasks import logistic
from tests.rig.waiting import DEADLINE_S

LISTER = """
import atexit, json, os, sys

def write():
    folder = os.environ.get("PRECAD_TEST_LOADED")
    if folder and "precad" in sys.modules:
        names = {n: getattr(m, "__file__", None) for n, m in list(sys.modules.items())}
        with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as file:
            json.dump(names, file)

atexit.register(write)
"""  # A ``sitecustomize`` for the processes under test

NOBODY = (
    *("dp_accounting", "joblib", "matplotlib", "opendp", "pandas", "PIL", "sklearn"),
    *("torchvision", "precad.certify", "research"),
)  # Tens of megabytes each, for plots, tables, reference values and public data
DATABASE = ("alembic", "crypten", "sqlalchemy", "precad.aggregator")
TORCH = ("safetensors.torch", "scipy", "sympy", "torch", "tqdm", "precad.accounting")
"""torch loads tqdm where it finds it."""
# An owner has SciPy for its ε; a server only where a task limits ε.
SERVER = (*NOBODY, "precad.client", "scipy", "alembic", "click")
NEVER = {
    "dealer": (*NOBODY, *DATABASE, *TORCH, "precad.client", "safetensors"),
    "server-a": SERVER,
    "ward-00": (*NOBODY, *DATABASE),
    "ward-01": (*NOBODY, *DATABASE, *TORCH),
}
# Of code; a tenth is its port's guard and its metrics, a twentieth what a unit is, and a
# tenth what questions are, whose rows came last.
DEALER_TOKENS = 35_000
Loaded = dict[str, dict[str, str | None]]
"""Module names and files of each process of a whole training, by the process's name."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, deploy_once: Deploy) -> Loaded:
    """Of one owner who trains, a light client and a dealer with metrics; and of proofs' servers.

    Parts that are really started list what they loaded: a fork has what its parent
    loaded.
    """
    folder = tmp_path_factory.mktemp("lists")
    (folder / "sitecustomize.py").write_text(LISTER)
    how = {"linger_s": 1, "popen": subprocess.Popen}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRECAD_TEST_LOADED", str(folder))
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
        )
        tasks = (
            logistic(127) | {"training.rounds": 1, "validation": v}
            for v in ("crypten", "proof")
        )
        made, proofs = (deploy_once(task, **how) for task in tasks)
        set_in(made, "dealer", metrics="127.0.0.1:0")
        made.start_server("dealer")
        made.start_server("server-a")
        owner, light = made.clients
        made.start_client(owner)
        made._start(light.name, "-m", "tests.rig.light_process")
        for name in ("server-b", "server-a"):
            proofs.start_server(name)
    # Server B's list is that of a training without CrypTen, which takes less time to
    # load.
    made._popen = warm.forked
    made.start_server("server-b")
    with light_client.joined(proofs) as clients:
        light_client.play_round(*clients)
    for deployment in (made, proofs):
        names = [name for name in deployment.processes if name != "dealer"]
        assert not any(deployment.wait(names, DEADLINE_S).values()), deployment.log(
            "server-a"
        )
        deployment.stop()
    return {
        name + suffix: json.loads(path.read_text())
        for deployment, suffix in ((made, ""), (proofs, " with proofs"))
        for name, process in deployment.processes.items()
        if (path := folder / f"{process.pid}.json").exists()
    }


@pytest.mark.parametrize(
    "name", [*NEVER, "server-a with proofs", "server-b with proofs"]
)
def test_a_process_loads_nothing_that_its_role_does_not_need(
    loaded: Loaded, name: str
) -> None:
    never, needs = NEVER.get(name, SERVER), "precad.common.task_schema"
    if name.endswith("with proofs"):
        # More than half of what a server holds.
        never, needs = (
            (*SERVER, "torch", "crypten"),
            "precad.aggregator.validate.check_by_proof",
        )
    assert needs in loaded[name]
    beyond = tuple(f"{each}." for each in never)
    assert [each for each in loaded[name] if f"{each}.".startswith(beyond)] == []


def test_the_dealer_is_small_enough_to_be_read_in_a_day(loaded: Loaded) -> None:
    ours = {
        name: measure(Path(file).read_text(encoding="utf-8")).tokens
        for name, file in loaded["dealer"].items()
        if file and name.startswith("precad") and "_pb2" not in file
    }
    assert len(ours) > 20
    assert "precad.common.wire.metrics_page" in ours
    assert sum(ours.values()) <= DEALER_TOKENS, sorted(
        ours.items(), key=lambda item: -item[1]
    )
