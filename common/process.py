"""A process's log, lines for people or one JSON object a line, and the memory that it keeps.

``PRECAD_LOG_FORMAT=json`` asks for the second, for the process and the workers that it
starts. A line says what is being done, task, version and attempt, and nothing that the
message doesn't hold anyway: messages carry identifiers and never shares.
"""

import asyncio
import ctypes
import faulthandler
import json
import logging
import os
import re
import signal
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from precad.common.errors import Misconfiguration, one_line

VARIABLE = "PRECAD_LOG_FORMAT"
PEOPLE = "%(asctime)s %(levelname)s %(message)s"
_doing: dict[str, str | int] = {}
"""Read without a lock: a handler that waited for one, held by who logs, would wait for
ever."""


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
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, str | int] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": one_line(record.getMessage()),
            **_doing,
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def start_log(
    level: int = logging.INFO,
    handler: logging.Handler | None = None,
    people: str = PEOPLE,
) -> None:
    """Begin this process's log, on standard error unless ``handler`` is given.

    Raises Misconfiguration: the environment asks for a format that there isn't.
    """
    wanted = os.environ.get(VARIABLE, "people")
    if wanted not in ("people", "json"):
        raise Misconfiguration(VARIABLE, wanted, "use people or json")
    handler = handler or logging.StreamHandler()
    handler.setFormatter(JsonLines() if wanted == "json" else Lines(people))
    # gRPC logs that it ends the calls that are open when a part is told to stop: no
    # news.
    handler.addFilter(
        lambda of: not of.exc_info or of.exc_info[0] is not asyncio.CancelledError
    )
    logging.basicConfig(level=level, handlers=[handler])
    _print_no_stops()


def _print_no_stops() -> None:
    """What is kept out of the log gRPC 1.85 prints instead, with the standard library's."""
    printed = traceback.print_exc

    def print_exc(*arguments: Any, **options: Any) -> None:
        if sys.exc_info()[0] is not asyncio.CancelledError:
            printed(*arguments, **options)

    setattr(traceback, "print_exc", print_exc)  # noqa: B010 -- mypy refuses the assignment


def dump_stacks_on_signal() -> None:
    """Have `kill -USR1` write every thread's stack; in forked processes too, not on Windows."""
    if sys.platform != "win32":
        # Standard error as it is when the signal comes: children may have sent it
        # elsewhere.
        faulthandler.register(signal.SIGUSR1, file=2)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""glibc's names in malloc.h."""
LARGEST = 32 << 20
"""The most that glibc allows."""
PIECES = 2 << 20
"""For a server: the pieces of bodies with their messages, and no vector of a large
model."""


def keep_freed_buffers(largest: int = LARGEST) -> None:
    """For the rest of this process; larger ones are given back at once, ``largest`` in bytes."""
    _tell("mallopt", _M_MMAP_THRESHOLD, largest)
    # What stays at a heap's end.
    _tell("mallopt", _M_TRIM_THRESHOLD, min(8 * largest, 64 << 20))
    # A heap for each of many threads would keep a multiple.
    _tell("mallopt", _M_ARENA_MAX, 2)


def give_back_freed() -> None:
    """Give all freed memory back now: before much of another kind is asked for."""
    _tell("malloc_trim", 0)


def _tell(name: str, *values: int) -> None:
    """Does nothing where the C library isn't glibc."""
    if sys.platform.startswith("linux") and (
        told := getattr(ctypes.CDLL(None), name, None)
    ):
        told(*(ctypes.c_long(value) for value in values))


_MADV_DONTNEED = 4
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(.*)")
_LIBRARY = re.compile(r"/.*\.so(\.[0-9.]+)?")


def let_go_of_loaded() -> None:
    """Unmap for now what is unchanged of libraries' pages; does nothing but on Linux.

    A page that was changed, such as an address that the loader wrote, has no other
    copy: mappings with any such page, in memory or in swap, are left as they are, and
    so are writable ones.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        told = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    advise = ctypes.CDLL(None).madvise
    for start, end in unchanged_libraries(told):
        # Where it is refused, as for locked pages, nothing is lost.
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


def unchanged_libraries(smaps: str) -> list[tuple[int, int]]:
    """From and to which address libraries are mapped with nothing changed, by /proc/pid/smaps."""
    found = []
    for block in re.split(r"^(?=[0-9a-f]+-)", smaps, flags=re.MULTILINE):
        mapping = _MAPPING.match(block)
        if mapping:
            start, end, allowed, path = mapping.groups()
            fixed = allowed[1] == "-" and allowed[3] == "p" and _LIBRARY.fullmatch(path)
            # A count that isn't there isn't known to be none.
            counted = dict(re.findall(r"^(\w+): +(.*)$", block, flags=re.MULTILINE))
            if fixed and counted.get("Anonymous") == counted.get("Swap") == "0 kB":
                found.append((int(start, 16), int(end, 16)))
    return found
