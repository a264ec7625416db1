"""`precad` commands called in this process, and what they answer."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from precad.cli.main import app


def precad(*arguments: object, **how: Any) -> Result:
    """A command, however it ends."""
    return CliRunner().invoke(app, [*map(str, arguments)], **how)


def said(*arguments: object) -> str:
    """What a command that succeeds prints, on one line."""
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
