"""`precad serve`: one of the three servers, from its settings file."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from precad.cli.options import PATH
from precad.common.log_lines import start_log


@click.group()
def serve() -> None:
    """Run one of the three servers from its settings file (TOML).

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
    """  # noqa: D301 -- click reads the control character


config_option = click.option("--config", "-c", type=PATH, required=True, help="The settings file.")


def _run(serving: Coroutine[Any, Any, int]) -> None:
    start_log()
    sys.exit(asyncio.run(serving))


@serve.command("a")
@config_option
def server_a(config: Path) -> None:
    """Server A, the leader: selects the cohort, drives rounds, serves the model."""
    from precad.server_a.process import serve  # noqa: PLC0415

    _run(serve(config))


@serve.command("b")
@config_option
def server_b(config: Path) -> None:
    """Server B, the helper: second share, own noise, checks what A proposes."""
    from precad.server_b.process import serve  # noqa: PLC0415

    _run(serve(config))


@serve.command("dealer")
@config_option
def dealer(config: Path) -> None:
    """The dealer: correlated randomness for the two servers; sees no client data."""
    from precad.dealer.process import serve  # noqa: PLC0415

    _run(serve(config))
