"""`precad certify`: what an attack on the training, or on an input, can't change."""

import typer

from precad.cli.certify.request import Loss, Prediction, Request, Smoothing


def respond(request: Request) -> None:
    """Work out what is asked, then print it."""
    # Scientific imports take a second, which `--help` doesn't wait for.
    from precad.cli.certify.answer import answer  # noqa: PLC0415
    from precad.cli.certify.show import show  # noqa: PLC0415

    show(request, answer(request))


app = typer.Typer(
    help="What bad owners, records or inputs can't change.",
    no_args_is_help=True,
    rich_markup_mode=None,
    result_callback=respond,
)
# Typer calls a request's class with the options, and `respond` with the request.
app.command("prediction")(Prediction)
app.command("loss")(Loss)
app.command("smoothing")(Smoothing)
