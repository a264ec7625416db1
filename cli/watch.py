"""`precad status --watch`: a live screen, or a line a change where nobody's terminal is."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TextIO

import click

from precad.common.clock import CLOCK, Clock
from precad.common.errors import PeerUnavailable
from precad.common.terminal.text import fitting, height_of, width_of

ENDED = ("done", "stopped")
_WIDTH = 60
"""Of the bar, at most."""
_SEEN = 2
"""Rounds that must have been seen to end before one is said how long it takes."""
_LATE_S, _HANGS_S = 1.0, 5.0
"""Nobody waits longer for one task's answer to see the others'; later that is said."""
Ask = Callable[[], dict[str, Any]]
"""A server's facts now, as `precad status --json` prints them. Raises PeerUnavailable."""


def watch(out: TextIO, asks: Mapping[str, Ask], every: float, clock: Clock = CLOCK) -> None:
    """Show where trainings stand until all are over; who doesn't answer is asked again.

    Args:
        out: a terminal is redrawn; anything else, a file or a container's log, gets one line
            whenever something has changed.
        asks: by the task's name; without one where it is the only task. Each is asked in a thread
            of its own, so that one that hangs holds up no other.
        every: seconds between two looks.
        clock: passes the time.
    """
    tasks = [_Task(name, ask) for name, ask in asks.items()]
    drawn = _Screen(out) if out.isatty() else _Lines(out)
    pool = ThreadPoolExecutor(len(tasks))
    try:
        while True:
            _look(tasks, pool, every, clock)
            drawn.show(tasks)
            if all(task.over for task in tasks):
                return
            clock.sleep(every)
    finally:
        # Who asked for this closes the connections: no question goes on.
        pool.shutdown(wait=False, cancel_futures=True)


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


@dataclass(slots=True)
class _Task:
    """One training, as far as it is known."""

    name: str
    ask: Ask
    facts: dict[str, Any] | None = None
    gone: str = ""
    """Why the last question had no answer."""
    pace: _Pace = field(default_factory=_Pace)
    asked: "Future[dict[str, Any]] | None" = None
    asked_at: float = 0.0

    @property
    def over(self) -> bool:
        return self.facts is not None and self.facts["phase"] in ENDED


def _look(tasks: list[_Task], pool: ThreadPoolExecutor, every: float, clock: Clock) -> None:
    """Ask every task whose last question isn't under way; take what is answered soon."""
    for task in tasks:
        if task.asked is None:
            task.asked, task.asked_at = pool.submit(task.ask), clock.now()
    alone = len(tasks) == 1
    wait([task.asked for task in tasks if task.asked], None if alone else _LATE_S)
    for task in tasks:
        if task.asked is None or not task.asked.done():
            if clock.now() - task.asked_at >= _HANGS_S:
                task.gone = task.gone or "no answer yet"
            continue
        asked, task.asked = task.asked, None
        try:
            task.facts, task.gone = asked.result(), ""
            task.pace.at(task.facts["version"], clock.now())
        except PeerUnavailable as error:
            task.gone = f"no answer ({error}); asking again every {every:g} s"


class _Screen:
    """On a terminal: the same lines, drawn anew."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = 0

    def show(self, tasks: list[_Task]) -> None:
        """What there is to see now."""
        width, height = width_of(self._out), height_of(self._out)
        if len(tasks) == 1:
            shown = _screen(tasks[0], width)
        else:
            blocks = [_block(task, width) for task in tasks]
            shown = [line for block in blocks for line in block]
            if height is not None and len(shown) >= height:
                # A line each: what a terminal has pushed out can't be drawn anew.
                shown = [line for block in blocks for line in block[:1]][: height - 1]
        lines = [fitting(line, width) for line in shown]
        # Up over what was drawn last, each line anew, and what is left of it away.
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        text = up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J"
        click.echo(text, self._out, nl=False)
        self._drawn = len(lines)


class _Lines:
    """Anywhere else: a line whenever something that a person waits for has changed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._seen: dict[str, object] = {}

    def show(self, tasks: list[_Task]) -> None:
        """A line a task, or none; the time left and the bytes change with every look."""
        for task in tasks:
            facts = task.facts
            if facts is None and not task.gone:
                continue
            news = task.gone if facts is None else (task.gone, *(facts[name] for name in _NEWS))
            if news == self._seen.get(task.name):
                continue
            self._seen[task.name] = news
            name = f"{task.name}: " if task.name else ""
            click.echo(name + (task.gone if facts is None else _line(facts, task)), self._out)


_NEWS = ("phase", "version", "enrolled", "missing", "twice", "rejected", "error")


def _line(facts: dict[str, Any], task: _Task) -> str:
    parts = [
        f"{facts['role']}, {facts['task']}: {_position(facts, task.pace)}",
        f"{facts['enrolled']} owners enrolled",
        *reminders(facts),
        *([_rejected(facts)] if facts["rejected"] else []),
        *filter(None, (facts["error"], task.gone)),
    ]
    return "; ".join(parts)


def _position(facts: dict[str, Any], pace: _Pace) -> str:
    done, total = facts["version"], facts["rounds"]
    return f"{facts['phase']}: round {done} of {total}{pace.words(total - done)}"


def _rejected(facts: dict[str, Any]) -> str:
    return "rejected: " + ", ".join(f"{k} {v}" for k, v in sorted(facts["rejected"].items()))


def _bar(facts: dict[str, Any], width: int | None) -> str:
    bar = _WIDTH if width is None else min(_WIDTH, width - 1)
    filled = bar * facts["version"] // max(facts["rounds"], 1)
    return click.style("━" * filled, fg="green") + click.style("━" * (bar - filled), dim=True)


def _troubles(facts: dict[str, Any], task: _Task) -> list[str]:
    return [click.style(text, fg="yellow") for text in (facts["error"], task.gone) if text]


def _block(task: _Task, width: int | None) -> list[str]:
    """A task among several: where it stands, and whatever a person should know."""
    facts, name = task.facts, click.style(task.name, underline=True)
    if facts is None:
        return [f"{name}  {click.style(task.gone or 'asking', fg='yellow')}", ""]
    lines = [
        f"{name}  {click.style(_position(facts, task.pace), bold=True)}",
        _bar(facts, width),
        f"{facts['role']}; {facts['enrolled']} owners enrolled",
        *reminders(facts),
        *([_rejected(facts)] if facts["rejected"] else []),
        *_troubles(facts, task),
    ]
    return [*lines, ""]


def _screen(task: _Task, width: int | None) -> list[str]:
    """The only task's lines."""
    facts = task.facts
    if facts is None:
        return [click.style(task.gone, fg="yellow")]
    taken = facts["participations"].values()
    # By owner it would be a page where there are a thousand; without --watch each is listed.
    often = f", each took part {min(taken)} to {max(taken)} times" if taken else ""
    return [
        click.style(f"{facts['role']}, {facts['task']}", underline=True),
        click.style(_position(facts, task.pace), bold=True),
        _bar(facts, width),
        f"{facts['enrolled']} owners enrolled{often}",
        *reminders(facts),
        _rejected(facts) if facts["rejected"] else click.style("nothing rejected", fg="green"),
        f"{sum(facts['bytes'].values()) / 1e6:,.1f} MB sent and received",
        click.style(
            f"model {facts['model_digest'][:16]}…, projections by {facts['kernel']}", dim=True
        ),
        *_troubles(facts, task),
    ]
