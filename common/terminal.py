"""What a person sees: rich's text, tables and bars on a terminal, plain unbroken lines elsewhere.

Texts of peers come here too: nothing in them is markup, and no control character gets
through.
"""

import re
import sys
from collections.abc import Callable, Iterable
from decimal import ROUND_CEILING, Context
from typing import TextIO

from rich import progress
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text


def console_of(out: TextIO) -> Console:
    """Rich's console that writes there; no variable of the environment makes a file a terminal."""
    terminal = out.isatty()
    return Console(
        file=out,
        width=None if terminal else 10_000,  # columns: no line is broken
        force_terminal=terminal,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def upper(bound: float, digits: int = 4) -> str:
    """Return a bound in so many digits, never below its value: an ε that holds, or can be set."""
    nearest = f"{bound:.{digits}g}"
    if float(nearest) >= bound:
        return nearest
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(
        bound
    )
    return f"{float(rounded):.{digits}g}"


def redraws(out: TextIO) -> bool:
    """Whether it is a terminal that can draw a line anew."""
    return out.isatty() and console_of(out).is_interactive


def plain(text: str, style: str = "") -> Text:
    """The text as it stands, without control characters, in rich's ``style``."""
    return Text(
        "".join(each for each in text if each.isprintable() or each == "\n"), style
    )


def say(out: TextIO | Console, *parts: str | tuple[str, str], style: str = "") -> None:
    """Print lines, broken between words where a terminal is too narrow.

    A terminal gets colours, anything else plain text; ``out`` is a bar's console, while
    it lasts. Parts stand alone or with rich's style; ``style`` is of all.
    """
    texts = [plain(part) if isinstance(part, str) else plain(*part) for part in parts]
    console = out if isinstance(out, Console) else console_of(out)
    console.print(Text.assemble(*texts, style=style), soft_wrap=not console.is_terminal)


class AlignedTable:
    """Aligned columns under their headings, and a title above.

    ``>`` before a heading sets a column of numbers to the right; all empty make no
    line.
    """

    def __init__(self, *headings: str, title: str = "") -> None:
        self.drawn = RichTable(
            box=None,
            pad_edge=False,
            header_style="bold",
            show_header=any(headings),
        )
        for heading in headings:
            number = heading.startswith(">")
            self.drawn.add_column(
                plain(heading.removeprefix(">")),
                justify="right" if number else "left",
                no_wrap=number,
                overflow="fold",
            )
        self._title = title

    def add(self, *cells: str, style: str = "") -> None:
        """Add a row; cells that it lacks are empty."""
        self.drawn.add_row(*map(plain, cells), style=style)

    def show(self, out: TextIO) -> None:
        """Print it."""
        if self._title:
            say(out, f"{self._title}\n", style="bold")
        console = console_of(out)
        with console.capture() as captured:
            console.print(self.drawn)
        out.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))


class Bar(progress.Progress):
    """A bar while its block lasts, and what stands beneath it; nothing where nothing is redrawn.

    What others print meanwhile goes above, and at the end bar and lines are gone. It
    lasts once. ``total`` steps, None where nobody knows, of which ``done`` are done
    before. What stands beneath is asked again and again.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        out: TextIO,
        *,
        done: int = 0,
        beneath: Callable[[], RenderableType] | None = None,
    ) -> None:
        counted = (
            progress.BarColumn(30, complete_style="green", finished_style="green"),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        self._beneath = beneath
        super().__init__(
            progress.TextColumn("{task.description}", markup=False),
            *(() if total is None else counted),
            progress.TextColumn("{task.fields[note]}", markup=False),
            console=console_of(out),
            refresh_per_second=4,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
            disable=not redraws(out),
        )
        self._steps = self.add_task(
            what,
            total=total,
            completed=done,
            note="",
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield what is drawn, for rich."""
        yield from super().get_renderables()
        if self._beneath is not None:
            yield self._beneath()

    def at(self, done: int, note: str = "") -> None:
        """So many steps are done; the note stands behind the bar."""
        self.update(self._steps, completed=done, note=plain(note).plain)

    def count_from_now(self) -> None:
        """Begin anew: the time that it took, and what is left by that, are of what follows."""
        self.reset(self._steps, note="")
