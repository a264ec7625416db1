"""What validation and whole rounds cost here, beside the peers: `python -m benchmarks.rounds`."""

import sys
from pathlib import Path

import click

from precad.cli.main import PATH, print_json
from precad.cli.start import said
from precad.common.errors import Misconfiguration, PrecadError
from precad.common.terminal import Bar, say


@click.command()
@click.option(
    "--dimension",
    type=click.IntRange(min=100),
    default=1_000_000,
    help="d: coordinates of a vector.",
)
@click.option(
    "--clients",
    type=click.IntRange(min=1),
    default=10,
    help="n: clients, all of whom submit.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=5,
    help="Measured rounds of each system; the tables show medians.",
)
@click.option(
    "--peers/--no-peers",
    default=True,
    help="Measure stock CrypTen and plain averaging too, in alternation.",
)
@click.option(
    "--slow-link/--no-slow-link",
    default=True,
    help="Measure over lines of 100 Mbit/s and 20 ms too.",
)
@click.option(
    "--series",
    is_flag=True,
    help="Other sizes too: n = 1, 10, 100 with d/10, and d/100 to 10·d with n = 2.",
)
@click.option(
    "--beside",
    type=(click.IntRange(min=100), click.IntRange(min=1)),
    multiple=True,
    metavar="D N",
    help="Another d and n, measured as the first ones are; may be repeated.",
)
@click.option(
    "--output",
    type=PATH,
    help=(
        "Keep the document there, link by link, and the tables beside it as .txt; a run"
        " that was broken off goes on."
    ),
)
@click.option(
    "--picture",
    type=PATH,
    help="Draw there what a round's lines carry over time on the slow link.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON document on stdout, nothing else.",
)
def bench(
    dimension: int,
    clients: int,
    repeats: int,
    peers: bool,
    slow_link: bool,
    series: bool,
    beside: tuple[tuple[int, int], ...],
    output: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Measure validation and whole rounds on this machine, beside other systems.

    Two servers, a dealer and a process with all clients run as in production; stock
    CrypTen's norm check and plain federated averaging over the same gRPC and TLS take
    turns with them. Every result is checked. Linux only; nothing else should run
    meanwhile.

        python -m benchmarks.rounds --dimension 100000 --repeats 3
    """
    # Seconds of imports: not before the options are known to be wanted.
    from benchmarks.rounds.document import main_case, run  # noqa: PLC0415
    from benchmarks.rounds.picture import draw  # noqa: PLC0415
    from benchmarks.rounds.show import as_text, show  # noqa: PLC0415

    for option, path in (("--output", output), ("--picture", picture)):
        if path is not None and not path.parent.is_dir():
            raise Misconfiguration(
                option, str(path), "there is no such folder; make it first"
            )
    if picture is not None and not slow_link:
        raise Misconfiguration(
            "--picture", str(picture), "is of the slow link: leave out --no-slow-link"
        )
    main = main_case(dimension, clients, repeats, slow=slow_link, peers=peers)
    with Bar("", None, sys.stderr) as line:

        def doing(what: str) -> None:
            line.at(0, what)
            if line.disable:
                say(what, out=sys.stderr)

        document = run(main, output, doing, series=series, beside=beside)
    if output is not None:
        output.with_suffix(".txt").write_text(as_text(document), encoding="utf-8")
    if picture is not None:
        draw(picture, document["cases"][document["main"]])
    if as_json:
        print_json(document)
    else:
        show(sys.stdout, document)


if __name__ == "__main__":
    try:
        bench(prog_name="python -m benchmarks.rounds")
    except PrecadError as error:
        sys.exit(said(error))
