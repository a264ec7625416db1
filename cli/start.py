"""The first words of a command line: a dealer's process loads none of the other commands."""

import asyncio
import logging
import sys
from pathlib import Path

from precad.common.allocator import keep_freed_buffers
from precad.common.errors import Misconfiguration, PrecadError

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def main() -> None:
    """Entry point of the `precad` command."""
    keep_freed_buffers()
    match sys.argv[1:]:
        case ["serve", "dealer", "--config" | "-c", config]:
            sys.exit(_deal(config))
    from precad.cli.main import run  # noqa: PLC0415

    run()


def said(error: PrecadError) -> int:
    """The exit status after an error was said in one line: 2 for a wrong value, else 1."""
    print(f"precad: {error}", file=sys.stderr)  # noqa: T201
    return 2 if isinstance(error, Misconfiguration) else 1


def _deal(config: str) -> int:
    from precad.dealer.process import serve  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    try:
        return asyncio.run(serve(Path(config)))
    except PrecadError as error:
        return said(error)
