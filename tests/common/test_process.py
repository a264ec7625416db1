"""A process's log, where it hangs, and what memory it gives back to the system and keeps."""

import asyncio
import io
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.rig.commands import printed

from precad.common import process
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret
from precad.common.process import VARIABLE, doing, start_log, unchanged_libraries

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux' glibc is told")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the log writes; the root's handlers come back afterwards."""
    monkeypatch.setattr(process, "_doing", {})
    monkeypatch.delenv(VARIABLE, raising=False)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def begin(written: io.StringIO, level: int = logging.INFO, *more: Any) -> None:
    """As in a process of its own: pytest has put handlers of its own there."""
    logging.getLogger().handlers.clear()
    start_log(level, logging.StreamHandler(written), *more)


def test_json_lines_say_what_is_being_done(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "json")
    begin(written)
    log = logging.getLogger("precad")
    log.info("begun")
    done = {"part": "server-a", "task": "wards", "version": 3, "attempt": 5}
    doing(part="server-a", task="wards")
    doing(version=3, attempt=5)
    log.warning("client %s isn't there\nany more, seed %s", "ward-3", Secret(b"seed"))
    try:
        raise ValueError("a bug")
    except ValueError:
        log.exception("stopped")
    first, second, third = (json.loads(line) for line in written.getvalue().splitlines())
    assert first.keys() == {"time", "level", "message"}
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second.items() >= ({"level": "warning"} | done).items()
    assert second["message"].startswith("client ward-3 isn't there any more")
    assert "b'seed'" not in written.getvalue()
    assert "ValueError: a bug" in third["trace"]


def test_people_get_lines_and_another_format_is_refused(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(written, logging.WARNING, "%(levelname)s worker: %(message)s")
    logging.getLogger("precad").info("not this")
    logging.getLogger("precad").warning("lost")
    assert written.getvalue() == "WARNING worker: lost\n"
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(Misconfiguration, match="use people or json"):
        begin(written)


def test_calls_that_end_with_their_server_are_no_error_and_a_bug_is(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """gRPC logs them as exceptions that nobody handled, with a trace each; 1.85 prints them, too.

    The stop of a real server is in tests/soak/test_runbooks.py.
    """
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    begin(written)
    for error in (asyncio.CancelledError(), ValueError("a bug")):
        try:
            raise error
        except (asyncio.CancelledError, ValueError):
            logging.getLogger("grpc").exception("not handled")
            traceback.print_exc()
    for said, mark in ((written.getvalue(), "not handled"), (capsys.readouterr().err, "Traceback")):
        assert said.count(mark) == 1
        assert "ValueError: a bug" in said


# --- a process that hangs ------------------------------------------------------------------------


HANGS = """
import os, sys, time
from precad.common.process import dump_stacks_on_signal

dump_stacks_on_signal()


def stuck(secret):
    print(os.getpid(), flush=True)
    sys.stdin.readline()


if os.fork() == 0:
    stuck("hush")
    print("went on", flush=True)
else:
    os.wait()
"""


def test_a_process_dump_stacks_on_signal_and_goes_on() -> None:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", HANGS], text=True, **pipes) as process:  # type: ignore[call-overload]
        os.kill(int(process.stdout.readline()), signal.SIGUSR1)
        said = "".join(process.stderr.readline() for _ in range(3))
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "went on\n"
        assert process.wait(60) == 0
    assert "in stuck" in said
    assert "hush" not in said


# --- libraries' pages that only their loading needed ---------------------------------------------


def mapping(start: int, allowed: str, path: str, anonymous: Any = 0, swap: Any = 0) -> str:
    lines = [f"{start:x}-{start + 4096:x} {allowed} 00000000 08:01 7    {path}", "Rss:   4 kB"]
    lines += [] if anonymous is None else [f"Anonymous:     {anonymous} kB"]
    lines += [] if swap is None else [f"Swap:     {swap} kB"]
    return "\n".join([*lines, "VmFlags: rd mr mw me \n"])


def test_only_unchanged_pages_of_libraries_are_let_go() -> None:
    libc = "/usr/lib/libc.so.6"
    found = unchanged_libraries(
        mapping(0x10000, "r-xp", libc)
        + mapping(0x20000, "r--p", "/usr/lib/x/_core.cpython-311.so")
        # The loader wrote addresses there, and then made it read-only.
        + mapping(0x30000, "r--p", libc, anonymous=4)
        + mapping(0x40000, "r--p", libc, swap=4)
        + mapping(0x50000, "rw-p", libc)
        + mapping(0x60000, "r--s", libc)
        + mapping(0x70000, "r--p", "/var/lib/state.db")
        + mapping(0x80000, "r--p", "")
        + mapping(0x90000, "r-xp", "[vdso]")
        + mapping(0xA0000, "r-xp", f"{libc} (deleted)")
        # A kernel that doesn't say.
        + mapping(0xB0000, "r-xp", libc, swap=None)
        + mapping(0xC0000, "r-xp", libc, anonymous=None, swap=None)
    )
    assert found == [(0x10000, 0x11000), (0x20000, 0x21000)]


def numbers(program: str, *arguments: str, **how: Any) -> list[int]:
    """What a process of its own prints."""
    return [int(each) for each in printed("-c", program, *arguments, **how).split()]


LETS_GO = """
import re
import numpy, cryptography.x509
import grpc
from precad.common.process import let_go_of_loaded

def of_files():
    return int(re.search(r"RssFile:\\s+(\\d+)", open("/proc/self/status").read())[1])

before = of_files()
let_go_of_loaded()
after = of_files()
channel = grpc.insecure_channel("127.0.0.1:1")
channel.close()
assert numpy.arange(10).sum() == 45
print(before, after)
"""


@linux
def test_what_was_loaded_is_let_go_and_still_works() -> None:
    before, after = numbers(LETS_GO)
    assert after < before / 2, (before, after)


# --- freed buffers -------------------------------------------------------------------------------

WORKS = """
import resource, sys
from precad.common.process import keep_freed_buffers

if sys.argv[1] == "kept":
    keep_freed_buffers()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    # The second keeps the first from lying at the heap's end.
    return bytearray(3 << 20), bytearray(5 << 20)

for _ in range(3):
    work()
before = faults()
for _ in range(20):
    work()
print(faults() - before)
"""


@linux
def test_kept_buffers_cost_no_page_faults() -> None:
    env = {"MALLOC_MMAP_THRESHOLD_": "131072"}
    (given_back,), (kept,) = (numbers(WORKS, mode, env=env) for mode in ("given back", "kept"))
    assert kept < given_back / 10, (kept, given_back)


VECTORS = """
import re
from precad.common.process import PIECES, give_back_freed, keep_freed_buffers

keep_freed_buffers(PIECES)

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

at_first = anonymous()
vectors = [bytearray(8 << 20) for _ in range(4)]
# Every other one goes: what is left keeps the rest from lying at the heap's end.
pieces = [bytearray(512 << 10) for _ in range(64)]
held = anonymous()
del vectors[::2]
without_vectors = anonymous()
del pieces[::2]
give_back_freed()
print(held - at_first, without_vectors - at_first, anonymous() - at_first)
"""


@linux
def test_a_server_gives_vectors_back_at_once_and_pieces_when_told() -> None:
    held, without_vectors, at_last = numbers(VECTORS)
    assert held >= 64, held
    assert without_vectors <= held - 16, (held, without_vectors)
    assert at_last <= held - 16 - 14, (held, without_vectors, at_last)
