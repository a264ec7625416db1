"""The command itself: options, and what is printed where."""

from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Option

from precad.cli.options import Json, print_json
from precad.common.errors import Misconfiguration


def bench(
    dimension: Annotated[int, Option(min=100, help="d: coordinates of a vector.")] = 1_000_000,
    clients: Annotated[int, Option(min=1, help="n: clients, all of whom submit.")] = 10,
    repeats: Annotated[
        int, Option(min=1, help="Measured rounds of each system; the tables show medians.")
    ] = 5,
    peers: Annotated[
        bool, Option(help="Measure stock CrypTen and plain averaging too, in alternation.")
    ] = True,
    slow_link: Annotated[
        bool, Option(help="Measure over lines of 100 Mbit/s and 20 ms too.")
    ] = True,
    series: Annotated[
        bool,
        Option(
            "--series",
            help="Other sizes too: n = 1, 10, 100 with d/10, and d/100 to 10·d with n = 2.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        Option(
            help="Keep the document there, case by case, and the tables beside it as .txt; a run "
            "that was broken off goes on."
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Measure validation and whole rounds on this machine, beside other systems.

    Two servers, a dealer and a process with all clients run as in production; stock CrypTen's norm
    check and plain federated averaging over the same gRPC and TLS take turns with them. Every
    result is checked. Linux only; nothing else should run meanwhile.

        precad bench --dimension 100000 --repeats 3
    """
    # Seconds of imports: not before the options are known to be wanted.
    from precad.cli.bench.document import main_case, run  # noqa: PLC0415
    from precad.cli.bench.show import as_text, show  # noqa: PLC0415

    if output is not None and not output.parent.is_dir():
        raise Misconfiguration("--output", str(output), "there is no such folder; make it first")
    console = Console(stderr=True)
    main = main_case(dimension, clients, repeats, slow=slow_link, peers=peers)
    with console.status("") as status:

        def say(what: str) -> None:
            status.update(what)
            if not console.is_terminal:
                console.print(what, highlight=False)

        document = run(main, output, say, series=series)
    if output is not None:
        output.with_suffix(".txt").write_text(as_text(document), encoding="utf-8")
    if json_output:
        print_json(document)
    else:
        show(Console(), document)
