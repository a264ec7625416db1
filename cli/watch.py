"""`precad status --watch`: a live screen, or a line a change where nobody's terminal is."""

from collections.abc import Callable
from typing import Any, TextIO

import click

from precad.common.clock import CLOCK, Clock
from precad.common.errors import PeerUnavailable
from precad.common.terminal.text import fitting, width_of

ENDED = ("done", "stopped")
_WIDTH = 60
"""Of the bar, at most."""
_SEEN = 2
"""Rounds that must have been seen to end before one is said how long it takes."""


def watch(
    out: TextIO,
    ask: Callable[[], dict[str, Any]],
    every: float,
    clock: Clock = CLOCK,
) -> None:
    """Show where a training stands until it is over; who doesn't answer is asked again.

    Args:
        out: a terminal is redrawn; anything else, a file or a container's log, gets one line
            whenever something has changed.
        ask: the server's facts now, as `precad status --json` prints them. Raises PeerUnavailable.
        every: seconds between two looks.
        clock: passes the time.
    """
    pace = _Pace()
    drawn = _Screen(out) if out.isatty() else _Lines(out)
    facts: dict[str, Any] | None = None
    while True:
        try:
            facts, gone = ask(), ""
            pace.at(facts["version"], clock.now())
        except PeerUnavailable as error:
            gone = f"no answer ({error}); asking again every {every:g} s"
        drawn.show(facts, pace, gone)
        if facts is not None and facts["phase"] in ENDED:
            return
        clock.sleep(every)


def reminders(facts: dict[str, Any]) -> list[str]:
    """Who is still to come while owners enrol, and who came twice."""
    lines: list[str] = []
    if facts["phase"] == "enrolling":
        least, most = facts["least_owners"], facts["most_owners"]
        left = facts["enrolment_left_s"] / 3600
        lines.append(f"enrolment takes {least} to {most} owners, for {left:.1f} hours more")
    if facts["missing"]:
        lines.append(click.style(f"not enrolled yet: {', '.join(facts['missing'])}", fg="yellow"))
    if facts["unused_tokens"]:
        # Whoever has one brings it under its own name: nobody knows it before.
        said = (
            f"{facts['unused_tokens']} enrolment tokens, made for nobody by name, aren't used yet"
        )
        lines.append(click.style(said, fg="yellow"))
    if facts["twice"]:
        names = ", ".join(f"{name} ({n} times)" for name, n in sorted(facts["twice"].items()))
        said = f"a second process came under the name of {names}"
        lines.append(click.style(said, fg="red", bold=True))
    return lines


class _Pace:
    """How long a round takes, by what was seen since the watch began."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def at(self, version: int, now: float) -> None:
        """A look."""
        if self._first is None:
            self._first = version, now
        if self._last is None or version > self._last[0]:
            self._last = version, now

    def words(self, rounds: int) -> str:
        """How long a round takes and ``rounds`` more will; nothing before two were seen to end."""
        if self._first is None or self._last is None or self._last[0] - self._first[0] < _SEEN:
            return ""
        each = (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
        left = f", about {rounds * each:.0f} s left" if rounds else ""
        return f", {each:.2g} s each{left}"


class _Screen:
    """On a terminal: the same lines, drawn anew."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = 0

    def show(self, facts: dict[str, Any] | None, pace: _Pace, gone: str) -> None:
        """What there is to see now."""
        width = width_of(self._out)
        lines = [fitting(line, width) for line in _screen(facts, pace, gone, width)]
        # Up over what was drawn last, each line anew, and what is left of it away.
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        text = up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J"
        click.echo(text, self._out, nl=False)
        self._drawn = len(lines)


class _Lines:
    """Anywhere else: a line whenever something that a person waits for has changed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._seen: object = None

    def show(self, facts: dict[str, Any] | None, pace: _Pace, gone: str) -> None:
        """A line, or none; the time left and the bytes change with every look and aren't news."""
        news = gone if facts is None else (gone, *(facts[name] for name in _NEWS))
        if news == self._seen:
            return
        self._seen = news
        click.echo(gone if facts is None else _line(facts, pace, gone), self._out)


_NEWS = ("phase", "version", "enrolled", "missing", "twice", "rejected", "error")


def _line(facts: dict[str, Any], pace: _Pace, gone: str) -> str:
    parts = [
        f"{facts['role']}, {facts['task']}: {_position(facts, pace)}",
        f"{facts['enrolled']} owners enrolled",
        *reminders(facts),
        *([_rejected(facts)] if facts["rejected"] else []),
        *filter(None, (facts["error"], gone)),
    ]
    return "; ".join(parts)


def _position(facts: dict[str, Any], pace: _Pace) -> str:
    done, total = facts["version"], facts["rounds"]
    return f"{facts['phase']}: round {done} of {total}{pace.words(total - done)}"


def _rejected(facts: dict[str, Any]) -> str:
    return "rejected: " + ", ".join(f"{k} {v}" for k, v in sorted(facts["rejected"].items()))


def _screen(facts: dict[str, Any] | None, pace: _Pace, gone: str, width: int | None) -> list[str]:
    """The lines to show."""
    if facts is None:
        return [click.style(gone, fg="yellow")]
    bar = _WIDTH if width is None else min(_WIDTH, width - 1)
    filled = bar * facts["version"] // max(facts["rounds"], 1)
    taken = facts["participations"].values()
    # By owner it would be a page where there are a thousand; without --watch each is listed.
    often = f", each took part {min(taken)} to {max(taken)} times" if taken else ""
    return [
        click.style(f"{facts['role']}, {facts['task']}", underline=True),
        click.style(_position(facts, pace), bold=True),
        click.style("━" * filled, fg="green") + click.style("━" * (bar - filled), dim=True),
        f"{facts['enrolled']} owners enrolled{often}",
        *reminders(facts),
        _rejected(facts) if facts["rejected"] else click.style("nothing rejected", fg="green"),
        f"{sum(facts['bytes'].values()) / 1e6:,.1f} MB sent and received",
        click.style(
            f"model {facts['model_digest'][:16]}…, projections by {facts['kernel']}", dim=True
        ),
        *(click.style(text, fg="yellow") for text in (facts["error"], gone) if text),
    ]
