"""The entry point of `precad`: a server's process loads none of the other commands."""

import asyncio
import atexit
import gc
import logging
import sys
from importlib import import_module
from pathlib import Path

from precad.common import (
    PIECES,
    MayPass,
    Misconfiguration,
    PrecadError,
    keep_freed_buffers,
    missing,
    open_closed_streams,
    start_log,
    take_over_stderr,
    this_build,
)

TRY_AGAIN = 75
"""The system's exit status for what may work when it is tried again (EX_TEMPFAIL)."""
# At its end the interpreter looks through all objects for cycles, over and over: more
# than a CPU second with torch loaded, for memory that the system takes back anyway.
# The same holds for a fork server.
atexit.register(gc.freeze)
_FOLDERS = {"a": "server_a", "b": "server_b", "dealer": "dealer"}
"""By the part's name on the command line: the folder of the package that holds it."""


def main() -> None:
    """Run the command line; the entry point of the `precad` command."""
    open_closed_streams()
    take_over_stderr()
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
    """Print an error in one line on stderr and return the exit status for it.

    The status is 2 for a wrong value, else 1; it is ``TRY_AGAIN`` where the same start
    may work in a minute, as with an address that isn't up yet (docs/exit-statuses.md).
    A missing package is named with ``extra``, which has all packages of ``command``.
    Raises ModuleNotFoundError: no extra brings the missing package, so this is a bug.
    """
    shown = error
    if isinstance(error, ModuleNotFoundError):
        lacks_package = missing(error, command, extra)
        if lacks_package is None:
            raise error
        shown = lacks_package
    print(f"precad: {shown}", file=sys.stderr)  # noqa: T201
    if isinstance(shown, MayPass):
        return TRY_AGAIN
    return 2 if isinstance(shown, Misconfiguration) else 1


def serve(part: str, config: Path) -> int:
    """Run server a, b or the dealer until it ends; return its exit status.

    ``config`` is its settings file. Raises Misconfiguration: a setting is wrong, or
    (MayPass) an address can't be listened on yet.
    """
    # Loaded here: other commands have no settings to read.
    from precad.common import wait_for_address  # noqa: PLC0415

    start_log()
    logging.getLogger("precad").info("%s", this_build())
    process = import_module(f"precad.{_FOLDERS[part]}.process")
    settings = process.SETTINGS.load(config)
    # Before anything is opened: whoever waits holds nothing that another start needs.
    for field in ("listen", "metrics"):
        wait_for_address(field, getattr(settings, field))
    return int(asyncio.run(process.serve(settings)))
