"""`precad serve`, `health`, `allow`, `enrol`, `status`: for those who run a server."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Annotated, Literal, TextIO

import click
from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from precad.cli import (
    ARGUMENT,
    REQUIRED,
    AsJson,
    JsonObject,
    command,
    digest_of,
    print_json,
    start,
)
from precad.common import (
    CLOCK,
    AlignedTable,
    ClientId,
    Clock,
    Digest,
    Misconfiguration,
    PeerUnavailable,
    Role,
    by_proxy,
    console_of,
    frozen_kw_only_dataclass,
    parsed_toml,
    plain,
    redraws,
    say,
)
from precad.common.identity import Identity, ends_soon
from precad.common.wire import OperatorConnection, ServerStatus, is_serving, values_of

_PROXY = {"envvar": "PRECAD_PROXY"}
"""The environment variable that has the proxy's address where no option gives it."""


@frozen_kw_only_dataclass
class AskedServer:
    """The server that an operator's command asks, and as whom."""

    address: Annotated[str, "The server, as host:port.", ARGUMENT]
    server: Annotated[Literal["a", "b"], "Which one it must be."] = "a"
    identity: Annotated[Path, "The operator's folder, as `precad keys` writes it."]
    proxy: Annotated[str | None, "Of HTTP, http://[user:password@]host:port.", _PROXY]

    def connection(self) -> AbstractContextManager[OperatorConnection]:
        """Return the connection to the server, which lasts as long as its block.

        It goes through the proxy if one is given. Whoever answers has to have the
        certificate of the server that was asked for. Raises Misconfiguration: the
        address or the identity is wrong.
        """
        address = by_proxy(self.address, self.proxy)
        role = Role(f"server-{self.server}")
        return closing(OperatorConnection(address, role, Identity.load(self.identity)))


@command()
def serve(
    part: Annotated[Literal["a", "b", "dealer"], "Which server.", ARGUMENT],
    config: Annotated[Path, "The settings file.", "--config", "-c"],
) -> None:
    """Run server A, server B or the dealer from its settings file (TOML).

    a: the leader, selects the cohort, drives rounds, serves the model. b: the helper,
    holds the second share, adds its own noise, checks what A proposes. dealer:
    correlated randomness for the two; sees no client data. A task whose owners prove
    their norms has none.

    Start the dealer, if any, then B, then A; each waits for the others within the
    task's deadlines. A settings file for A:

    \b
        task = "task.toml"
        listen = "0.0.0.0:7301"
        server_b = "server-b.example:7302"
        dealer = "dealer.example:7303"      # not where norms are proved
        state = "state-a"
        identity = "keys/server-a"

    B's has no server_b, the dealer's only task, listen and identity. Each task has a
    settings file and a process of its own (docs/several-tasks.md).

    Exit status: 0 at the training's end, or when told to stop; 2 for a mistake that a
    person must mend; 75 for what may pass, such as an address that isn't up yet; 1 for
    the rest, which another start may mend (docs/exit-statuses.md).
    """  # noqa: D301 -- click reads the control character
    sys.exit(start.serve(part, config))


@command()
def allow(
    word: Annotated[str, "attempts, write-off, claimed, coin or few.", ARGUMENT],
    asked: AskedServer,
    version: Annotated[int, "The version that waits, as its status says."],
) -> None:
    """Let a training go on that waits for the operators of both servers.

    `precad status` says what it waits for. The operators of the other server say the
    same to theirs; before both have, nothing happens.

    attempts: go on trying a version of which many attempts failed, or of which a
    release may have left already: releasing it again costs every drawn owner privacy,
    and the ledgers count it.

    write-off: give an attempt up that the other server has lost. Its charge stands.

    claimed: charge attempts that one server alone has heard of, three more with each
    word.

    coin: take new coins for the version, because a server has lost its coin key.

    few: play three more rounds although fewer owners count than the task's
    training.least_counted.

    \b
        precad allow attempts a.example:7301 --version 7 --identity keys/operator
    """  # noqa: D301 -- click reads the control character
    with asked.connection() as connection:
        last_attempt = connection.allow(word, version)
    allowed = f"{word} for version {version}, up to attempt {last_attempt}"
    click.echo(f"server-{asked.server} has the word: {allowed}")


