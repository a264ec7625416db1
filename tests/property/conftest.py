"""The library of common/kernel, compiled from this source."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Compiled from this source; None where there is no compiler."""
    folder = tmp_path_factory.mktemp("kernel")
    build = ("build_ext", "--build-lib", str(folder), "--build-temp", str(folder / "objects"))
    subprocess.run([sys.executable, "setup.py", "-q", *build], cwd=CHECKOUT, check=True)
    libraries = list(folder.rglob("_projections*"))
    command = os.environ.get("CC") or sysconfig.get_config_var("CC")
    assert bool(libraries) == bool(shutil.which(command.split()[0])), "no library but a compiler"
    return libraries[0] if libraries else None
