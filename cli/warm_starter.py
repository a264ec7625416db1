"""Processes of a deployment, forked from a warm parent: a start takes no seconds of imports.

They are processes of their own all the same, with the commands, settings, logs, signals and ends
of real starts. What differs: whatever is read of the environment at start or import is the
parent's. So a start that has another value of such a variable (``EARLY``) is a real one.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Self

EARLY = ("GRPC_", "LD_", "MALLOC_", "OMP_", "PRECAD_", "PYTHON")
"""Beginnings of their names."""
START_S = 120.0


class WarmStarter:
    """In place of ``subprocess.Popen`` where a deployment starts its parts.

    Use it as a context manager, or close it.

    Args:
        popen: the real one, for whatever can't be forked.
    """

    def __init__(self, popen: Any = subprocess.Popen) -> None:
        self._popen = popen
        self._environment: dict[str, str] = {}
        self._parent: subprocess.Popen[bytes] | None = None
        self._changed = threading.Condition()
        self._pids: dict[str, int] = {}
        self._statuses: dict[str, int] = {}
        self._starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __call__(self, arguments: list[str], **options: Any) -> Any:
        """A started process."""
        environment = options["env"]
        python, dash_m, *rest = arguments
        forkable = (python, dash_m) == (sys.executable, "-m") and "process_group" in options
        if not forkable or not self.warm(environment):
            return self._popen(arguments, **options)
        own_group = options["process_group"] is not None
        return self._fork(rest, environment, os.fspath(options["stdout"].name), own_group)

    def warm(self, environment: dict[str, str]) -> bool:
        """Start the parent, if there is none; whether a part with this environment is forked."""
        early = {name: text for name, text in environment.items() if name.startswith(EARLY)}
        if self._parent is None:
            self._environment = early
            self._parent = self._popen(
                [sys.executable, "-m", "precad.cli.warm_parent"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            threading.Thread(target=self._listen, name="warm", daemon=True).start()
        return early == self._environment

    def close(self) -> None:
        """End the parent, and whatever it started and still runs."""
        if self._parent is not None:
            assert self._parent.stdin is not None
            assert self._parent.stdout is not None
            if not self._starts:
                # It may be in the middle of its imports.
                self._parent.kill()
            self._parent.stdin.close()
            self._parent.wait(30)
            self._parent.stdout.close()

    def status(self, key: str) -> int | None:
        """Exit status, None while it runs."""
        with self._changed:
            return self._statuses.get(key)

    def wait(self, key: str, timeout_s: float | None) -> int | None:
        """The same, after it ended or at the deadline."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._statuses, timeout_s)
            return self._statuses.get(key)

    def _fork(
        self, arguments: list[str], environment: dict[str, str], log: str, own_group: bool
    ) -> "Forked":
        assert self._parent is not None
        assert self._parent.stdin is not None
        with self._changed:
            self._starts += 1
            key = str(self._starts)
            order = {
                "key": key,
                "arguments": arguments,
                "environment": environment,
                "log": log,
                "group": own_group,
            }
            self._parent.stdin.write(json.dumps(order).encode() + b"\n")
            self._parent.stdin.flush()
            started = self._changed.wait_for(lambda: key in self._pids, START_S)
            assert started, "no process started"
            return Forked(self, key, self._pids[key], arguments)

    def _listen(self) -> None:
        assert self._parent is not None
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            said = json.loads(line)
            with self._changed:
                if "started" in said:
                    self._pids[said["started"]] = said["pid"]
                else:
                    self._statuses[said["ended"]] = said["status"]
                self._changed.notify_all()


class Forked:
    """As much of ``subprocess.Popen`` as deployments and tests use."""

    def __init__(self, starter: WarmStarter, key: str, pid: int, arguments: list[str]) -> None:
        self._starter = starter
        self._key = key
        self.pid = pid
        self.args = arguments
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit status, None while it runs."""
        self.returncode = self._starter.status(self._key)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status. Raises TimeoutExpired."""
        self.returncode = self._starter.wait(self._key, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As Popen's, also where it has ended and its parent hasn't said so yet."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """As Popen's."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As Popen's."""
        self.send_signal(signal.SIGKILL)
