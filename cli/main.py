"""`precad`: one command line for everybody who takes part."""

import sys
from importlib import import_module

import click

from precad import __version__
from precad.cli.start import said
from precad.common.errors import PrecadError, without_logins

COMMANDS = {
    "demo": "demo",
    "simulate": "simulate_command",
    "plan": "plan",
    "task": "task_command",
    **{name: name for name in ("account", "certify", "keys", "enrol", "setup")},
    "serve": "operate",
    "doctor": "join",
    "join": "join",
    "predict": "predict",
    "evaluate": "predict",
    "status": "status_command",
    "health": "operate",
    "allow": "operate",
    "ledger": "ledger_command",
    "backup": "operate",
    "kit": "kit",
    "report": "report",
    "audit": "audit_command",
}
"""In the order of a newcomer's interest; each with the module that has a command so named."""
EXTRAS = {
    "demo": "demo",
    "simulate": "simulation",
    "audit": "simulation",
    "report": "report",
    "serve": "server",
    "backup": "server",
    "join": "client",
}
"""The extra of a whole command; what another one lacks may be less."""


class ErrorsInOneLine(click.Group):
    """Commands whose errors are one line for a person, and an exit status."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. A PrecadError is one line, and exit 2 for a wrong value, else 1."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if (shown := without_logins(error.format_message())) == error.format_message():
                raise
            raise click.UsageError(shown, error.ctx) from None
        except (PrecadError, ModuleNotFoundError) as error:
            name = ctx.invoked_subcommand or ""
            sys.exit(said(error, f"precad {name}", EXTRAS.get(name)))


class _OnDemand(ErrorsInOneLine):
    """Loads a command when it is asked for: a dealer's process holds no accountant, no database."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's
        """All commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """One command."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"precad.cli.{COMMANDS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(name="precad", cls=_OnDemand, context_settings={"show_default": True})
@click.version_option(
    __version__,
    prog_name="precad",
    message="%(prog)s %(version)s",
    help="Print the version and end.",
)
def app() -> None:
    """Train one model together without showing anyone your records."""
