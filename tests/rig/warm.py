"""Real processes of a deployment, forked from one with the imports behind it."""

import functools
import multiprocessing
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Any

from examples.demo.local_processes import PARTS, environment_of_parts
from tests.rig.leftovers import at_the_end

import precad
from precad.cli import forked as forking

SOURCES = os.pathsep.join(
    map(str, (Path(precad.__file__).parents[1], Path(__file__).parents[2]))
)


@functools.cache
def _begin() -> None:
    forking.begin(environment_of_parts() | {"PYTHONPATH": SOURCES}, PARTS)
    at_the_end(_end)


def _end() -> None:
    """Whatever of the fork server's still runs; joblib's workers are children too."""
    for process in multiprocessing.active_children():
        if isinstance(process, ForkServerProcess):
            process.kill()
            process.join()


def forked(
    arguments: list[str],
    *,
    stdout: IO[bytes] | None,
    env: Mapping[str, str],
    **options: object,
) -> forking.Process:
    _begin()
    env = {**env, "PYTHONPATH": SOURCES}
    return forking.start(arguments, stdout=stdout, env=env, **options)


def forked_with_json_log(arguments: list[str], **options: Any) -> forking.Process:
    """A part ``[python, "-m", module, …]`` whose log is lines of JSON."""
    interpreter, option, *module = arguments
    return forked([interpreter, option, "tests.rig.json_log", *module], **options)


def begun(
    folder: Path, *arguments: object, program: str = "precad"
) -> tuple[forking.Process, Path]:
    """A `precad` command that runs, and the log there that gets both its outputs."""
    output = folder / f"said-{secrets.token_hex(4)}.log"
    with output.open("wb") as log:
        command = [sys.executable, "-m", program, *map(str, arguments)]
        env = environment_of_parts()
        process = forked(command, stdout=log, stderr=subprocess.STDOUT, env=env)
    return process, output


def said(folder: Path, *arguments: object, program: str = "precad") -> tuple[int, str]:
    """A `precad` command's status, and what both outputs got; its log is there."""
    process, output = begun(folder, *arguments, program=program)
    return process.wait(), output.read_text(encoding="utf-8")
