"""A process's log: lines for people, or one JSON object a line for programs.

``PRECAD_LOG_FORMAT=json`` asks for the second, for the process and the workers that it starts.
A line says what is being done, task, version and attempt, and nothing that the message doesn't
hold anyway: messages carry identifiers and never shares.
"""

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from precad.common.errors import Misconfiguration, one_line

VARIABLE = "PRECAD_LOG_FORMAT"
PEOPLE = "%(asctime)s %(levelname)s %(message)s"
_doing: dict[str, str | int] = {}
"""Read without a lock: a handler that waited for one, held by who logs, would wait for ever."""


def doing(**facts: str | int) -> None:
    """Add these facts to every further line of this process's log."""
    global _doing  # noqa: PLW0603 -- as logging's own configuration, there is one a process
    _doing = _doing | facts


class Lines(logging.Formatter):
    """A message is one line: whoever it quotes writes none of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's name
        """The line, before what was raised."""
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One object a line: ``time`` (UTC), ``level``, ``message``, and what is being done."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, str | int] = {
            "time": at,
            "level": record.levelname.lower(),
            "message": one_line(record.getMessage()),
            **_doing,
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def start_log(
    level: int = logging.INFO, handler: logging.Handler | None = None, people: str = PEOPLE
) -> None:
    """Begin this process's log, on standard error unless ``handler`` is given.

    ``people`` is a line's format for people.

    Raises Misconfiguration: the environment asks for a format that there isn't.
    """
    wanted = os.environ.get(VARIABLE, "people")
    if wanted not in ("people", "json"):
        raise Misconfiguration(VARIABLE, wanted, "use people or json")
    handler = handler or logging.StreamHandler()
    handler.setFormatter(JsonLines() if wanted == "json" else Lines(people))
    handler.addFilter(_news)
    logging.basicConfig(level=level, handlers=[handler])
    _print_no_stops()


def _print_no_stops() -> None:
    """What ``_news`` keeps out of the log gRPC 1.85 prints instead, with the standard library's."""
    printed = traceback.print_exc

    def print_exc(*arguments: Any, **options: Any) -> None:
        if sys.exc_info()[0] is not asyncio.CancelledError:
            printed(*arguments, **options)

    setattr(traceback, "print_exc", print_exc)  # noqa: B010 -- mypy refuses the assignment


def _news(record: logging.LogRecord) -> bool:
    """Not that gRPC ends the calls that are open when a part is told to stop, which it logs."""
    return not record.exc_info or record.exc_info[0] is not asyncio.CancelledError


def dump_stacks_on_signal() -> None:
    """Have `kill -USR1` write every thread's stack; in forked processes too, not on Windows."""
    if sys.platform != "win32":
        # Standard error as it is when the signal comes: children may have sent it elsewhere.
        faulthandler.register(signal.SIGUSR1, file=2)
