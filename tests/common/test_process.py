"""A process's log and terminal, where it hangs, what memory it gives back to the
system."""

import asyncio
import io
import json
import logging
import math
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from tests.rig.commands import printed
from tests.rig.terminal import Terminal

from precad.common import errors, identifiers, process
from precad.common.process import VARIABLE, doing, start_log, unchanged_libraries
from precad.common.terminal import AlignedTable, Bar, say, upper

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux' glibc is told"
)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the log writes; the root's handlers come back afterwards."""
    monkeypatch.setattr(process, "_fields", {})
    monkeypatch.delenv(VARIABLE, raising=False)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def begin(written: io.StringIO, level: int = logging.INFO, *more: str) -> None:
    """As in a process of its own: pytest has put handlers of its own there."""
    logging.getLogger().handlers.clear()
    start_log(level, logging.StreamHandler(written), *more)


def test_json_lines_say_what_is_done(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "json")
    begin(written)
    log = logging.getLogger("precad")
    log.info("begun")
    done = {"part": "server-a", "task": "wards", "version": 3, "attempt": 5}
    doing(part="server-a", task="wards")
    doing(version=3, attempt=5)
    log.warning(
        "client %s isn't there\nany more, seed %s",
        "ward-3",
        identifiers.Secret(b"seed"),
    )
    try:
        raise ValueError("a bug")
    except ValueError:
        log.exception("stopped")
    first, second, third = (
        json.loads(line) for line in written.getvalue().splitlines()
    )
    assert first.keys() == {"time", "level", "message"}
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second.items() >= ({"level": "warning"} | done).items()
    assert second["message"].startswith("client ward-3 isn't there any more")
    assert "b'seed'" not in written.getvalue()
    assert "ValueError: a bug" in third["trace"]
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(errors.Misconfiguration, match="use people or json"):
        begin(written)
    # People get lines.
    monkeypatch.delenv(VARIABLE)
    lines = io.StringIO()
    begin(lines, logging.WARNING, "%(levelname)s worker: %(message)s")
    log.info("not this")
    log.warning("lost")
    assert lines.getvalue() == "WARNING worker: lost\n"


