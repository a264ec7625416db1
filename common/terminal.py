"""Output for people: rich's text, tables and bars on a terminal, plain lines elsewhere.

Texts of peers are shown by these functions too: nothing in a text is read as markup,
and no control character gets through.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from decimal import ROUND_CEILING, Context
from typing import TextIO

from pydantic_core import to_jsonable_python
from rich import progress
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text


def console_of(out: TextIO) -> Console:
    """Return rich's console that writes to ``out``.

    Whether it is a terminal is asked of ``out`` alone: no variable of the environment
    makes a file one.
    """
    is_terminal = out.isatty()
    return Console(
        file=out,
        width=None if is_terminal else 10_000,  # columns: no line is broken
        force_terminal=is_terminal,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def json_of(document: object, *, indent: int | None = None) -> str:
    """Return the document as JSON text; NaN and infinities become null."""
    plain_values = to_jsonable_python(document, inf_nan_mode="null")
    return json.dumps(plain_values, indent=indent, allow_nan=False)


def upper(bound: float, digits: int = 4) -> str:
    """Return a bound, as an ε, in so many significant digits, never below its value.

    So the ε that is shown holds, and can be set as a limit.
    """
    nearest = f"{bound:.{digits}g}"
    if float(nearest) >= bound:
        return nearest
    rounding_up = Context(prec=digits, rounding=ROUND_CEILING)
    return f"{float(rounding_up.create_decimal_from_float(bound)):.{digits}g}"


def between(least: float | None, most: float, digits: int = 4) -> str:
    """Return two bounds as ``upper`` has them, or the one where there is one."""
    shown = upper(most, digits)
    if least is None:
        return shown
    return f"{upper(least, digits)} to {shown} by size"


def redraws(out: TextIO) -> bool:
    """Return whether ``out`` is a terminal that can draw a line anew."""
    return out.isatty() and console_of(out).is_interactive


def plain(text: str, style: str = "") -> Text:
    """Return the text as it stands, without control characters, in rich's ``style``."""
    kept = (letter for letter in text if letter.isprintable() or letter == "\n")
    return Text("".join(kept), style)


def say(
    *parts: str | tuple[str, str],
    style: str = "",
    out: TextIO | Console | None = None,
) -> None:
    """Print the parts one after the other, then a line feed; to stdout unless given.

    A terminal gets colours and lines that are broken between words, anything else plain
    text. ``out`` is a bar's console while a bar is shown. A part stands alone or with a
    style of rich's; ``style`` is for all of them.
    """
    texts = [plain(part) if isinstance(part, str) else plain(*part) for part in parts]
    console = out if isinstance(out, Console) else console_of(out or sys.stdout)
    console.print(Text.assemble(*texts, style=style), soft_wrap=not console.is_terminal)


def warn(text: str | None, out: TextIO | None = None) -> None:
    """Print a warning to stderr, or to ``out``; nothing where there is no text."""
    if text:
        say(f"! {text}", style="yellow", out=out or sys.stderr)


class AlignedTable:
    """A table of columns that are aligned under their headings, with a title above.

    ``>`` before a heading marks a column of numbers, which is aligned to the right.
    Where all headings are empty, no line is shown for them.
    """

    def __init__(self, *headings: str, title: str = "") -> None:
        self.drawn = RichTable(
            box=None,
            pad_edge=False,
            header_style="bold",
            show_header=any(headings),
        )
        for heading in headings:
            holds_numbers = heading.startswith(">")
            self.drawn.add_column(
                plain(heading.removeprefix(">")),
                justify="right" if holds_numbers else "left",
                no_wrap=holds_numbers,
                overflow="fold",
            )
        self._title = title

    def add(self, *cells: object, style: str = "") -> None:
        """Add a row; cells that are missing at its end are empty.

        A float is shown in few digits, None as a dash.
        """
        texts = (f"{cell:g}" if isinstance(cell, float) else cell for cell in cells)
        shown = (plain("–" if text is None else str(text)) for text in texts)
        self.drawn.add_row(*shown, style=style)

    def show(self, out: TextIO | None = None) -> None:
        """Print title and table, without blanks at the ends of lines.

        They go to ``out``, or stdout.
        """
        out = out or sys.stdout
        if self._title:
            say(f"{self._title}\n", style="bold", out=out)
        console = console_of(out)
        with console.capture() as captured:
            console.print(self.drawn)
        out.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))


class Bar(progress.Progress):
    """A progress bar while its block lasts; shows nothing where no line can be redrawn.

    Output of others goes above it meanwhile, and at the block's end it is gone. A bar
    is used once.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        out: TextIO,
        *,
        done: int = 0,
        beneath: Callable[[], RenderableType] | None = None,
    ) -> None:
        """Prepare a bar that is labelled ``label``.

        ``total`` is the number of steps, None where nobody knows it; ``done`` of them
        are done already. ``beneath`` is called at every redrawing for what is shown
        beneath the bar.
        """
        columns: list[progress.ProgressColumn] = [
            progress.TextColumn("{task.description}", markup=False)
        ]
        if total is not None:
            columns += [
                progress.BarColumn(30, complete_style="green", finished_style="green"),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
            ]
        columns.append(progress.TextColumn("{task.fields[note]}", markup=False))
        self._beneath = beneath
        super().__init__(
            *columns,
            console=console_of(out),
            refresh_per_second=4,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
            disable=not redraws(out),
        )
        self._steps = self.add_task(
            label,
            total=total,
            completed=done,
            note="",
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield what rich draws: the bar, and what stands beneath it."""
        yield from super().get_renderables()
        if self._beneath is not None:
            yield self._beneath()

    def at(self, done: int, note: str = "") -> None:
        """Show that so many steps are done; the note stands behind the bar."""
        self.update(self._steps, completed=done, note=plain(note).plain)