class _Serving(BaseModel):
    """Of the settings of a server or a dealer, what says where it serves, and as whom.

    Paths are relative to their file.
    """

    listen: str
    identity: Path
    key_passphrase_file: Path | None = None


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
    settings = parsed_toml(_Serving, "config", config)
    host, _, port = settings.listen.rpartition(":")
    # Who listens on all addresses is asked at this machine's own.
    loopback = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104
    address = f"{loopback.get(host, host)}:{port}"
    here = config.resolve().parent
    passphrase_file = settings.key_passphrase_file
    if passphrase_file is not None:
        passphrase_file = here / passphrase_file
    identity = Identity.load(here / settings.identity, passphrase_file)
    role = identity.principal.role
    serves = is_serving(address, role, identity, timeout_s=wait)
    click.echo(f"{role.value}: {'serving' if serves else 'not serving'}")
    for sentence in ends_soon(identity):
        click.echo(sentence)
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
"""The option of commands that change or read servers' tokens."""


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
        " who is missing.",
    ],
    as_json: AsJson,
) -> None:
    """Make one-time tokens that these servers accept.

    Each is its client's, or its first user's.

    A client needs one token for both servers. Where A and B have operators of their
    own, one makes the token and tells the other its digest, which is no secret and no
    token:

    \b
        precad enrol token --state state-a --client ward-3                (A's operator)
        precad enrol token --state state-b --client ward-3 --digest 5d0c… (B's operator)

    Each line on stdout is a token and, after the word digest, its digest.

    Servers keep digests only: a token is shown once, here. Give it to one client, over
    a channel that nobody else reads; it goes into the client's settings as `token =
    "…"`. Run this as the server's user; a running server takes new tokens at once.
    """  # noqa: D301 -- click reads the control character
    from precad.aggregator.enrol import ByToken, new_token, token_digest  # noqa: PLC0415

    if (digest or client) and count > 1:
        raise Misconfiguration(
            "count", count, "leave it out beside --digest or --client"
        )
    if digest and len(client) not in (0, len(digest)):
        raise Misconfiguration(
            "client", len(client), "give one for each --digest, in its order"
        )
    owners: list[ClientId | None] = [ClientId(name) for name in client]
    tokens = []
    digests = list(digest)
    if not digests:
        tokens = [new_token() for _ in range(len(owners) or count)]
        digests = [token_digest(new) for new in tokens]
    if not owners:
        owners = [None] * len(digests)
    for folder in state:
        admission = ByToken(folder)
        for accepted, owner in zip(digests, owners, strict=True):
            admission.add(accepted, owner)
    if as_json:
        print_json(
            {
                "tokens": tokens,
                "digests": [str(accepted) for accepted in digests],
            }
        )
        return
    for number, accepted in enumerate(digests):
        secret = f"{tokens[number]} " if tokens else ""
        click.echo(f"{secret}digest {accepted}")


@command(enrol)
def show(state: States, as_json: AsJson) -> None:
    """A server's tokens, by digest, and whose they became."""
    from precad.aggregator.enrol import ByToken  # noqa: PLC0415

    owners_by_folder = {str(folder): ByToken(folder).owners() for folder in state}
    if as_json:
        document = {
            folder: [
                {"digest": digest, "client": client}
                for digest, client in owners.items()
            ]
            for folder, owners in owners_by_folder.items()
        }
        print_json(document)
        return
    for folder, owners in owners_by_folder.items():
        for digest, client in owners.items():
            click.echo(f"{folder} {digest} {client or 'unused'}")


