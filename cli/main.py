"""`precad`: one command line for everybody who takes part."""

import typer

from precad.cli import enrol, keys, ledger, serve
from precad.cli.account import account
from precad.cli.certify.command import app as certify
from precad.cli.demo import demo
from precad.cli.join import join
from precad.cli.plan import plan
from precad.cli.status import status

app = typer.Typer(
    name="precad",
    help="Train one model together without showing anyone your records.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
# In the order of a newcomer's interest.
app.command()(demo)
app.command()(plan)
app.command()(account)
app.add_typer(certify, name="certify")
app.add_typer(keys.app, name="keys")
app.add_typer(enrol.app, name="enrol")
app.add_typer(serve.app, name="serve")
app.command()(join)
app.command()(status)
app.add_typer(ledger.app, name="ledger")


def main() -> None:
    """Entry point of the `precad` command."""
    app()


if __name__ == "__main__":
    main()
