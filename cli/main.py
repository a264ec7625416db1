"""`precad`: one command line for everybody who takes part."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from precad import __version__
from precad.cli.start import said
from precad.common.errors import PrecadError
from precad.common.extras import missing

COMMANDS = (
    *("demo", "simulate", "experiment", "plan", "task", "account", "certify", "keys", "enrol"),
    *(
        "setup",
        "serve",
        "doctor",
        "join",
        "predict",
        "evaluate",
        "status",
        "health",
        "allow",
        "ledger",
    ),
    *("kit", "report", "audit", "bench"),
)
"""In the order of a newcomer's interest; a module each, with an ``app`` or a function so named."""
EXTRAS = {
    "demo": "demo",
    "simulate": "experiments",
    "experiment": "experiments",
    "audit": "experiments",
    "report": "report",
    "serve": "server",
    "join": "client",
    "bench": "demo",
}
"""The extra of a whole command; what another one lacks may be less."""


class _OnDemand(TyperGroup):
    """Loads a command when it is asked for: a dealer's process holds no accountant, no database."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A PrecadError is one line, and exit 2 for a wrong value, else 1."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            name = ctx.invoked_subcommand
            lacking = missing(error, f"precad {name}", EXTRAS.get(name))
            if lacking is None:
                raise
            raise typer.Exit(said(lacking)) from None
        except PrecadError as error:
            raise typer.Exit(said(error)) from None

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 -- click's
        """All commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """One command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"precad.cli.{cmd_name}")
        one = typer.Typer(callback=_precad, rich_markup_mode=None)
        if hasattr(module, "app"):
            one.add_typer(module.app, name=cmd_name)
        else:
            one.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_group(one).commands[cmd_name]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"precad {__version__}")
        raise typer.Exit


def _precad(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Train one model together without showing anyone your records."""


app = typer.Typer(
    name="precad",
    callback=_precad,
    cls=_OnDemand,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)


def run() -> None:
    """Take the command line apart and do what it says."""
    app()