def test_calls_that_end_with_their_server_are_no_error_and_a_bug_is(
    written: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """gRPC logs them as exceptions that nobody handled, with a trace; 1.85 prints them,
    too."""
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    begin(written)
    for error in (asyncio.CancelledError(), ValueError("a bug")):
        try:
            raise error
        except (asyncio.CancelledError, ValueError):
            logging.getLogger("grpc").exception("not handled")
            traceback.print_exc()
    for said, mark in (
        (written.getvalue(), "not handled"),
        (capsys.readouterr().err, "Traceback"),
    ):
        assert said.count(mark) == 1
        assert "ValueError: a bug" in said


HANGS = """
import os, sys
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
    command = [sys.executable, "-c", HANGS]
    with subprocess.Popen(
        command,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        os.kill(int(process.stdout.readline()), signal.SIGUSR1)
        said = "".join(process.stderr.readline() for _ in range(3))
        process.stdin.write("\n")
        process.stdin.flush()
        assert (process.stdout.readline(), process.wait(60)) == ("went on\n", 0)
    assert "in stuck" in said
    assert "hush" not in said


def mapping(
    start: int,
    allowed: str,
    path: str,
    anonymous: int | str | None = 0,
    swap: int | str | None = 0,
) -> str:
    lines = [
        f"{start:x}-{start + 4096:x} {allowed} 00000000 08:01 7    {path}",
        "Rss:   4 kB",
    ]
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
        + "".join(mapping(0x50000, allowed, libc) for allowed in ("rw-p", "r--s"))
        + "".join(mapping(0x70000, "r--p", path) for path in ("/var/lib/state.db", ""))
        + "".join(
            mapping(0x90000, "r-xp", path) for path in ("[vdso]", f"{libc} (deleted)")
        )
        # A kernel that doesn't say.
        + mapping(0xB0000, "r-xp", libc, swap=None)
        + mapping(0xC0000, "r-xp", libc, anonymous=None, swap=None)
    )
    assert found == [(0x10000, 0x11000), (0x20000, 0x21000)]


def numbers(
    program: str, *arguments: str, env: dict[str, str] | None = None
) -> list[int]:
    return [
        int(each)
        for each in printed("-c", RESIDENT + program, *arguments, env=env).split()
    ]


RESIDENT = """
import re

def resident(kind):
    return int(re.search(rf"Rss{kind}:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
LETS_GO = """
import numpy, cryptography.x509
import grpc
from precad.common.process import let_go_of_loaded
before = resident("File")
let_go_of_loaded()
after = resident("File")
channel = grpc.insecure_channel("127.0.0.1:1")
channel.close()
assert numpy.arange(10).sum() == 45
print(before, after)
"""


@linux
def test_what_was_loaded_is_let_go_and_still_works() -> None:
    before, after = numbers(LETS_GO)
    assert after < before / 2


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
    (given_back,), (kept,) = (
        numbers(WORKS, mode, env=env) for mode in ("given back", "kept")
    )
    assert kept < given_back / 10


VECTORS = """
from precad.common.process import PIECES, give_back_freed, keep_freed_buffers

keep_freed_buffers(PIECES)
at_first = resident("Anon")
vectors = [bytearray(8 << 20) for _ in range(4)]
# Every other one goes: what is left keeps the rest from lying at the heap's end.
pieces = [bytearray(512 << 10) for _ in range(64)]
held = resident("Anon")
del vectors[::2]
without_vectors = resident("Anon")
del pieces[::2]
give_back_freed()
print(held - at_first, without_vectors - at_first, resident("Anon") - at_first)
"""


@linux
def test_a_server_gives_vectors_back_at_once_and_pieces_when_told() -> None:
    held, without_vectors, at_last = numbers(VECTORS)
    assert held >= 63 << 10, held
    assert without_vectors <= held - (16 << 10), (held, without_vectors)
    assert at_last <= held - (30 << 10), (held, without_vectors, at_last)


HOSTILE = "\x1b[2J\x1b]0;title\x07a\rb\u202e[bold]c[/bold]"
PLAIN = "[2J]0;titleab[bold]c[/bold]"


def test_nothing_of_a_text_is_a_control_or_markup() -> None:
    for out in (io.StringIO(), Terminal()):
        say(HOSTILE, (HOSTILE, "bold"), out=out)
        table = AlignedTable("what", title=HOSTILE)
        table.add(HOSTILE)
        table.show(out)
        with Bar("x", 3, out) as bar:
            bar.at(1, HOSTILE)
        assert not set("\x07\u202e") & set(out.getvalue())
        assert "\x1b[2J" not in out.getvalue()
        assert PLAIN in out.getvalue()


def test_a_file_gets_unbroken_lines_without_colours_or_spaces_at_their_ends() -> None:
    out, table = io.StringIO(), AlignedTable("who", ">ε", "what")
    say("word " * 60, style="red", out=out)
    table.add("a", "1.5", "x" * 200)
    table.add("bcd", "10")
    table.show(out)
    rows = ["who    ε  what", f"a    1.5  {'x' * 200}", "bcd   10"]
    assert out.getvalue().splitlines() == ["word " * 60, *rows]


def test_a_bound_is_never_shown_below_its_value() -> None:
    for bound, digits, said in (
        (0.9320001, 3, "0.933"),
        (0.932, 3, "0.932"),  # though the float lies above the decimal
        (3.0, 3, "3"),
        (1732.2, 3, "1.74e+03"),
        (2.5e-7, 2, "2.5e-07"),
        (9.9999, 3, "10"),
        (0.0, 3, "0"),
        (math.inf, 3, "inf"),
    ):
        assert upper(bound, digits) == said
        assert float(said) >= bound


def test_grpc_s_own_library_is_silent_wherever_precad_is_imported() -> None:
    """In notebooks it printed "GOAWAY received" among an owner's lines."""
    environment = dict(os.environ)
    environment.pop("GRPC_VERBOSITY", None)
    speaks = (
        "import grpc; bad = grpc.ssl_channel_credentials(b'no', b'no', b'no');"
        "channel = grpc.secure_channel('localhost:1', bad);"
        "channel.subscribe(lambda _: None, try_to_connect=True)"
    )
    for before, silent in (("import precad.client;", True), ("", False)):
        done = subprocess.run(
            [sys.executable, "-c", before + speaks],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stderr == "") == silent, done.stderr


def test_everything_on_stderr_is_json_where_that_is_asked_for(tmp_path: Path) -> None:
    """Usage errors, wrong settings, crashes, what gRPC's C library says."""
    environment = os.environ | {VARIABLE: "json"}
    environment.pop("GRPC_VERBOSITY", None)
    crash = (
        "import sys; from precad.common.process import take_over_stderr;"
        "take_over_stderr(); import warnings; warnings.warn('old'); import grpc;"
        "print('of', 'two', file=sys.stderr);"
        "grpc.ssl_channel_credentials(b'no', b'no', b'no');"
        "channel = grpc.secure_channel('localhost:1',"
        " grpc.ssl_channel_credentials(b'no', b'no', b'no'));"
        "1 / 0"
    )
    precad = ["-m", "precad"]
    missing = str(tmp_path / "none.toml")
    for arguments, message in (
        ([*precad, "serve", "a", "--config", missing], "none.toml"),
        ([*precad, "plan", "--no-such-option"], "No such option"),
        ([*precad, "no-such-command"], "No such command"),
        (["-c", crash], "a bug: division by zero"),
    ):
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert done.returncode != 0
        assert any(message in line["message"] for line in lines), done.stderr
        assert {"time", "level", "message"} <= lines[-1].keys()
    assert "ZeroDivisionError" in lines[-1]["trace"]
    assert "of two" in [line["message"] for line in lines]
