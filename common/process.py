"""A process's log, for people or as JSON, and how much freed memory the process keeps.

``PRECAD_LOG_FORMAT=json`` asks for one JSON object a line, for the process and the
workers that it starts. A line says what is being done, with task, version and attempt,
and nothing that the message doesn't hold anyway: messages carry identifiers and never
shares.
"""

import asyncio
import ctypes
import faulthandler
import io
import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from precad.common import Misconfiguration, log, one_line

VARIABLE = "PRECAD_LOG_FORMAT"
"""The environment variable that names the log's format, ``people`` or ``json``."""
PEOPLE = "%(asctime)s %(levelname)s %(message)s"
"""The format of a line for people, as logging takes it."""
FOLLOWED = ("version", "attempt", "owner", "submission")
"""What a line may be about: fields of its own, given as ``extra`` to the logger. The
text uses the same words."""
_fields: dict[str, str | int] = {}
"""What every line of a JSON log says. Replaced as a whole and read without a lock: a
handler that waited for a lock which the logging thread holds would wait for ever."""


def doing(**facts: str | int) -> None:
    """Add these facts, as fields, to every further line of this process's JSON log."""
    # There is one a process, as of logging's own configuration.
    global _fields  # noqa: PLW0603
    _fields = _fields | facts


MOST_LISTED = 16
"""How many names a line of the log lists at once."""


def listed(names: Sequence[str]) -> str:
    """Return names in brackets for a line of the log, as many as fit there."""
    shown = list(names[:MOST_LISTED])
    if len(names) > MOST_LISTED:
        shown.append(f"{len(names) - MOST_LISTED} more")
    return f" ({', '.join(shown)})" if shown else ""


def warn(followed: Mapping[str, int | str], text: str) -> None:
    """Log a warning about what ``followed`` names, by words of ``FOLLOWED``."""
    named = ", ".join(f"{word} {value}" for word, value in followed.items())
    log.warning("%s: %s", named, text, extra=followed)


class Lines(logging.Formatter):
    """Formats a message as one line for people: a text that it quotes adds no line."""

    # The name is logging's.
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line; a traceback may follow it."""
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """Formats a message as one JSON object a line.

    It has ``time`` (UTC), ``level``, ``message``, the fields of ``doing``, those of
    ``FOLLOWED`` that the line is about, and of an exception ``trace``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        created = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": created.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": one_line(record.getMessage()),
            **_fields,
        }
        about = {
            name: value for name, value in vars(record).items() if name in FOLLOWED
        }
        if "version" in about:
            # The attempt that this process is at may be another version's.
            line.pop("attempt", None)
        line |= about
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class JsonStderr(io.TextIOBase):
    """Standard error of a JSON log: each line that others write there becomes one.

    Others are usage errors, warnings, fatal errors, traces of crashes.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._rest = ""

    def write(self, text: str) -> int:
        """Write the lines that ``text`` ends; an unended one waits for its end."""
        whole, _, self._rest = (self._rest + text).rpartition("\n")
        for line in whole.split("\n"):
            # The log's own lines are JSON.
            if line.startswith('{"time": '):
                self._stream.write(f"{line}\n")
            elif line.strip():
                self._record(line)
        self._stream.flush()
        return len(text)

    def crash(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Write what ends the process, as ``sys.excepthook`` is called."""
        self._record(f"a bug: {error}", (kind, error, trace))

    def _record(self, message: str, exc_info: object = None) -> None:
        record = logging.makeLogRecord(
            {"levelname": "ERROR", "msg": message, "exc_info": exc_info}
        )
        self._stream.write(f"{JsonLines().format(record)}\n")


def open_closed_streams() -> None:
    """Give a process that was started without its standard streams empty ones.

    Some schedulers start programs so (``2>&-``). The first file or socket that is
    opened would take the stream's number, and get what was meant for people.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: this one.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115


def take_over_stderr() -> None:
    """Where JSON is asked for, have everything on standard error be JSON lines."""
    if os.environ.get(VARIABLE) == "json":
        stderr = JsonStderr(sys.stderr)
        sys.stderr = stderr
        sys.excepthook = stderr.crash


def start_log(
    level: int = logging.INFO,
    handler: logging.Handler | None = None,
    people: str = PEOPLE,
) -> None:
    """Begin this process's log, on standard error unless ``handler`` is given.

    ``people`` is the format of a line for people.

    Raises Misconfiguration: the environment asks for a format that doesn't exist.
    """
    log_format = os.environ.get(VARIABLE, "people")
    if log_format not in ("people", "json"):
        raise Misconfiguration(VARIABLE, log_format, "use people or json")
    handler = handler or logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else Lines(people))
    handler.addFilter(_is_no_cancellation)
    logging.basicConfig(level=level, handlers=[handler])
    _print_no_cancellations()


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Return whether a record is anything but the trace of a cancelled call.

    gRPC logs a trace for each call that is open when a part is told to stop: no news.
    """
    return not record.exc_info or record.exc_info[0] is not asyncio.CancelledError


