"""A real terminal without a window: one pane of tmux, and what stands in it.

From Debian's package. Where it is missing the tests on a terminal are skipped, but under CI they
fail.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.rig.waiting import until


@dataclass(frozen=True, slots=True)
class Pane:
    """One terminal with one program in it."""

    _tmux: tuple[str, ...]

    def text(self) -> str:
        """What stands there now, without empty lines at the end."""
        return self._call("capture-pane", "-p").rstrip()

    def wait_for(self, ready: Callable[[str], object]) -> str:
        """The text, once it is ``ready``."""

        def found() -> str:
            text = self.text()
            return text if ready(text) else ""

        return until(found, self.text, poll_s=0.1)

    def _call(self, *arguments: str) -> str:
        done = subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=True)
        return done.stdout


@contextmanager
def terminal(command: Sequence[str], columns: int, lines: int = 24) -> Iterator[Pane]:
    """A terminal of that size in which the command runs, until the block ends."""
    program = shutil.which("tmux")
    if program is None:
        missing = "there is no tmux here: install Debian's package tmux"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    # Short: a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="precad-tmux-", dir="/tmp") as folder:
        settings = Path(folder) / "tmux.conf"
        # What a program that has ended wrote can be looked at.
        settings.write_text("set -g remain-on-exit on\nset -g status off\n")
        tmux = (program, "-u", "-S", f"{folder}/socket", "-f", str(settings))
        size = ("-x", str(columns), "-y", str(lines))
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        for size_of_another in ("COLUMNS", "LINES"):
            environment.pop(size_of_another, None)
        new = [*tmux, "new-session", "-d", *size, shlex.join(command)]
        subprocess.run(new, check=True, env=environment)
        try:
            yield Pane(tmux)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
