"""A process's log: lines for people, or JSON objects; and where it hangs."""

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

from precad.common import process
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret
from precad.common.process import VARIABLE, doing, start_log


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the log writes; the root's handlers come back afterwards."""
    monkeypatch.setattr(process, "_doing", {})
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def begin(*arguments: Any, **named: Any) -> None:
    """As in a process of its own: pytest has put handlers of its own there."""
    logging.getLogger().handlers.clear()
    start_log(*arguments, **named)


def test_json_lines_say_what_is_being_done(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "json")
    begin(handler=logging.StreamHandler(written))
    log = logging.getLogger("precad")
    log.info("begun")
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
    assert second["level"] == "warning"
    assert {key: second[key] for key in ("part", "task", "version", "attempt")} == {
        "part": "server-a",
        "task": "wards",
        "version": 3,
        "attempt": 5,
    }
    assert second["message"].startswith("client ward-3 isn't there any more")
    assert "b'seed'" not in written.getvalue()
    assert "ValueError: a bug" in third["trace"]


def test_people_get_lines(written: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    begin(logging.WARNING, logging.StreamHandler(written), "%(levelname)s worker: %(message)s")
    logging.getLogger("precad").info("not this")
    logging.getLogger("precad").warning("lost")
    assert written.getvalue() == "WARNING worker: lost\n"


def test_another_format_is_refused(written: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(Misconfiguration, match="use people or json"):
        begin(handler=logging.StreamHandler(written))


def test_calls_that_end_with_their_server_are_no_error(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC logs them as exceptions that nobody handled, with a trace each."""
    monkeypatch.delenv(VARIABLE, raising=False)
    begin(handler=logging.StreamHandler(written))
    for error in (asyncio.CancelledError(), ValueError("a bug")):
        try:
            raise error
        except (asyncio.CancelledError, ValueError):
            logging.getLogger("grpc").exception("not handled")
    assert written.getvalue().count("not handled") == 1
    assert "ValueError: a bug" in written.getvalue()


def test_nor_are_they_printed_past_the_log_and_a_bug_is(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As gRPC 1.85 does; the stop of a real server is in tests/soak/test_runbooks.py."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    begin(handler=logging.StreamHandler(written))
    for error in (asyncio.CancelledError(), ValueError("a bug")):
        try:
            raise error
        except (asyncio.CancelledError, ValueError):
            traceback.print_exc()
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1
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
    with subprocess.Popen(
        [sys.executable, "-c", HANGS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        os.kill(int(process.stdout.readline()), signal.SIGUSR1)
        said = [process.stderr.readline() for _ in range(3)]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "went on\n"
        assert process.wait(60) == 0
    assert "in stuck" in "".join(said)
    assert "hush" not in "".join(said)
