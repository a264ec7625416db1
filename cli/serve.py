"""`precad serve`: one of the three servers, from its settings file."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from precad.common.log_lines import start_log

app = typer.Typer(
    help="""Run one of the three servers from its settings file (TOML).

    Start the dealer, then B, then A; each waits for the others within the task's deadlines.
    A settings file for A:

    \b
        task = "task.toml"
        listen = "0.0.0.0:7301"
        server_b = "server-b.example:7302"
        dealer = "dealer.example:7303"
        state = "state-a"
        identity = "keys/server-a"

    B's has no server_b, the dealer's only task, listen and identity.
    """,
    no_args_is_help=True,
)

Config = Annotated[
    Path, typer.Option("--config", "-c", help="The settings file.", show_default=False)
]


def _run(serving: Coroutine[Any, Any, int]) -> None:
    start_log()
    raise typer.Exit(asyncio.run(serving))


@app.command("a")
def server_a(config: Config) -> None:
    """Server A, the leader: selects the cohort, drives rounds, serves the model."""
    from precad.server_a.process import serve  # noqa: PLC0415

    _run(serve(config))


@app.command("b")
def server_b(config: Config) -> None:
    """Server B, the helper: second share, own noise, checks what A proposes."""
    from precad.server_b.process import serve  # noqa: PLC0415

    _run(serve(config))


@app.command("dealer")
def dealer(config: Config) -> None:
    """The dealer: correlated randomness for the two servers; sees no client data."""
    from precad.dealer.process import serve  # noqa: PLC0415

    _run(serve(config))
