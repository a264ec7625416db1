"""Which kernel runs: the best there is, NumPy's where nothing was compiled, or the one named."""

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import precad
from precad.common.errors import Misconfiguration
from precad.common.kernel.kernel import NUMPY, VARIABLE, built_library, chosen, kernels
from precad.common.kernel.numpy_projection import project_blocks

PRINT = "from precad.common.kernel.kernel import kernel_in_use as k; print(k())"

SERVE = (
    "import asyncio; from precad.common.aggregator.service.process import run_server as run; "
    "asyncio.run(run(None, None, None))"
)


def in_a_process(wanted: str, program: str = PRINT) -> subprocess.CompletedProcess[str]:
    path = str(Path(precad.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, VARIABLE: wanted},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_library_numpy_does_the_work(tmp_path: Path) -> None:
    assert built_library(tmp_path) is None
    assert kernels(None) == {NUMPY: project_blocks}
    assert chosen(kernels(None), "") == NUMPY


def test_a_library_that_cannot_be_loaded_is_as_good_as_none(tmp_path: Path) -> None:
    broken = tmp_path / f"_projections{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"for another machine")
    assert built_library(tmp_path) == broken
    assert kernels(broken) == {NUMPY: project_blocks}


def test_the_first_is_chosen_unless_another_is_wanted() -> None:
    available = {"avx2": project_blocks, "c": project_blocks, NUMPY: project_blocks}
    assert chosen(available, "") == "avx2"
    assert [chosen(available, name) for name in available] == list(available)


def test_a_kernel_that_is_not_there_is_refused_with_those_that_are() -> None:
    available = {"c": project_blocks, NUMPY: project_blocks}
    with pytest.raises(Misconfiguration, match=r"PRECAD_KERNEL = 'avx2': must be .* c, numpy"):
        chosen(available, "avx2")


def test_the_environment_names_the_kernel_of_a_process() -> None:
    assert in_a_process(NUMPY).stdout == f"{NUMPY}\n"
    best = chosen(kernels(built_library()), "")
    assert in_a_process("").stdout == f"{best}\n"
    refused = in_a_process("fortran")
    assert refused.returncode == 1
    assert "PRECAD_KERNEL = 'fortran'" in refused.stderr


def test_a_server_does_not_start_with_a_kernel_that_is_not_there() -> None:
    refused = in_a_process("fortran", SERVE)
    assert refused.returncode == 1
    assert "Misconfiguration: PRECAD_KERNEL = 'fortran'" in refused.stderr