def _print_no_cancellations() -> None:
    """Have the standard library print no trace of a cancelled call.

    gRPC 1.85 prints with it what ``_is_no_cancellation`` keeps out of the log.
    """
    original = traceback.print_exc

    def print_exc(*arguments: Any, **options: Any) -> None:
        if sys.exc_info()[0] is not asyncio.CancelledError:
            original(*arguments, **options)

    # mypy refuses an assignment.
    setattr(traceback, "print_exc", print_exc)  # noqa: B010


def dump_stacks_on_signal() -> None:
    """Have `kill -USR1` write every thread's stack to standard error; not on Windows.

    It holds for forked processes too.
    """
    if sys.platform != "win32":
        # By its number: standard error as it is when the signal comes, because
        # a child may have sent it elsewhere.
        faulthandler.register(signal.SIGUSR1, file=2)


_M_TRIM_THRESHOLD = -1
"""Option of glibc's ``mallopt``: free bytes at a heap's end that aren't given back."""
_M_MMAP_THRESHOLD = -3
"""Option of glibc's ``mallopt``: from this length on a buffer is mapped by itself."""
_M_ARENA_MAX = -8
"""Option of glibc's ``mallopt``: most heaps."""
LARGEST = 32 << 20
"""Bytes of the largest buffer that glibc allows to be kept."""
PIECES = 2 << 20
"""Bytes of the largest buffer that a server keeps: pieces of bodies with their
messages, and no vector of a large model."""


def keep_freed_buffers(largest: int = LARGEST) -> None:
    """Keep freed buffers of up to ``largest`` bytes, for the rest of this process.

    Larger ones are given back to the system at once. Does nothing where the C library
    isn't glibc.
    """
    _call_glibc("mallopt", _M_MMAP_THRESHOLD, largest)
    # Freed memory at a heap's end.
    _call_glibc("mallopt", _M_TRIM_THRESHOLD, min(8 * largest, 64 << 20))
    # A heap for each of many threads would keep a multiple.
    _call_glibc("mallopt", _M_ARENA_MAX, 2)


def give_back_freed() -> None:
    """Give all freed memory back to the system now.

    To be called before much memory is needed for something else.
    """
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *values: int) -> None:
    """Call a function of the C library; do nothing where it isn't glibc."""
    if not sys.platform.startswith("linux"):
        return
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*(ctypes.c_long(value) for value in values))


_MADV_DONTNEED = 4
"""Advice of Linux' ``madvise``: pages may be dropped, and read from the file again."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(.*)")
_LIBRARY = re.compile(r"/.*\.so(\.[0-9.]+)?")


def let_go_of_loaded() -> None:
    """Drop unchanged pages of libraries from memory; the system can read them again.

    A page that was changed, such as one with an address that the loader wrote, has no
    other copy: mappings with any such page, in memory or in swap, are left as they are,
    and so are writable ones. Does nothing but on Linux.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    advise = ctypes.CDLL(None).madvise
    for start, end in unchanged_libraries(smaps):
        # Where it is refused, as for locked pages, nothing is lost.
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


def unchanged_libraries(smaps: str) -> list[tuple[int, int]]:
    """Return start and end of each mapping of a library in which no page was changed.

    ``smaps`` is the text of Linux' /proc/pid/smaps.
    """
    unchanged = []
    for block in re.split(r"^(?=[0-9a-f]+-)", smaps, flags=re.MULTILINE):
        mapping = _MAPPING.match(block)
        if mapping is None:
            continue
        start, end, permissions, path = mapping.groups()
        writable = permissions[1] != "-"
        private = permissions[3] == "p"
        counts = dict(re.findall(r"^(\w+): +(.*)$", block, flags=re.MULTILINE))
        # A count that is missing isn't known to be 0.
        no_changes = counts.get("Anonymous") == counts.get("Swap") == "0 kB"
        if private and not writable and no_changes and _LIBRARY.fullmatch(path):
            unchanged.append((int(start, 16), int(end, 16)))
    return unchanged
