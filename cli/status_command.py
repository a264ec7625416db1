"""`precad status`: where a server's training stands, once or on a live screen."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeAlias

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from precad.cli.main import ARGUMENT, AsJson, print_json, with_options
from precad.common.addresses import by_proxy
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Misconfiguration, PeerUnavailable
from precad.common.identifiers import Role
from precad.common.terminal import Table, console_of, plain, redraws, say

if TYPE_CHECKING:
    from precad.common.wire.operator_connection import OperatorConnection, ServerStatus

TIMEOUT_S = 10.0
_PROXY = {"envvar": "PRECAD_PROXY"}
Facts: TypeAlias = dict[str, Any]
"""What a server says, as `precad status --json` prints it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedServer:
    """The server that an operator's command asks."""

    address: Annotated[str, "The server, as host:port.", ARGUMENT]
    server: Annotated[Literal["a", "b"], "Which one it must be."] = "a"
    identity: Annotated[Path, "The operator's folder, as `precad keys` writes it."]
    proxy: Annotated[str | None, "Of HTTP, http://[user:password@]host:port.", _PROXY]

    def connection(self) -> "AbstractContextManager[OperatorConnection]":
        """Return the connection until the block ends. Raises Misconfiguration."""
        from precad.common.identity.credentials import Identity  # noqa: PLC0415
        from precad.common.wire.operator_connection import OperatorConnection  # noqa: PLC0415

        address, role = by_proxy(self.address, self.proxy), Role(f"server-{self.server}")
        return closing(OperatorConnection(address, role, Identity.load(self.identity)))


@click.command()
@with_options
def status(
    *,
    at: AskedServer,
    watch: Annotated[bool, "A live screen, until the training is over.", "--watch", "-w"],
    every: Annotated[float, "Seconds between two looks.", click.FloatRange(min=0.2)] = 2.0,
    as_json: AsJson,
) -> None:
    """Ask a server where its training stands: for operators.

    Phase, rounds done, the model's digest, who took part how often, what was rejected and why:

        precad status a.example:7301 --identity keys/operator

    With --watch the screen follows the training, through a server's absence too, and ends with it;
    into a file or a pipe it writes a line for each change.
    """
    if watch and as_json:
        raise Misconfiguration("--watch", "with --json", "choose one of them")
    with at.connection() as connection:

        def ask() -> Facts:
            return facts_of(connection.status(timeout_s=TIMEOUT_S))

        if watch:
            follow(sys.stdout, ask, every)
        elif as_json:
            print_json(ask())
        else:
            _table(ask()).show(sys.stdout)


def facts_of(reply: "ServerStatus") -> Facts:
    """What the server says, as plain values."""
    facts = asdict(reply) | {
        "task": reply.task_name,
        "task_digest": reply.task_digest.hex(),
        "model_digest": reply.model_digest.hex(),
        "bytes": reply.bytes_by_link,
        "enrolment_left_s": round(reply.enrolment_left_s),
    }
    for name in ("task_name", "bytes_by_link", "rejected_by_client", "wire_version"):
        facts.pop(name, None)
    return {n: dict(value) if isinstance(value, Mapping) else value for n, value in facts.items()}


def _table(facts: Facts) -> Table:
    table = Table("", "")
    for name, value in facts.items():
        several = [f"{k} {v}" for k, v in value.items()] if isinstance(value, dict) else value
        shown = ", ".join(several) if isinstance(several, list | tuple) else str(value)
        table.add(name.replace("_", " "), shown or "–")
    return table


# --- the live screen ----------------------------------------------------------------------------

ENDED = ("done", "stopped")
_WIDTH = 60
"""Of the bar, at most."""
_SEEN = 2
"""Rounds that must have been seen to end before one is said how long it takes."""


