"""A process of the benchmark's own that is told what to do, and answers, in lines of JSON."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from tests.rig.waiting import readable_within

from precad.common.errors import PeerUnavailable

ANSWER_S = 1800.0
# Where `benchmarks` is found as a package.
ROOT = Path(__file__).parents[2]
"""No single step of a measurement takes longer."""
Message = dict[str, Any]


class Part:
    """A process that runs ``module`` and speaks with this one.

    Use it as a context manager: it is ended whatever happens.

    Args:
        name: for messages and the log.
        module: its code, run as a program; makes an ``Orders``.
        folder: receives its log.
        environment: beside this process's own.
    """

    def __init__(
        self,
        name: str,
        module: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._log = folder / f"{name}.log"
        # One thread a process, as in a deployment: the parts share this machine's
        # cores. And no lines of gRPC's on connections that were idle: a log's end is to
        # say why a part ended.
        own = {"OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "ERROR"}
        variables = os.environ | own | dict(environment or {})
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=variables,
                cwd=ROOT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process's identifier."""
        return self._process.pid

    def tell(self, **message: object) -> None:
        """Send one message. Raises PeerUnavailable when the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None

    def hear(self, timeout_s: float = ANSWER_S) -> Message:
        """The next message. Raises PeerUnavailable when none comes."""
        out = self._process.stdout
        assert out is not None
        # Unbuffered: the wait sees all that wasn't read yet.
        if not readable_within(timeout_s, out.fileno()):
            raise PeerUnavailable(
                f"{self._name} said nothing for {timeout_s:g} s: {self._tail()}"
            )
        line = out.readline()
        if not line:
            raise self._ended()
        return dict(json.loads(line))

    def ask(self, **message: object) -> Message:
        """Send one message and wait for the answer. Raises PeerUnavailable."""
        self.tell(**message)
        return self.hear()

    def stop(self) -> None:
        """End the process; it has nothing to tidy up."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _ended(self) -> PeerUnavailable:
        return PeerUnavailable(f"{self._name} ended: {self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-8:])


class Orders:
    """The other end: what this process is told, and its answers.

    What else is written to standard output (Gloo greets there) goes to the log.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def __iter__(self) -> Iterator[Message]:
        for line in sys.stdin:
            yield dict(json.loads(line))

    def say(self, **message: object) -> None:
        """Answer, with the time at which it was said."""
        self._out.write(json.dumps({"at_s": time.monotonic(), **message}) + "\n")
        self._out.flush()
