"""Words and tables for a person: as wide as the terminal is, and unbroken where there is none."""

import os
import textwrap
from typing import Any, TextIO

import click

_GAP = "  "
_LEAST = 12
"""Characters that a column keeps, however narrow the terminal is."""


def width_of(out: TextIO) -> int | None:
    """Columns of a terminal; None of anything else."""
    size = _size_of(out)
    return None if size is None else size.columns or None


def height_of(out: TextIO) -> int | None:
    """Lines of a terminal; None of anything else."""
    size = _size_of(out)
    return None if size is None else size.lines or None


def _size_of(out: TextIO) -> os.terminal_size | None:
    if not out.isatty():
        return None
    try:
        return os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return None


def fitting(text: str, width: int | None) -> str:
    """A line that a terminal doesn't break: plain and cut where it would be too long."""
    plain = click.unstyle(text)
    if width is None or len(plain) < width:
        return text
    return plain[: width - 2] + "…"


def say(out: TextIO, text: str = "", **style: Any) -> None:
    """Lines of text, broken between words where the terminal is too narrow for one.

    Args:
        out: a terminal gets colours, anything else plain text.
        text: any number of lines.
        style: as ``click.style`` takes it, of all the text.
    """
    width = width_of(out)
    for line in text.split("\n"):
        shown = line
        if width is not None and len(click.unstyle(line)) > width:
            indent = line[: len(line) - len(line.lstrip())]
            shown = textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)
        click.echo(click.style(shown, **style) if style else shown, file=out)


class Table:
    """Aligned columns under their headings.

    Args:
        headings: one a column; ``>`` before it sets a column of numbers to the right. Where all
            are empty there is no line of them.
        title: above it.
    """

    def __init__(self, *headings: str, title: str = "") -> None:
        self._right = [heading.startswith(">") for heading in headings]
        self._headings = [heading.removeprefix(">") for heading in headings]
        self._title = title
        self._rows: list[tuple[list[str], dict[str, Any]]] = []

    def add(self, *cells: str, **style: Any) -> None:
        """A row; cells that it lacks are empty. The style is ``click.style``'s."""
        self._rows.append(([*cells, *[""] * (len(self._headings) - len(cells))], style))

    def lines(self, width: int | None = None) -> list[str]:
        """Each without its line break, in colours; words are broken into more lines to fit."""
        head = any(self._headings)
        every = ([self._headings] if head else []) + [cells for cells, _ in self._rows]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        self._narrow(widths, width)
        lines = [click.style(self._title, bold=True), ""] if self._title else []
        if head:
            lines += self._row(self._headings, widths, {"bold": True})
        for cells, style in self._rows:
            lines += self._row(cells, widths, style)
        return lines

    def show(self, out: TextIO) -> None:
        """Print it."""
        for line in self.lines(width_of(out)):
            click.echo(line, file=out)

    def _narrow(self, widths: list[int], width: int | None) -> None:
        """Take from the widest columns of words what is too much."""
        words = [i for i, right in enumerate(self._right) if not right]
        while width is not None and words and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
            widest = max(words, key=lambda i: widths[i])
            if widths[widest] <= _LEAST:
                return
            widths[widest] -= 1

    def _row(self, cells: list[str], widths: list[int], style: dict[str, Any]) -> list[str]:
        broken = [
            textwrap.wrap(cell, width) if len(cell) > width else [cell]
            for cell, width in zip(cells, widths, strict=True)
        ]
        lines = []
        for number in range(max(map(len, broken))):
            parts = [column[number] if number < len(column) else "" for column in broken]
            line = _GAP.join(
                part.rjust(width) if right else part.ljust(width)
                for part, width, right in zip(parts, widths, self._right, strict=True)
            ).rstrip()
            lines.append(click.style(line, **style) if style else line)
        return lines
