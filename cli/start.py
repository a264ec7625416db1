"""The first words of a command line: a server's process loads none of the other commands."""

import asyncio
import atexit
import gc
import sys
from importlib import import_module
from pathlib import Path

from precad.common.errors import Misconfiguration, PrecadError, WrongTime, missing
from precad.common.process import PIECES, keep_freed_buffers, start_log

WRONG_TIME = 75
"""The system's status for what may work when it is tried again (EX_TEMPFAIL)."""
# At its end the interpreter looks through all objects for cycles, over and over: more
# than a CPU second with torch loaded, for memory that the system takes back anyway. A
# fork server's too.
atexit.register(gc.freeze)
_PARTS = {"a": "server_a", "b": "server_b", "dealer": "dealer"}


def main() -> None:
    """Entry point of the `precad` command."""
    match sys.argv[1:]:
        case ["serve", "a" | "b" | "dealer" as part, "--config" | "-c", config]:
            keep_freed_buffers(PIECES)
            try:
                sys.exit(serve(part, Path(config)))
            except (PrecadError, ModuleNotFoundError) as error:
                sys.exit(said(error, "precad serve", "server"))
    keep_freed_buffers()
    import_module("precad.cli.main").app()


def said(
    error: PrecadError | ModuleNotFoundError,
    command: str = "",
    extra: str | None = None,
) -> int:
    """Return the exit status after an error was said in one line: 2 for a wrong value, else 1.

    ``WRONG_TIME`` where the clock may be wrong: the same start may work in a minute. A
    missing package is named with the ``extra`` that has all of the command's; one that
    no extra brings is a bug, and is raised again.
    """
    found = (
        missing(error, command, extra)
        if isinstance(error, ModuleNotFoundError)
        else error
    )
    if found is None:
        raise error
    print(f"precad: {found}", file=sys.stderr)  # noqa: T201
    if isinstance(found, WrongTime):
        return WRONG_TIME
    return 2 if isinstance(found, Misconfiguration) else 1


def serve(part: str, config: Path) -> int:
    """Be server a, b or the dealer by its settings; return the status.

    Raises Misconfiguration.
    """
    start_log()
    process = import_module(f"precad.{_PARTS[part]}.process")
    return int(asyncio.run(process.serve(process.SETTINGS.load(config))))
