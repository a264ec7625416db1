"""How the command line says what went wrong."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from precad.common.errors import Misconfiguration, PrecadError

USAGE_ERROR = 2


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print a PrecadError on one line and exit: 2 for a wrong value, 1 for anything else."""
    try:
        yield
    except PrecadError as error:
        print(f"precad: {error}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(USAGE_ERROR if isinstance(error, Misconfiguration) else 1) from None
