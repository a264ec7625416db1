"""A data owner's part loads on a system without Unix's modules, such as Windows."""

import subprocess
import sys
from pathlib import Path

import pytest

import precad
from precad.common.errors import Misconfiguration
from precad.common.identity.deployment import Deployment

SOURCES = Path(precad.__file__).parents[1]
IMPORT_ALL = """
import importlib, os, pkgutil, signal, sys
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "syslog", "termios")))
for name in ("fork", "getuid", "fchmod", "killpg", "sched_getaffinity", "O_DIRECTORY"):
    delattr(os, name)
for name in ("pthread_sigmask", "SIGKILL", "SIGHUP"):
    delattr(signal, name)
import precad.client
modules = ["precad.client", "precad.cli.main", "precad.cli.join"]
modules += [m.name for m in pkgutil.walk_packages(precad.client.__path__, "precad.client.")]
for module in modules:
    importlib.import_module(module)
print(*modules)
"""


def test_every_module_of_the_client_is_importable_without_what_windows_lacks() -> None:
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    # What is named here is walked over, and not merely absent.
    assert {"precad.client.connection", "precad.client.data_owner"} <= set(run.stdout.split())


def test_keys_are_not_made_where_their_folder_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Misconfiguration, match="make keys on Linux"):
        Deployment.create(tmp_path)
    assert not list(tmp_path.rglob("*.pem"))
