"""What loads: no accounting unasked, nothing that Windows lacks, the kernel that is named."""

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from tests.rig.commands import python

from precad.common.errors import Misconfiguration
from precad.common.identity.deployment_keys import Deployment
from precad.common.kernel import NUMPY, VARIABLE, built_library, chosen, kernels, project_blocks

ACCOUNT = "precad.accounting"
WITHOUT_UNIX = """
import importlib, os, pkgutil, signal
import precad.client.gradients.local_update
loaded = set(sys.modules)
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "syslog", "termios")))
for name in ("fork", "getuid", "fchmod", "killpg", "sched_getaffinity", "O_DIRECTORY"):
    delattr(os, name)
for name in ("pthread_sigmask", "SIGKILL", "SIGHUP"):
    delattr(signal, name)
# Again, as on a system that never had them.
for name in [name for name in sys.modules if name.startswith("precad.")]:
    del sys.modules[name]
import precad.client
for module in pkgutil.walk_packages(precad.client.__path__, "precad.client."):
    importlib.import_module(module.name)
for module in ("precad.cli.main", "precad.cli.join"):
    importlib.import_module(module)
print(*loaded, "|", *sys.modules)
"""
SERVES = "import asyncio; from precad.aggregator.rpc.process import run_server as run; "
SERVES += "asyncio.run(run(None, None, None))"


def process(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A fresh one; what it prints is the modules that it has loaded unless it prints itself."""
    own = "" if "print(" in program else "\nprint(*sys.modules)"
    return python("-c", f"import sys\n{program}{own}", env=variables)


def loaded_by(program: str) -> set[str]:
    run = process(program)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def accounting(loaded: set[str]) -> set[str]:
    counting = (ACCOUNT, "precad.certify", "dp_accounting")
    return {name for name in loaded if name.startswith(counting)}


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        (
            "from precad.simulation.datasets import load\nload('digits'), load('breast-cancer')",
            {"sklearn", "pandas", "scipy.stats"},
        ),
        (
            "from precad.cli.main import app\napp(['--help'], standalone_mode=False)",
            {"numpy", "scipy", "torch", "dp_accounting", "matplotlib"},
        ),
    ],
)
def test_a_large_library_loads_only_where_it_is_used(program: str, absent: set[str]) -> None:
    assert not loaded_by(program) & absent


def test_a_training_step_loads_no_accounting_and_no_client_module_needs_unix() -> None:
    run = process(WITHOUT_UNIX)
    assert run.returncode == 0, run.stderr
    training, everything = (set(part.split()) for part in run.stdout.split("|"))
    assert accounting(training) == set()
    assert "precad.client.gradients.local_update" in training
    assert {"precad.client.connection", "precad.client.data_owner"} <= everything


def test_an_owners_account_loads_no_accountant_before_it_is_asked_and_then_one() -> None:
    loaded = loaded_by("import precad.client.own_account")
    assert accounting(loaded) == {ACCOUNT, f"{ACCOUNT}.events", f"{ACCOUNT}.filter"}
    assert not loaded & {"numpy", "scipy"}
    asks = "from precad.accounting.exact import record_epsilon as e\n"
    asks += "e(record_rate=0.2, noise_multiplier=2.0, participations=3, delta=1e-5)"
    loaded = loaded_by(asks)
    assert f"{ACCOUNT}.exact" in loaded
    others = {f"{ACCOUNT}.{m}" for m in ("guarantees", "rdp")}
    assert not loaded & {"dp_accounting", "scipy.signal", "scipy.stats", *others}


def test_who_expands_a_mask_loads_nothing_else_of_a_submission() -> None:
    loaded = loaded_by("from precad.common.ring import mask_stream")
    shared = {n.removeprefix("precad.common") for n in loaded if n.startswith("precad.common")}
    assert shared == {"", ".errors", ".identifiers", ".ring"}


def test_keys_are_not_made_where_their_folder_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Misconfiguration, match="make keys on Linux"):
        Deployment.create(tmp_path)
    assert not list(tmp_path.rglob("*.pem"))


def test_a_library_that_cannot_be_loaded_is_as_good_as_none(tmp_path: Path) -> None:
    broken = tmp_path / f"_projections{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"for another machine")
    assert (built_library(tmp_path), kernels(broken)) == (broken, {NUMPY: project_blocks})


def test_a_kernel_that_is_not_there_is_refused_with_those_that_are() -> None:
    available = {"c": project_blocks, NUMPY: project_blocks}
    with pytest.raises(Misconfiguration, match=r"PRECAD_KERNEL = 'avx2': must be .* c, numpy"):
        chosen(available, "avx2")


def test_a_server_does_not_start_with_a_kernel_that_is_not_there() -> None:
    refused = process(SERVES, **{VARIABLE: "fortran"})
    assert refused.returncode == 1
    assert "Misconfiguration: PRECAD_KERNEL = 'fortran'" in refused.stderr
