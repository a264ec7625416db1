"""`precad serve`, `health`, `allow`, `enrol`, `status`: for those who run a server."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypeAlias

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from precad.cli import start
from precad.cli.main import ARGUMENT, REQUIRED, AsJson, command, digest_of, print_json
from precad.common.checks import read_toml
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Misconfiguration, PeerUnavailable
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.process_settings import by_proxy
from precad.common.terminal import AlignedTable, console_of, plain, redraws, say
from precad.common.wire.calls import OperatorConnection, ServerStatus, is_serving

_PROXY = {"envvar": "PRECAD_PROXY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedServer:
    """The server that an operator's command asks."""

    address: Annotated[str, "The server, as host:port.", ARGUMENT]
    server: Annotated[Literal["a", "b"], "Which one it must be."] = "a"
    identity: Annotated[Path, "The operator's folder, as `precad keys` writes it."]
    proxy: Annotated[str | None, "Of HTTP, http://[user:password@]host:port.", _PROXY]

    def connection(self) -> AbstractContextManager[OperatorConnection]:
        """Return the connection until the block ends. Raises Misconfiguration."""
        address = by_proxy(self.address, self.proxy)
        role = Role(f"server-{self.server}")
        return closing(OperatorConnection(address, role, Identity.load(self.identity)))


@command()
def serve(
    part: Annotated[Literal["a", "b", "dealer"], "Which server.", ARGUMENT],
    config: Annotated[Path, "The settings file.", "--config", "-c"],
) -> None:
    """Run server A, server B or the dealer from its settings file (TOML).

    a: the leader, selects the cohort, drives rounds, serves the model. b: the helper, holds the
    second share, adds its own noise, checks what A proposes. dealer: correlated randomness for the
    two; sees no client data. A task whose owners prove their norms has none.

    Start the dealer, if any, then B, then A; each waits for the others within the task's deadlines.
    A settings file for A:

    \b
        task = "task.toml"
        listen = "0.0.0.0:7301"
        server_b = "server-b.example:7302"
        dealer = "dealer.example:7303"      # not where norms are proved
        state = "state-a"
        identity = "keys/server-a"

    B's has no server_b, the dealer's only task, listen and identity. Each task has a settings
    file and a process of its own (docs/several-tasks.md).
    """  # noqa: D301 -- click reads the control character
    sys.exit(start.serve(part, config))


@command()
def allow(
    word: Annotated[str, "attempts, write-off, claimed or coin.", ARGUMENT],
    at: AskedServer,
    version: Annotated[int, "The version that waits, as its status says."],
) -> None:
    """Let a training go on that waits for the operators of both servers.

    `precad status` says what it waits for. The operators of the other server say the same to
    theirs; before both have, nothing happens.

    attempts: go on trying a version of which many attempts failed, or of which a release may have
    left already: releasing it again costs every drawn owner privacy, and the ledgers count it.

    write-off: give an attempt up that the other server has lost. Its charge stands.

    claimed: charge attempts that one server alone has heard of, three more with each word.

    coin: take new coins for the version, because a server has lost its coin key.

    \b
        precad allow attempts a.example:7301 --version 7 --identity keys/operator
    """  # noqa: D301 -- click reads the control character
    with at.connection() as connection:
        until = connection.allow(word, version)
    about = f"{word} for version {version}, up to attempt {until}"
    click.echo(f"server-{at.server} has the word: {about}")


@command()
def health(
    config: Annotated[Path, "The part's settings file.", "--config", "-c"],
    wait: Annotated[
        float, "Seconds that it may take to answer.", click.FloatRange(min=0.1)
    ] = 5.0,
) -> None:
    """Ask the server or dealer of this machine whether it serves: 0 if so, else 1.

    By gRPC's health protocol, at the port of its own settings and with its own
    certificate; for containers, systemd and Kubernetes, which then start it again.

        precad health --config settings.toml
    """
    settings = read_toml("config", config)
    listen = settings.get("listen")
    folder = settings.get("identity")
    if not isinstance(listen, str) or not isinstance(folder, str):
        remedy = "needs listen and identity, as those of a server and a dealer"
        raise Misconfiguration("config", str(config), remedy)
    host, _, port = listen.rpartition(":")
    own = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    identity = Identity.load(config.resolve().parent / folder)
    role = identity.principal.role
    serves = is_serving(f"{own}:{port}", role, identity, timeout_s=wait)
    click.echo(f"{role.value}: {'serving' if serves else 'not serving'}")
    sys.exit(0 if serves else 1)


