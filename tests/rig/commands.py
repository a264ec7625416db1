"""`precad` commands called in this process, Python's in others; what they answer."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pytest
from click import Context
from click.testing import CliRunner, Result
from tests.rig.warm import SOURCES

from precad.cli.main import app


class How(TypedDict, total=False):
    """Of a program's start."""

    cwd: Path | None
    input: str
    errors: str
    start_new_session: bool


class Shown(TypedDict, total=False):
    """To a command in this process."""

    terminal_width: int


def precad(*arguments: object, **how: Unpack[Shown]) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], **how)


def instead(command: Iterable[object], *given: object) -> list[object]:
    """The command line with these options in the place of its own."""
    words = iter(command)
    kept = []
    for word in words:
        if isinstance(word, str) and word.startswith("--") and word in given:
            next(words)
        else:
            kept.append(word)
    return [*kept, *given]


def said(*arguments: object) -> str:
    done = precad(*arguments)
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def document(*arguments: object) -> Any:
    """The JSON document that a command answers with ``--json``, and nothing else."""
    done = precad(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout, parse_constant=pytest.fail)


def refused(*arguments: object) -> str:
    """What stderr says when a command takes its arguments for wrong."""
    done = precad(*arguments)
    assert (done.exit_code, done.stdout) == (2, ""), done.exception
    return done.stderr


def taken(*words: str) -> None:
    """Have a `precad` command parsed, and run nothing."""
    inner: Any = app
    while hasattr(inner, "list_commands") and words and not words[0].startswith("-"):
        _, inner, rest = inner.resolve_command(Context(inner), list(words))
        words = tuple(rest)
        assert inner is not None
    if words != ("--version",):
        inner.make_context("precad", list(words))


def python(
    *arguments: object, env: dict[str, str] | None = None, **how: Unpack[How]
) -> "subprocess.CompletedProcess[str]":
    environment = (
        os.environ | {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"} | (env or {})
    )
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, **how
    )


def installed(package: str, *programs: str) -> str:
    """The first that is here; without one a test is skipped, but under CI it fails."""
    for found in filter(None, map(shutil.which, programs)):
        return found
    missing = f"{programs[0]} isn't here: install Debian's package {package}"
    return pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)


def printed(
    *arguments: object, env: dict[str, str] | None = None, **how: Unpack[How]
) -> str:
    done = python(*arguments, env=env, **how)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
