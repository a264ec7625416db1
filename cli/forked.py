"""Processes that share what one has imported: `multiprocessing`'s fork server, with preload.

They are processes of their own all the same, with the commands, settings, logs, signals
and ends of ``python -m …``: they are split off before any key, record or connection is
there, from a process without threads, and share nothing but code. What is read of the
environment at start or import is the fork server's: a start that has another value of
such a variable (``EARLY``) is a real one.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, Any

from precad.common.errors import Misconfiguration

EARLY = ("GRPC_", "LD_", "MALLOC_", "OMP_", "PRECAD_", "PYTHON")
"""Beginnings of their names."""
OWNERS = (
    *("precad.cli.main", "precad.cli.owner_commands", "precad.accounting.exact"),
    *("precad.client.data_owner", "precad.client.owner_settings"),
    # Half of torch, which it imports at the first gradient.
    "torch._dynamo",
)
PARTS = (
    *("precad.aggregator.validate.crypten_comparisons", "precad.dealer.process"),
    *("precad.server_a.process", "precad.server_b.process", *OWNERS),
)
"""What is imported once: for owners of one machine, and for all parts of a deployment.
"""

if any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    # The fork server itself: it has nothing to clear up, and would take seconds for it
    # with torch.
    atexit.register(os._exit, 0)

_of_server: dict[str, str] = {}
"""The early part of the fork server's environment, once it was started."""


def begin(environment: Mapping[str, str], modules: Sequence[str] = PARTS) -> None:
    """Start this process's fork server, if there is none; it ends with its last process.

    It imports ``modules``, but for those that aren't installed. Raises
    Misconfiguration: this system can't split processes.
    """
    if _of_server:
        return
    if sys.platform == "win32":
        raise Misconfiguration(
            "forked", "Windows", "this system starts processes one by one"
        )
    _of_server.update(_early(environment))
    own = dict(os.environ)
    multiprocessing.set_forkserver_preload(list(modules))
    try:
        _have(environment)
        forkserver.ensure_running()
    finally:
        _have(own)


def start(
    arguments: Sequence[str],
    *,
    stdout: IO[bytes] | None,
    env: Mapping[str, str],
    **more: Any,
) -> Any:
    """Start ``python -m …``, in place of ``subprocess.Popen``, whose arguments these are.

    ``[sys.executable, "-m", module, …]`` is forked, all else really started, with
    ``more``. The process's whole output goes to the end of the file ``stdout``; None
    for this process's own.
    """
    begin(env)
    if list(arguments[:2]) != [sys.executable, "-m"] or _early(env) != _of_server:
        return subprocess.Popen(  # noqa: S603 -- the caller's own words
            arguments,
            stdout=stdout,
            env=env,
            **more,
        )
    return Forked(
        arguments[2:], None if stdout is None else Path(stdout.name).resolve(), env
    )


class Forked:
    """A forked process, with as much of ``subprocess.Popen`` as deployments and tests use."""

    def __init__(
        self, arguments: Sequence[str], log: Path | None, env: Mapping[str, str]
    ) -> None:
        self.args = list(arguments)
        make = multiprocessing.get_context("forkserver").Process
        self._process = make(target=_become, args=(self.args, log, dict(env)))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Exit status, None while it runs; so is ``returncode``."""
        return self._process.exitcode

    returncode = property(poll)

    def wait(self, timeout: float | None = None) -> int:
        """Exit status. Raises TimeoutExpired."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """As Popen's, also where it has ended and the fork server hasn't said so yet."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """As Popen's."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As Popen's."""
        self.send_signal(signal.SIGKILL)


def _have(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name.startswith(EARLY)}


def _become(
    arguments: list[str], log: Path | None, environment: dict[str, str]
) -> None:
    # What is there now is searched for cycles no more: so it stays shared.
    gc.freeze()
    threading.Thread(
        target=_end_with_parent,
        name="forked",
        daemon=True,
    ).start()
    if log is not None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        os.close(descriptor)
    _have(environment)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    """Whoever started this process may be killed, and can't end it then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