@click.group()
def enrol() -> None:
    """Who may enrol in a task.

    A server's settings say which way it is:

    \b
        enrolment = "open"                 any client with a certificate (the default)
        enrolment = "roster"               those in the file that `roster` names,
        roster = "roster.toml"             with just these records and rates
        enrolment = "token"                who brings a token made here

    The roster, the same at both servers, has one table a client:

    \b
        [[clients]]
        client = "ward-3"
        records = 120
        record_rate = 0.2

    Always within the task's caps, and never once round 0 has begun.
    """  # noqa: D301 -- click reads the control character


States = Annotated[
    tuple[Path, ...], "A server's state folder; may be repeated.", REQUIRED
]


@command(enrol)
def token(
    *,
    state: States,
    count: Annotated[int, "How many.", click.IntRange(min=1, max=10_000)] = 1,
    digest: Annotated[
        tuple[Digest, ...], "Accept this digest's token, made elsewhere.", digest_of
    ],
    client: Annotated[
        tuple[str, ...],
        "Whom a token is for; may be repeated. Nobody else can use it, and status says"
        " who is "
        "missing.",
    ],
    as_json: AsJson,
) -> None:
    """Make one-time tokens that these servers accept; each is its client's, or its first user's.

    A client needs one token for both servers. Where A and B have operators of their
    own, one makes the token and tells the other its digest, which is no secret and no
    token:

        precad enrol token --state state-a --client ward-3                  (A's operator)
        precad enrol token --state state-b --client ward-3 --digest 5d0c…   (B's operator)

    Each line on stdout is a token and, after the word digest, its digest.

    Servers keep digests only: a token is shown once, here. Give it to one client, over
    a channel that nobody else reads; it goes into the client's settings as `token =
    "…"`. Run this as the server's user; a running server takes new tokens at once.
    """
    from precad.aggregator.enrol.admission import ByToken, new_token, token_digest  # noqa: PLC0415

    if (digest or client) and count > 1:
        raise Misconfiguration(
            "count", count, "leave it out beside --digest or --client"
        )
    if digest and len(client) not in (0, len(digest)):
        raise Misconfiguration(
            "client", len(client), "give one for each --digest, in its order"
        )
    named: list[ClientId | None] = [ClientId(name) for name in client]
    made = [] if digest else [new_token() for _ in range(len(named) or count)]
    digests = [*digest] or [token_digest(each) for each in made]
    for book in map(ByToken, state):
        for accepted, whose in zip(
            digests, named or [None] * len(digests), strict=True
        ):
            book.add(accepted, whose)
    if as_json:
        print_json({"tokens": made, "digests": [str(each) for each in digests]})
        return
    for number, accepted in enumerate(digests):
        click.echo(
            f"{made[number]} digest {accepted}" if made else f"digest {accepted}"
        )


@command(enrol)
def show(state: States, as_json: AsJson) -> None:
    """A server's tokens, by digest, and whose they became."""
    from precad.aggregator.enrol.admission import ByToken  # noqa: PLC0415

    tokens = {str(folder): ByToken(folder).owners().items() for folder in state}
    if as_json:
        print_json(
            {
                f: [{"digest": d, "client": c} for d, c in each]
                for f, each in tokens.items()
            }
        )
        return
    for folder, found in tokens.items():
        for digest, client in found:
            click.echo(f"{folder} {digest} {client or 'unused'}")


Facts: TypeAlias = dict[str, Any]
"""What a server says, as `precad status --json` prints it."""


@command()
def status(
    *,
    at: AskedServer,
    watch: Annotated[
        bool, "A live screen, until the training is over.", "--watch", "-w"
    ],
    every: Annotated[
        float, "Seconds between two looks.", click.FloatRange(min=0.2)
    ] = 2.0,
    as_json: AsJson,
) -> None:
    """Ask a server where its training stands: for operators.

    Phase, rounds done, the model's digest, who took part how often, what was rejected
    and why:

        precad status a.example:7301 --identity keys/operator

    With --watch the screen follows the training, through a server's absence too, and
    ends with it; into a file or a pipe it writes a line for each change.
    """
    if watch and as_json:
        raise Misconfiguration("--watch", "with --json", "choose one of them")
    with at.connection() as connection:

        def ask() -> Facts:
            return facts_of(connection.status(timeout_s=10.0))

        if watch:
            follow(sys.stdout, ask, every)
        elif as_json:
            print_json(ask())
        else:
            _table(ask()).show(sys.stdout)


