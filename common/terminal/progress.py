"""A bar with lines of text beneath it, redrawn on a terminal while something goes on."""

import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from tqdm import tqdm

from precad.common.terminal.text import fitting, width_of

_EVERY_S = 0.25
FORMAT = "{desc} |{bar:30}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
"""Of a bar, as tqdm takes it: with the time it took and what is left."""


def bar(what: str, total: int | None, out: TextIO, done: int = 0) -> "tqdm[Any]":
    """A bar alone, which goes at its end; nothing where ``out`` is no terminal."""
    return tqdm(
        desc=what,
        total=total,
        initial=done,
        file=out,
        leave=False,
        disable=None,
        dynamic_ncols=True,
        bar_format=None if total is None else FORMAT,
    )


class Progress:
    """The bar and the lines; what others print meanwhile goes above, and at the end both are gone.

    Args:
        what: the bar's name.
        total: of its steps.
        seen: the steps that are done, and the text of each line now; asked again and again.
        lines: how many there are at most.
        out: a terminal.
    """

    def __init__(
        self,
        what: str,
        total: int,
        seen: Callable[[], tuple[int, Sequence[str]]],
        *,
        lines: int,
        out: TextIO,
    ) -> None:
        self._what, self._total = what, total
        self._seen, self._count, self._out = seen, lines, out
        self._began = time.time()
        self._drawing: list[tqdm[Any]] = []

    def start(self) -> None:
        """Draw, and go on drawing; what was stopped goes on with the time that it had."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="progress", daemon=True)
        self._redirected = contextlib.ExitStack()
        self._drawing = [self._line(FORMAT, 0, self._what, self._total)]
        self._drawing += [self._line("{desc}", place) for place in range(1, self._count + 1)]
        self._drawing[0].start_t = self._began
        if sys.stdout.isatty():
            above = _Above(sys.stdout, self._out)
            self._redirected.enter_context(contextlib.redirect_stdout(above))
        if sys.stderr.isatty():
            above = _Above(sys.stderr, self._out)
            self._redirected.enter_context(contextlib.redirect_stderr(above))
        self._draw()
        self._thread.start()

    def count_from_now(self) -> None:
        """The time that it took, and what is left by that, are of what follows."""
        self._began = time.time()
        for line in self._drawing[:1]:
            line.start_t = self._began

    def stop(self) -> None:
        """Draw once more, then leave the terminal as it was."""
        self._over.set()
        self._thread.join()
        self._draw()
        self._redirected.close()
        # From the last line up: tqdm moves those below one that is closed.
        for line in reversed(self._drawing):
            line.close()

    def _line(self, form: str, place: int, what: str = "", total: int = 0) -> "tqdm[Any]":
        return tqdm(
            desc=what,
            total=total,
            file=self._out,
            leave=False,
            dynamic_ncols=True,
            bar_format=form,
            position=place,
        )

    def _redraw(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._draw()

    def _draw(self) -> None:
        done, texts = self._seen()
        steps, *lines = self._drawing
        steps.n = done
        steps.refresh()
        width = width_of(self._out)
        for place, line in enumerate(lines):
            text = texts[place] if place < len(texts) else ""
            line.set_description_str(fitting(text, width))


class _Above(io.TextIOBase):
    """Whole lines that others print, put above what is redrawn."""

    def __init__(self, stream: TextIO, drawn: TextIO) -> None:
        self._stream, self._drawn = stream, drawn
        self._begun = ""

    def write(self, text: str) -> int:
        """Keep a line until it is whole."""
        *whole, self._begun = (self._begun + text).split("\n")
        if whole:
            self.writelines(f"{line}\n" for line in whole)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Print them."""
        with tqdm.external_write_mode(file=self._drawn):
            self._stream.write("".join(lines))
            self._stream.flush()

    def isatty(self) -> bool:
        """As what is behind it."""
        return self._stream.isatty()
