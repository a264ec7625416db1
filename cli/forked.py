"""Processes that share what one has imported, by `multiprocessing`'s fork server.

A fork server imports modules once; each process is then split off from it, and they
share nothing but code. They are processes of their own all the same, with the commands,
settings, logs, signals and exit statuses of ``python -m …``: they are split off before
any key, record or connection is there, from a process without threads.

Some variables of the environment (``EARLY``) are read at start or import, so they are
the fork server's. A process that needs another value of such a variable is really
started.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, Any

from precad.common import PRIVATE_MODE, Misconfiguration, start_thread

Process = Any
"""A ``subprocess.Popen``, or a ``Forked``, which has as much of it as is used."""

EARLY = ("GRPC_", "LD_", "MALLOC_", "OMP_", "PRECAD_", "PYTHON")
"""How the names of variables begin that are read at a process's start or at import."""
OWNERS = (
    "precad.cli.main",
    "precad.cli.owner_commands",
    "precad.accounting.exact",
    "precad.client.data_owner",
    "precad.client.owner_settings",
    # Half of torch, which it imports at the first gradient.
    "torch._dynamo",
)
"""What is imported once for the owners of one machine."""
if any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    # The fork server itself: it has nothing to clear up, and would take seconds for it
    # with torch.
    atexit.register(os._exit, 0)

TO_LOG = os.O_WRONLY | os.O_CREAT | os.O_APPEND
"""How the file is opened that a process's outputs go to the end of."""

_early_of_server: dict[str, str] = {}
"""The early variables of the fork server's environment; empty until it was started."""


def begin(environment: Mapping[str, str], modules: Sequence[str] = OWNERS) -> None:
    """Start this process's fork server, in this environment, unless there is one.

    It imports ``modules``, but for those that aren't installed, and ends with its last
    process.

    Raises Misconfiguration: this system can't split processes.
    """
    if _early_of_server:
        return
    if sys.platform == "win32":
        raise Misconfiguration(
            "forked", "Windows", "this system starts processes one by one"
        )
    _early_of_server.update(_early(environment))
    before = dict(os.environ)
    multiprocessing.set_forkserver_preload(list(modules))
    try:
        _set_environment(environment)
        forkserver.ensure_running()
    finally:
        _set_environment(before)


def start(
    arguments: Sequence[str],
    *,
    stdout: IO[bytes] | None,
    env: Mapping[str, str],
    **options: Any,
) -> Process:
    """Start a process as ``subprocess.Popen`` does, whose arguments these are.

    ``[sys.executable, "-m", module, …]`` is forked; everything else is really started,
    with all ``options``; so is everything before ``begin``. A forked process writes
    both outputs to the end of the file ``stdout``; None stands for this process's own.
    """
    if list(arguments[:2]) != [sys.executable, "-m"] or _early(env) != _early_of_server:
        return subprocess.Popen(  # noqa: S603 -- the caller's own words
            arguments,
            stdout=stdout,
            env=env,
            **options,
        )
    log = None if stdout is None else Path(stdout.name).resolve()
    return Forked(arguments[2:], log, env)


class Forked:
    """A forked process, with as much of ``subprocess.Popen`` as is used.

    ``arguments`` are a module's name and its command line; ``log`` gets both outputs,
    None leaves them this process's own.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path | None, env: Mapping[str, str]
    ) -> None:
        self.args = list(arguments)
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_run_module, args=(self.args, log, dict(env))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs.

        The property ``returncode`` is the same.
        """
        return self._process.exitcode

    returncode = property(poll)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, and return its exit status.

        Raises TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal; a process that has ended gets none, and nothing is raised.

        That holds also where it has ended and the fork server hasn't said so yet.
        """
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end, by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once, by SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read at a process's start or at import."""
    return {
        name: value for name, value in environment.items() if name.startswith(EARLY)
    }


def _run_module(
    arguments: list[str], log: Path | None, environment: dict[str, str]
) -> None:
    """Be ``python -m`` with these arguments: what a forked process does.

    Both outputs go to the end of ``log``, unless it is None.
    """
    # What is there now is searched for cycles no more: so it stays shared.
    gc.freeze()
    start_thread("forked", _end_with_parent)
    if log is not None:
        descriptor = os.open(log, TO_LOG, PRIVATE_MODE)
        for output in (1, 2):
            os.dup2(descriptor, output)
        os.close(descriptor)
    _set_environment(environment)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    """End this process when the one that started it has ended.

    That one may be killed, and can't end it then.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
