"""One forked process that plays tests on a module as it is, or with one change in it.

The module's file stays as it is: the change is in what is compiled when it is imported.
"""

import ast
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, TypedDict, TypeVar

import hypothesis
import pytest

if TYPE_CHECKING:
    from _typeshed import TraceFunction

ROOT = Path(__file__).parents[2]
LOG = ROOT / "build/mutants/last.txt"  # What the newest child printed
WALL_S = 300
"""A test that waits for ever is dead after it; what computes for ever is ended by its
CPU time."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Played:
    status: str  # ``passed``, ``failed``, or ``endless``
    cpu_s: float
    killer: str  # The first test that failed


def imported(module: str) -> str:
    """The name under which ``accounting/rdp.py`` is imported."""
    return "precad." + module.removesuffix(".py").removesuffix("/__init__").replace(
        "/", "."
    )


def compiled(module: str) -> str:
    """The file name that its code objects have."""
    return str(ROOT / "src" / "precad" / module)


def play(
    tests: Sequence[str], cpu_s: float, tree: tuple[str, ast.Module] | None = None
) -> Played:
    """Files or single tests until the first failure, with another tree in a module's
    place.

    After so much CPU time the process is ended.
    """

    def child() -> tuple[int, str]:
        if tree is not None:
            _replace(*tree)
        first = _First()
        return (
            int(pytest.main([*_options(), "-x", *tests], plugins=[first])),
            first.failed,
        )

    status, killer, used = _forked(child, cpu_s)
    words = {
        0: "passed",
        1: "failed",
        -signal.SIGXCPU: "endless",
        -signal.SIGKILL: "endless",
    }
    if status not in words and not killer:
        raise SystemExit(f"nothing could be played, see {LOG}: {tests}")
    return Played(words.get(status, "failed"), used, killer or "")


class Coverage(TypedDict):
    lines: dict[str, list[str]]  # By its number, as JSON has it
    seconds: dict[str, float]  # By test


def covering(module: str, tests: Sequence[str]) -> Coverage:
    """Which tests run which of the module's lines, and how long they take."""

    def child() -> tuple[int, Coverage]:
        lines = _Lines(compiled(module))
        status = int(pytest.main([*_options(), *tests], plugins=[lines]))
        of = {str(line): each for line, each in lines.of.items()}
        return status, {"lines": of, "seconds": lines.seconds}

    status, found, _ = _forked(child, 600.0)
    if status or found is None:
        raise SystemExit(f"without a change a test of {module} fails: {tests}")
    return found


def _options() -> list[str]:
    timeout = [f"--timeout={WALL_S}", "-p", "no:cacheprovider"]
    timeout += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return ["-q", "--no-header", "--tb=no", *timeout]


def _forked(
    child: Callable[[], tuple[int, T]], cpu_s: float
) -> tuple[int, T | None, float]:
    """Exit status (negative: a signal), what the child handed over, its CPU seconds."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            soft = int(cpu_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 5))
            log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            _quick_properties()
            status, found = child()
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                json.dump(found, pipe)
        except BaseException:  # noqa: BLE001 -- shown where the child's output is
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            # Threads of a broken test must not keep the process.
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read() or "null"
    _, status, used = os.wait4(pid, 0)
    return (
        os.waitstatus_to_exitcode(status),
        json.loads(text),
        used.ru_utime + used.ru_stime,
    )


def _quick_properties() -> None:
    """The same examples each time, and no search for the smallest one that fails."""
    register = hypothesis.settings.register_profile
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)

    def registered(
        name: str, parent: hypothesis.settings | None = None, **given: object
    ) -> None:
        changed = given | {
            "phases": phases,
            "derandomize": True,
            "database": None,
            "print_blob": False,
        }
        register(name, parent, **changed)

    type.__setattr__(hypothesis.settings, "register_profile", staticmethod(registered))


def _replace(module: str, tree: ast.Module) -> None:
    name, whole = imported(module), SourceFileLoader.get_code
    assert name not in sys.modules, f"{name} was loaded before the fork"

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        if fullname == name:
            return compile(tree, compiled(module), "exec")
        return whole(loader, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


class _First:
    failed = ""

    def pytest_runtest_logreport(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    pytest_collectreport = pytest_runtest_logreport


class _Lines:
    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._now: set[int] = set()
        self.of: dict[int, list[str]] = defaultdict(list)
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now.clear()
        sys.settrace(self._call)
        threading.settrace(self._call)
        result = yield
        sys.settrace(None)
        threading.settrace(None)
        for line in sorted(self._now):
            self.of[line].append(item.nodeid)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self.seconds.get(report.nodeid, 0.0)
        self.seconds[report.nodeid] = round(before + report.duration, 3)

    def _call(
        self, frame: FrameType, _event: str, _arg: object
    ) -> "TraceFunction | None":
        if frame.f_code.co_filename != self._filename:
            return None
        self._now.add(frame.f_lineno)
        return self._call