@command()
def status(
    *,
    asked: AskedServer,
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
    and why, what became of each of the newest round's submissions:

        precad status a.example:7301 --identity keys/operator

    With --watch the screen follows the training, through a server's absence too, and
    ends with it; into a file or a pipe it writes a line for each change.
    """
    if watch and as_json:
        raise Misconfiguration("--watch", "with --json", "choose one of them")
    with asked.connection() as connection:

        def ask() -> JsonObject:
            return facts_of(connection.status(timeout_s=10.0))

        if watch:
            follow(sys.stdout, ask, every)
        elif as_json:
            print_json(ask())
        else:
            _table(ask()).show()


def facts_of(reply: ServerStatus) -> JsonObject:
    """Return a server's answer as plain values, under the names that are shown.

    Digests become hexadecimal digits, and the time that is left whole seconds.
    Rejections by client and the version of the wire's protocol are left out.
    """
    document = values_of(reply) | {
        "task": reply.task_name,
        "task_digest": reply.task_digest.hex(),
        "model_digest": reply.model_digest.hex(),
        "bytes": dict(reply.bytes_by_link),
        "enrolment_left_s": round(reply.enrolment_left_s),
    }
    for name in ("task_name", "bytes_by_link", "rejected_by_client", "wire_version"):
        document.pop(name)
    return document


def _table(server: JsonObject) -> AlignedTable:
    """Return the answer as a table: a row for each field, with all of its values."""
    table = AlignedTable("", "")
    for name, value in server.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{key} {count}" for key, count in value.items())
        elif name == "submissions":
            shown = "; ".join(
                " ".join(f"{word} {each[word]}".rstrip() for word in each)
                for each in value
            )
        elif isinstance(value, list | tuple):
            shown = ", ".join(value)
        else:
            shown = str(value)
        table.add(name.replace("_", " "), shown or "–")
    return table


ENDED = ("done", "stopped")
"""Phases in which a training is over."""
_WIDTH = 60
"""Columns of the progress bar, at most."""
_ROUNDS_SEEN = 2
"""Rounds that must have been seen to end before it is said how long one takes."""
_Arrivals = list[tuple[int, float]]
"""Every version that was seen, and when it was seen first, in the clock's seconds."""


def follow(
    out: TextIO,
    ask: Callable[[], JsonObject],
    every: float,
    clock: Clock = CLOCK,
) -> None:
    """Show where a training stands until it is over.

    ``ask`` asks the server, every ``every`` seconds, and raises PeerUnavailable while
    it is away: then it is asked again. A terminal is drawn anew each time; a file or a
    pipe gets a line for each change. ``clock`` is another one in tests.
    """
    server: JsonObject | None = None
    arrivals: _Arrivals = []
    shown: object = None
    live = Live(console=console_of(out), auto_refresh=False) if redraws(out) else None
    with live or nullcontext():
        while True:
            absence = ""
            try:
                server = ask()
            except PeerUnavailable as error:
                absence = f"no answer ({error}); asking again every {every:g} s"
            else:
                if not arrivals or server["version"] > arrivals[-1][0]:
                    arrivals.append((server["version"], clock.now()))
            if live is not None:
                live.update(_screen(server, absence, arrivals), refresh=True)
            else:
                known = server or {}
                news = (absence, *(known.get(name) for name in _NEWS))
                if news != shown:
                    line = (
                        absence if server is None else _line(server, absence, arrivals)
                    )
                    say(line, out=out)
                    shown = news
            if server is not None and server["phase"] in ENDED:
                return
            clock.sleep(every)


_NEWS = (
    "phase",
    "version",
    "enrolled",
    "missing",
    "twice",
    "rejected",
    "warnings",
    "error",
)
"""Fields whose change a person waits for; the time left and the bytes change with every
look."""


def reminders(server: JsonObject) -> list[tuple[str, str]]:
    """Return lines on who is still to enrol, who came twice and a plan that is missed.

    Each has a style of rich's, like ``bold red``; an empty one changes nothing.
    """
    lines = []
    if server["phase"] == "enrolling":
        fewest = server["least_owners"]
        most = server["most_owners"]
        hours = server["enrolment_left_s"] / 3600
        text = f"enrolment takes {fewest} to {most} owners, for {hours:.1f} hours more"
        lines.append((text, ""))
    if server["missing"]:
        lines.append((f"not enrolled yet: {', '.join(server['missing'])}", "yellow"))
    unused = server["unused_tokens"]
    if unused:
        # Whoever has one brings it under its own name: nobody knows it before.
        text = f"{unused} enrolment tokens, made for nobody by name, aren't used yet"
        lines.append((text, "yellow"))
    if server["twice"]:
        names = ", ".join(
            f"{name} ({times} times)" for name, times in sorted(server["twice"].items())
        )
        lines.append((f"a second process came under the name of {names}", "bold red"))
    if server["off_plan"]:
        lines.append((server["off_plan"], "yellow"))
    lines.extend((text, "yellow") for text in server["warnings"])
    return lines


def _line(server: JsonObject, absence: str, arrivals: _Arrivals) -> str:
    """Return all that is to be said in one line, for a file or a pipe."""
    parts = [
        f"{server['role']}, {server['task']}: {_position(server, arrivals)}",
        f"{server['enrolled']} owners enrolled",
        *(text for text, _ in reminders(server)),
        _rejected(server),
        server["error"],
        absence,
    ]
    return "; ".join(part for part in parts if part)


def _screen(
    server: JsonObject | None, absence: str, arrivals: _Arrivals
) -> RenderableType:
    """Return what a terminal shows after a look at the server, for ``follow``.

    ``server`` is the newest answer, None before the first one; ``absence`` says why
    there is none now, and is empty where there is one.
    """
    if server is None:
        return _unbroken(absence, "yellow")
    participations = server["participations"].values()
    # By owner it would be a page where there are a thousand; without --watch each is
    # listed.
    spread = ""
    if participations:
        fewest = min(participations)
        most = max(participations)
        spread = f", each took part {fewest} to {most} times"
    rejected = _rejected(server)
    megabytes = sum(server["bytes"].values()) / 1e6
    model = server["model_digest"][:16]
    lines = [
        (f"{server['enrolled']} owners enrolled{spread}", ""),
        *reminders(server),
        (rejected, "") if rejected else ("nothing rejected", "green"),
        (f"{megabytes:,.1f} MB sent and received", ""),
        (f"model {model}…, projections by {server['kernel']}", "dim"),
        *((text, "yellow") for text in (server["error"], absence) if text),
    ]
    bar = ProgressBar(max(server["rounds"], 1), server["version"], _WIDTH)
    bar.complete_style = "green"
    bar.finished_style = "green"
    return Group(
        _unbroken(f"{server['role']}, {server['task']}", "underline"),
        _unbroken(_position(server, arrivals), "bold"),
        # A bar alone doesn't end its line.
        Padding(bar, 0, expand=False),
        *(_unbroken(text, style) for text, style in lines),
    )


def _unbroken(text: str, style: str) -> Text:
    """Return the text as one line, cut where the terminal is too narrow."""
    line = plain(text, style)
    line.no_wrap = True
    line.overflow = "ellipsis"
    return line


def _position(server: JsonObject, arrivals: _Arrivals) -> str:
    """Return the phase and the round, and what is known of the time.

    Once ``_ROUNDS_SEEN`` rounds were seen to end, that is how long one takes, and how
    long all that are left would take at this pace.
    """
    done = server["version"]
    total = server["rounds"]
    pace = ""
    first_version, first_time = arrivals[0]
    last_version, last_time = arrivals[-1]
    rounds = last_version - first_version
    if rounds >= _ROUNDS_SEEN:
        seconds = (last_time - first_time) / rounds
        left = ""
        if done < total:
            left = f", about {(total - done) * seconds:.0f} s left"
        pace = f", {seconds:.2g} s each{left}"
    return f"{server['phase']}: round {done} of {total}{pace}"


def _rejected(server: JsonObject) -> str:
    """Return how many submissions were rejected, by reason; empty where none was."""
    counts = ", ".join(
        f"{reason} {count}" for reason, count in sorted(server["rejected"].items())
    )
    return counts and f"rejected: {counts}"
