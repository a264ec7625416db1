"""`precad serve`: one of the three servers, from its settings file."""

import sys
from pathlib import Path

import click

from precad.cli import start
from precad.cli.options import PATH


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

    Several tasks, side by side or one after the other, stand in one file: each has a table
    [tasks.NAME] with what differs, and a process of its own (docs/several-tasks.md).
    """  # noqa: D301 -- click reads the control character


config_option = click.option("--config", "-c", type=PATH, required=True, help="The settings file.")


@serve.command("a")
@config_option
def server_a(config: Path) -> None:
    """Server A, the leader: selects the cohort, drives rounds, serves the model."""
    sys.exit(start.serve("a", config))


@serve.command("b")
@config_option
def server_b(config: Path) -> None:
    """Server B, the helper: second share, own noise, checks what A proposes."""
    sys.exit(start.serve("b", config))


@serve.command("dealer")
@config_option
def dealer(config: Path) -> None:
    """The dealer: correlated randomness for the two servers; sees no client data."""
    sys.exit(start.serve("dealer", config))