def facts_of(reply: ServerStatus) -> Facts:
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
    return {
        n: dict(value) if isinstance(value, Mapping) else value
        for n, value in facts.items()
    }


def _table(facts: Facts) -> AlignedTable:
    table = AlignedTable("", "")
    for name, value in facts.items():
        several = (
            [f"{k} {v}" for k, v in value.items()] if isinstance(value, dict) else value
        )
        shown = ", ".join(several) if isinstance(several, list | tuple) else str(value)
        table.add(name.replace("_", " "), shown or "–")
    return table


ENDED = ("done", "stopped")
_WIDTH = 60
"""Of the bar, at most."""
_SEEN = 2
"""Rounds that must have been seen to end before one is said how long it takes."""


def follow(
    out: TextIO,
    ask: Callable[[], Facts],
    every: float,
    clock: Clock = CLOCK,
) -> None:
    """Show where a training stands until it is over; a server that is away is asked again."""
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
        least = facts["least_owners"]
        most = facts["most_owners"]
        left = facts["enrolment_left_s"] / 3600
        lines.append(
            (f"enrolment takes {least} to {most} owners, for {left:.1f} hours more", "")
        )
    if facts["missing"]:
        lines.append((f"not enrolled yet: {', '.join(facts['missing'])}", "yellow"))
    unused = facts["unused_tokens"]
    if unused:
        # Whoever has one brings it under its own name: nobody knows it before.
        text = f"{unused} enrolment tokens, made for nobody by name, aren't used yet"
        lines.append((text, "yellow"))
    if facts["twice"]:
        names = ", ".join(
            f"{name} ({n} times)" for name, n in sorted(facts["twice"].items())
        )
        lines.append((f"a second process came under the name of {names}", "bold red"))
    return lines


def _line(facts: Facts, gone: str, seen: list[tuple[int, float]]) -> str:
    where = f"{facts['role']}, {facts['task']}: {_position(facts, seen)}"
    reminded = (text for text, _ in reminders(facts))
    parts = (
        f"{facts['enrolled']} owners enrolled",
        *reminded,
        _rejected(facts),
        facts["error"],
    )
    return "; ".join(filter(None, (where, *parts, gone)))


def _screen(
    facts: Facts | None, gone: str, seen: list[tuple[int, float]]
) -> RenderableType:
    if facts is None:
        return _whole(gone, "yellow")
    taken = facts["participations"].values()
    # By owner it would be a page where there are a thousand; without --watch each is
    # listed.
    often = f", each took part {min(taken)} to {max(taken)} times" if taken else ""
    rejected = _rejected(facts)
    megabytes = sum(facts["bytes"].values()) / 1e6
    lines = [
        (f"{facts['enrolled']} owners enrolled{often}", ""),
        *reminders(facts),
        (rejected, "") if rejected else ("nothing rejected", "green"),
        (f"{megabytes:,.1f} MB sent and received", ""),
        (
            f"model {facts['model_digest'][:16]}…, projections by {facts['kernel']}",
            "dim",
        ),
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
    line.no_wrap = True
    line.overflow = "ellipsis"
    return line


def _position(facts: Facts, seen: list[tuple[int, float]]) -> str:
    """The round, how long one takes by what was seen, and what is left by that."""
    done = facts["version"]
    total = facts["rounds"]
    pace = ""
    rounds = seen[-1][0] - seen[0][0]
    if rounds >= _SEEN:
        each = (seen[-1][1] - seen[0][1]) / rounds
        left = f", about {(total - done) * each:.0f} s left" if done < total else ""
        pace = f", {each:.2g} s each{left}"
    return f"{facts['phase']}: round {done} of {total}{pace}"


def _rejected(facts: Facts) -> str:
    counts = ", ".join(
        f"{reason} {count}" for reason, count in sorted(facts["rejected"].items())
    )
    return counts and f"rejected: {counts}"
