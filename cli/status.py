"""`precad status`: ask a server where its training stands."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from precad.cli.options import PATH
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Misconfiguration, PeerUnavailable
from precad.common.identifiers import Role
from precad.common.terminal.text import Table, fitting, width_of

if TYPE_CHECKING:
    from precad.protos import precad_pb2 as pb

ENDED = ("done", "stopped")
TIMEOUT_S = 10.0


@click.command()
@click.argument("address", help="The server, as host:port.")
@click.option("--server", default="a", help="Which one it must be: a or b.")
@click.option(
    "--identity",
    type=PATH,
    required=True,
    help="The operator's folder, as `precad keys` writes it.",
)
@click.option("--watch", "-w", is_flag=True, help="A live screen, until the training is over.")
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, help="Seconds between two looks."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(
    address: str, server: str, identity: Path, watch: bool, every: float, as_json: bool
) -> None:
    """Ask a server where its training stands: for operators.

    Phase, rounds done, the model's digest, who took part how often, what was rejected and why:

        precad status a.example:7301 --identity keys/operator

    With --watch the screen follows the training, through a server's absence too, and ends with it.
    """
    from precad.common.identity.credentials import Identity  # noqa: PLC0415
    from precad.common.wire.operator import OperatorConnection  # noqa: PLC0415

    if server not in ("a", "b"):
        raise Misconfiguration("--server", server, "use a or b")
    if watch and as_json:
        raise Misconfiguration("--watch", "with --json", "choose one of them")
    role = Role.SERVER_A if server == "a" else Role.SERVER_B
    connection = OperatorConnection(address, role, Identity.load(identity))

    def ask() -> "pb.StatusReply":
        return connection.status(timeout_s=TIMEOUT_S)

    try:
        if watch:
            _watch(sys.stdout, ask, every)
            return
        facts = _facts(ask())
    finally:
        connection.close()
    if as_json:
        print(json.dumps(facts))  # noqa: T201 -- the document that was asked for
        return
    _table(facts).show(sys.stdout)


def _facts(reply: "pb.StatusReply") -> dict[str, Any]:
    return {
        "role": reply.role,
        "task": reply.task_name,
        "task_digest": reply.task_digest.hex(),
        "phase": reply.phase,
        "error": reply.error,
        "enrolled": reply.enrolled,
        "version": reply.version,
        "rounds": reply.rounds,
        "model_digest": reply.model_digest.hex(),
        "rejected": dict(reply.rejected),
        "participations": dict(reply.participations),
        "bytes": dict(reply.bytes_by_link),
        "redrawn_coins": reply.redrawn_coins,
        "kernel": reply.kernel,
        "workers": reply.workers,
        "most_owners": reply.most_owners,
        "least_owners": reply.least_owners,
        "enrolment_left_s": round(reply.enrolment_left_s),
        "missing": list(reply.missing),
        "unused_tokens": reply.unused_tokens,
        "twice": dict(reply.twice),
    }


def _table(facts: dict[str, Any]) -> Table:
    table = Table("", "")
    for name, value in facts.items():
        shown = value
        if isinstance(value, dict):
            shown = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            shown = ", ".join(value)
        table.add(name.replace("_", " "), str(shown) or "–")
    return table


def _watch(
    out: TextIO,
    ask: Callable[[], "pb.StatusReply"],
    every: float,
    clock: Clock = CLOCK,
) -> None:
    """Redraw until the training is over; a server that doesn't answer is asked again."""
    pace = _Pace()
    facts: dict[str, Any] | None = None
    drawn = 0
    while True:
        try:
            facts, gone = _facts(ask()), ""
            pace.at(facts["version"], clock.now())
        except PeerUnavailable as error:
            gone = f"no answer ({error}); asking again every {every:g} s"
        width = width_of(out)
        lines = [fitting(line, width) for line in _screen(facts, pace, gone)]
        # Up over what was drawn last, each line anew, and what is left of it away.
        up = f"\x1b[{drawn}A" if drawn else ""
        click.echo(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J", out, nl=False)
        drawn = len(lines)
        if facts is not None and facts["phase"] in ENDED:
            return
        clock.sleep(every)


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


_SEEN = 2


def _reminders(facts: dict[str, Any]) -> list[str]:
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


def _screen(facts: dict[str, Any] | None, pace: _Pace, gone: str) -> list[str]:
    """The lines to show."""
    if facts is None:
        return [click.style(gone, fg="yellow")]
    done, total = facts["version"], facts["rounds"]
    filled = _WIDTH * done // max(total, 1)
    taken = facts["participations"].values()
    # By owner it would be a page where there are a thousand; without --watch each is listed.
    often = f", each took part {min(taken)} to {max(taken)} times" if taken else ""
    rejected = facts["rejected"]
    return [
        click.style(f"{facts['role']}, {facts['task']}", underline=True),
        click.style(
            f"{facts['phase']}: round {done} of {total}{pace.words(total - done)}", bold=True
        ),
        click.style("━" * filled, fg="green") + click.style("━" * (_WIDTH - filled), dim=True),
        f"{facts['enrolled']} owners enrolled{often}",
        *_reminders(facts),
        f"rejected: {', '.join(f'{k} {v}' for k, v in sorted(rejected.items()))}"
        if rejected
        else click.style("nothing rejected", fg="green"),
        f"{sum(facts['bytes'].values()) / 1e6:,.1f} MB sent and received",
        click.style(
            f"model {facts['model_digest'][:16]}…, projections by {facts['kernel']}", dim=True
        ),
        *(click.style(text, fg="yellow") for text in (facts["error"], gone) if text),
    ]


_WIDTH = 60
