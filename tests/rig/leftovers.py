"""Processes that a run of tests has started and that are still there at its end: none.

A plugin of pytest, which tests/conftest.py takes for all tests. Processes are found by
a mark in their environment, which every process inherits, also from one that has ended;
and by their parents.
"""

import atexit
import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.rig.waiting import until

MARK = (  # The variable's name; its value is of one process that runs tests
    "TESTS_OF_PRECAD"
)
_TEST = b"PYTEST_CURRENT_TEST"

_closed_at_the_end: list[Callable[[], object]] = []


def at_the_end(close: Callable[[], object]) -> None:
    _closed_at_the_end.append(close)


class Leftover(NamedTuple):
    pid: int
    command: str
    test: str  # Where it was started, where that is known


def processes() -> dict[int, int]:
    parents = {}
    for each in Path("/proc").iterdir():
        # Whoever ended meanwhile has no file any more.
        with suppress(OSError):
            if each.name.isdigit():
                told = (each / "stat").read_text("utf-8").rpartition(")")[2]
                state, parent = told.split()[:2]
                if state not in "ZX":
                    parents[int(each.name)] = int(parent)
    return parents


def descendants(*pids: int) -> set[int]:
    parents, found = processes(), set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - set(pids)


def environment(pid: int) -> list[bytes]:
    return _words(pid, "environ")


def _words(pid: int, file: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")
    except OSError:
        # It ended meanwhile, or is another user's.
        return []


def leftovers(marked: str) -> list[Leftover]:
    """All with the mark, and all children of this process, of these, and so on."""
    own, this = f"{MARK}={marked}".encode(), os.getpid()
    found = {pid for pid in processes() if own in environment(pid)} | {this}
    return [_seen(pid) for pid in sorted((found | descendants(*found)) - {this})]


def _seen(pid: int) -> Leftover:
    command = b" ".join(_words(pid, "cmdline")).decode().strip() or "ended meanwhile"
    tests = [
        each.partition(b"=")[2] for each in environment(pid) if each.startswith(_TEST)
    ]
    return Leftover(pid, command, b"".join(tests).decode())


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Before all others, so torn down after them, in each process that runs tests."""
    os.environ[MARK] = marked = f"{os.getpid()}-{secrets.token_hex(4)}"
    yield
    while _closed_at_the_end:
        _closed_at_the_end.pop()()
    _end_pythons_own()
    try:
        until(
            lambda: not leftovers(marked),
            lambda: f"the end of {leftovers(marked)}",
            poll_s=0.05,
        )
    finally:
        for each in leftovers(marked):
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)


def _end_pythons_own() -> None:
    """What Python and joblib keep for later until their process ends."""
    executors: Any = sys.modules.get("joblib.externals.loky.reusable_executor")
    if executors:
        with executors._executor_lock:
            executor = executors._executor
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)
            # Folders too: a tracker that starts at the process's end alone knows none
            # of them.
            for forget in executor._temp_folder_manager._finalizers.values():
                atexit.unregister(forget)
                forget()
        # Its semaphores go now: one that went after the tracker's end would start
        # another.
        executor = executors._executor = None
        gc.collect()
    if trackers := sys.modules.get("joblib.externals.loky.backend.resource_tracker"):
        trackers._resource_tracker._stop()
    server: object = multiprocessing.forkserver._forkserver
    tracker: object = multiprocessing.resource_tracker._resource_tracker
    for each in (server, tracker):
        each._stop()  # type: ignore[attr-defined]