def follow(out: TextIO, ask: Callable[[], Facts], every: float, clock: Clock = CLOCK) -> None:
    """Show where a training stands until it is over; a server that is away is asked again.

    A terminal is redrawn every so many seconds; anything else, a file or a container's log, gets
    one line whenever something has changed. ``ask`` raises PeerUnavailable.
    """
    facts: Facts | None = None
    seen: list[tuple[int, float]] = []
    news: object = None
    live = Live(console=console_of(out), auto_refresh=False) if redraws(out) else None
    with live or nullcontext():
        while True:
            gone = ""
            try:
                facts = ask()
            except PeerUnavailable as error:
                gone = f"no answer ({error}); asking again every {every:g} s"
            else:
                if not seen or facts["version"] > seen[-1][0]:
                    seen.append((facts["version"], clock.now()))
            if live is not None:
                live.update(_screen(facts, gone, seen), refresh=True)
            elif news != (news := (gone, *((facts or {}).get(name) for name in _NEWS))):
                say(out, gone if facts is None else _line(facts, gone, seen))
            if facts is not None and facts["phase"] in ENDED:
                return
            clock.sleep(every)


_NEWS = ("phase", "version", "enrolled", "missing", "twice", "rejected", "error")
"""What a person waits for; the time left and the bytes change with every look."""


def reminders(facts: Facts) -> list[tuple[str, str]]:
    """Who is still to come while owners enrol, and who came twice; each with its style."""
    lines = []
    if facts["phase"] == "enrolling":
        least, most = facts["least_owners"], facts["most_owners"]
        left = facts["enrolment_left_s"] / 3600
        lines.append((f"enrolment takes {least} to {most} owners, for {left:.1f} hours more", ""))
    if facts["missing"]:
        lines.append((f"not enrolled yet: {', '.join(facts['missing'])}", "yellow"))
    if unused := facts["unused_tokens"]:
        # Whoever has one brings it under its own name: nobody knows it before.
        text = f"{unused} enrolment tokens, made for nobody by name, aren't used yet"
        lines.append((text, "yellow"))
    if facts["twice"]:
        names = ", ".join(f"{name} ({n} times)" for name, n in sorted(facts["twice"].items()))
        lines.append((f"a second process came under the name of {names}", "bold red"))
    return lines


def _line(facts: Facts, gone: str, seen: list[tuple[int, float]]) -> str:
    where = f"{facts['role']}, {facts['task']}: {_position(facts, seen)}"
    reminded = (text for text, _ in reminders(facts))
    parts = (f"{facts['enrolled']} owners enrolled", *reminded, _rejected(facts), facts["error"])
    return "; ".join(filter(None, (where, *parts, gone)))


def _screen(facts: Facts | None, gone: str, seen: list[tuple[int, float]]) -> RenderableType:
    if facts is None:
        return _whole(gone, "yellow")
    taken = facts["participations"].values()
    # By owner it would be a page where there are a thousand; without --watch each is listed.
    often = f", each took part {min(taken)} to {max(taken)} times" if taken else ""
    rejected, megabytes = _rejected(facts), sum(facts["bytes"].values()) / 1e6
    lines = [
        (f"{facts['enrolled']} owners enrolled{often}", ""),
        *reminders(facts),
        (rejected, "") if rejected else ("nothing rejected", "green"),
        (f"{megabytes:,.1f} MB sent and received", ""),
        (f"model {facts['model_digest'][:16]}…, projections by {facts['kernel']}", "dim"),
        *((text, "yellow") for text in (facts["error"], gone) if text),
    ]
    bar = ProgressBar(max(facts["rounds"], 1), facts["version"], _WIDTH)
    bar.complete_style = bar.finished_style = "green"
    return Group(
        _whole(f"{facts['role']}, {facts['task']}", "underline"),
        _whole(_position(facts, seen), "bold"),
        # Alone it ends no line.
        Padding(bar, 0, expand=False),
        *(_whole(text, style) for text, style in lines),
    )


def _whole(text: str, style: str) -> Text:
    line = plain(text, style)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _position(facts: Facts, seen: list[tuple[int, float]]) -> str:
    """The round, how long one takes by what was seen, and what is left by that."""
    done, total = facts["version"], facts["rounds"]
    pace = ""
    if (rounds := seen[-1][0] - seen[0][0]) >= _SEEN:
        each = (seen[-1][1] - seen[0][1]) / rounds
        left = f", about {(total - done) * each:.0f} s left" if done < total else ""
        pace = f", {each:.2g} s each{left}"
    return f"{facts['phase']}: round {done} of {total}{pace}"


def _rejected(facts: Facts) -> str:
    counts = ", ".join(f"{reason} {count}" for reason, count in sorted(facts["rejected"].items()))
    return counts and f"rejected: {counts}"
