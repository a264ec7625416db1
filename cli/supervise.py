"""Several tasks of one part, side by side: a process each, and one that keeps them up.

Each task's process has its own port, state, ledger and memory, so that whatever happens to one is
nothing to the others. As owners that are started together they are split off from a process that
has loaded what they need and holds no key, connection or thread. That one does nothing else: it
starts again what fails, and takes up a changed settings file at SIGHUP. They end with it.
"""

import gc
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from precad.common.clock import CLOCK
from precad.common.errors import Misconfiguration, PrecadError
from precad.common.identifiers import Digest
from precad.common.logs import PEOPLE, start_log
from precad.common.process_settings import Settings, settings_by_task
from precad.common.task import Task

log = logging.getLogger("precad")

S = TypeVar("S", bound=Settings)

AGAIN_S = 10.0
STARTS, WITHIN_S = 10, 600.0
STOP_S = 60.0
"""As the systemd unit does with the part itself: the pause before another start, the starts after
which a person must look, and the time to end in."""
_WRONG_SETTING = 2
"""The exit status after which no other start helps."""
_SIGNALS = {signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
_LOOK_S = 3600.0


@dataclass(slots=True)
class _Kept(Generic[S]):
    """A task that is to run."""

    settings: S
    digest: Digest
    pid: int | None = None
    due: float | None = 0.0
    """When to start it; None while it runs, is over, or waits for a person."""
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=STARTS))


def supervise(
    kind: type[S],
    config: Path,
    load: Callable[[Task], object],
    again_s: float = AGAIN_S,
) -> S | None:
    """Keep a process for each task of a settings file, until told to stop.

    Args:
        kind: of settings.
        config: the file, with tables of tasks.
        load: imports what a task needs, before its process is split off; starts no thread.
        again_s: the pause before a task's process that failed is started again.

    Returns:
        In a task's process its settings. In this process None, when all others have ended.

    Raises:
        Misconfiguration: the file can't be used, or this system can't keep processes so.
    """
    if sys.platform != "linux":
        raise Misconfiguration(
            "tasks", sys.platform, "this system starts tasks one by one: a settings file for each"
        )
    return _Supervisor(kind, config, load, again_s).run()


class _Supervisor(Generic[S]):
    def __init__(
        self, kind: type[S], config: Path, load: Callable[[Task], object], again_s: float
    ) -> None:
        self._kind, self._config, self._load, self._again_s = kind, config, load, again_s
        self._kept: dict[str, _Kept[S]] = {}
        self._leaving: dict[int, float] = {}
        """Processes that were told to end, and when they are killed."""
        self._alive, self._held = os.pipe()
        """Of a pipe: what children read, and what this process alone holds."""

    def run(self) -> S | None:
        """Until told to stop; in a child its task's settings."""
        self._read()
        # Taken one by one below: none comes between a look and a wait.
        usual = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        stopping = False
        while not stopping or self._leaving:
            for name, kept in self._due():
                if (pid := os.fork()) == 0:
                    self._be_child(name, usual)
                    return kept.settings
                kept.pid, kept.due = pid, None
                kept.starts.append(CLOCK.now())
                log.info("task %s is process %d", name, pid)
            told = signal.sigtimedwait(_SIGNALS, self._until_next())
            self._reap()
            match None if told is None else told.si_signo:
                case signal.SIGHUP if not stopping:
                    self._read_anew()
                case signal.SIGINT | signal.SIGTERM:
                    stopping = True
                    self._drop(list(self._kept))
        return None

    def _read(self) -> None:
        """Take the settings file as it is now. Raises PrecadError, with everything as it was."""
        wanted = settings_by_task(self._kind, self._config)
        for settings, _ in wanted.values():
            self._load(Task.load(settings.task))
        # What is there now is searched for cycles no more: so children go on sharing its memory.
        gc.collect()
        gc.freeze()
        self._drop(
            [
                name
                for name, kept in self._kept.items()
                if wanted.get(name) != (kept.settings, kept.digest)
            ]
        )
        for name, (settings, digest) in wanted.items():
            kept = self._kept.setdefault(name, _Kept(settings, digest))
            if kept.pid is None:
                kept.due = CLOCK.now()
                kept.starts.clear()

    def _read_anew(self) -> None:
        try:
            self._read()
        except (PrecadError, ModuleNotFoundError) as error:
            log.error("everything goes on as it was: %s", error)  # noqa: TRY400 -- a person's
        else:
            log.info("the settings have %d tasks: %s", len(self._kept), ", ".join(self._kept))

    def _drop(self, names: list[str]) -> None:
        """Tell these tasks' processes to end."""
        for name in names:
            if (pid := self._kept.pop(name).pid) is not None:
                os.kill(pid, signal.SIGTERM)
                self._leaving[pid] = CLOCK.now() + STOP_S

    def _due(self) -> list[tuple[str, _Kept[S]]]:
        """What is to be started now: nothing while one that ends may hold a port or a state."""
        if self._leaving:
            return []
        now = CLOCK.now()
        return [(name, k) for name, k in self._kept.items() if k.due is not None and k.due <= now]

    def _until_next(self) -> float:
        """Seconds until something is due."""
        dues = [kept.due for kept in self._kept.values() if kept.due is not None]
        times = list(self._leaving.values()) or dues
        return max(0.0, min(times, default=CLOCK.now() + _LOOK_S) - CLOCK.now())

    def _reap(self) -> None:
        """Note who has ended; kill who was told to long ago."""
        for pid, limit in list(self._leaving.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._leaving[pid]
            elif limit <= CLOCK.now():
                os.kill(pid, signal.SIGKILL)
                self._leaving[pid] = CLOCK.now() + STOP_S
        for name, kept in self._kept.items():
            if kept.pid is not None:
                pid, status = os.waitpid(kept.pid, os.WNOHANG)
                if pid:
                    kept.pid = None
                    kept.due = self._next_start(name, kept, os.waitstatus_to_exitcode(status))

    def _next_start(self, name: str, kept: _Kept[S], status: int) -> float | None:
        now = CLOCK.now()
        if status == 0:
            log.info("task %s is over", name)
            return None
        if status == _WRONG_SETTING:
            log.error("task %s can't run: mend what its last line names, then send SIGHUP", name)
            return None
        if len(kept.starts) == STARTS and now - kept.starts[0] < WITHIN_S:
            log.error(
                "task %s failed %d times within %.0f s: see its lines, then send SIGHUP",
                name,
                STARTS,
                WITHIN_S,
            )
            return None
        log.warning(
            "task %s ended with status %d and is started again in %.0f s",
            name,
            status,
            self._again_s,
        )
        return now + self._again_s

    def _be_child(self, name: str, usual: set[int | signal.Signals]) -> None:
        os.close(self._held)
        # Of the whole service, and the other process's affair.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        CLOCK.start_thread("supervised", lambda: _end_with(self._alive))
        # The log that the other process has begun names no task.
        logging.getLogger().handlers.clear()
        start_log(people=PEOPLE.replace("%(message)s", f"{name}: %(message)s"))


def _end_with(alive: int) -> None:
    """Stop this process when the one that holds the pipe's other end has gone."""
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)
