"""The release protocol's model with wider bounds, and every mutant of it: `make model`."""

import subprocess
import sys

import pytest
from tests.model import release_model as model


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "arguments",
    [("--replace", "one"), ("--replace", "both", "--attempts", "2", "--sets", "1"), ("--mutants",)],
    ids=" ".join,
)
def test_nothing_is_broken_and_every_mutant_is_caught(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, str(model.__file__), *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
