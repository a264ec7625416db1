"""`precad`: one command line for everybody who takes part."""

import typer

from precad.cli import certify, serve
from precad.cli.join import join

app = typer.Typer(
    name="precad",
    help="Train one model together without showing anyone your records.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
app.add_typer(serve.app, name="serve")
app.add_typer(certify.app, name="certify")
app.command()(join)


def main() -> None:
    """Entry point of the `precad` command."""
    app()


if __name__ == "__main__":
    main()
