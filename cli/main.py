"""`precad`: one command line for everybody who takes part."""

import typer

app = typer.Typer(
    name="precad",
    help="Train one model together without showing anyone your records.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def main() -> None:
    """Entry point of the `precad` command."""
    app()
