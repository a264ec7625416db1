"""A real terminal without a window: one pane of tmux, and what stands in it as a page.

From Debian's package. Where it is missing the tests on a terminal are skipped, but under CI they
fail.
"""

import html
import os
import re
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

_SEQUENCE = re.compile(r"\x1b\[([\d;]*)m")
_STYLES = {
    1: "font-weight:bold",
    2: "opacity:.75",
    4: "text-decoration:underline",
    31: "color:#ff8080",
    32: "color:#7bd88f",
    33: "color:#ffd866",
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="margin:1em;background:#1c1c22;color:#f0f0f4">
<h1 style="font:1em sans-serif">{title}</h1>
<pre style="font:14px/1.3 'DejaVu Sans Mono',monospace">{text}</pre></body></html>
"""


@dataclass(frozen=True, slots=True)
class Pane:
    """One terminal with one program in it."""

    _tmux: tuple[str, ...]

    def text(self, *, coloured: bool = False) -> str:
        """What stands there now, without empty lines at the end."""
        return self._call("capture-pane", "-p", *(["-e"] if coloured else [])).rstrip()

    def wait_for(self, ready: Callable[[str], object]) -> str:
        """The text, once it is ``ready``."""
        until(lambda: ready(self.text()), self.text, poll_s=0.1)
        return self.text()

    def page(self, title: str) -> str:
        """It in its colours, as HTML."""
        styles: list[str] = []
        parts = _SEQUENCE.split(self.text(coloured=True))
        shown = html.escape(parts[0])
        for codes, text in zip(parts[1::2], parts[2::2], strict=True):
            for code in map(int, codes.split(";") if codes else ["0"]):
                styles = [] if code == 0 else [*styles, _STYLES.get(code, "")]
            style = ";".join(filter(None, styles))
            shown += f'<span style="{style}">{html.escape(text)}</span>'
        return _PAGE.format(title=html.escape(title), text=shown)

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
        new = [*tmux, "new-session", "-d", *size, shlex.join(command)]
        subprocess.run(new, check=True, env=environment)
        try:
            yield Pane(tmux)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
