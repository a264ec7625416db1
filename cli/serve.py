"""`precad serve`: one of the three servers, from its settings file."""

import sys
from pathlib import Path

import click

from precad.cli import start
from precad.cli.options import PATH


@click.command()
@click.argument("part", type=click.Choice(["a", "b", "dealer"]), help="Which server.")
@click.option("--config", "-c", type=PATH, required=True, help="The settings file.")
def serve(part: str, config: Path) -> None:
    """Run one of the three servers from its settings file (TOML).

    a: the leader, selects the cohort, drives rounds, serves the model. b: the
    helper, holds the second share, adds its own noise, checks what A proposes.
    dealer: correlated randomness for the two; sees no client data.

    Start the dealer, then B, then A; each waits for the others within the task's deadlines.
    A settings file for A:

    \b
        task = "task.toml"
        listen = "0.0.0.0:7301"
        server_b = "server-b.example:7302"
        dealer = "dealer.example:7303"
        state = "state-a"
        identity = "keys/server-a"

    B's has no server_b, the dealer's only task, listen and identity. Each task has a settings
    file and a process of its own (docs/several-tasks.md).
    """  # noqa: D301 -- click reads the control character
    sys.exit(start.serve(part, config))
