"""`python -m research questions`: what one release answers, measured on made-up data."""

import json
from pathlib import Path
from typing import Annotated

import click

from precad.cli.main import ARGUMENT, command

_ONE_OR_MORE = click.IntRange(min=1)
RESULTS = Path("benchmarks/results/questions")


@command()
def questions(
    *,
    name: Annotated[str, "A claim, or all.", ARGUMENT],
    draws: Annotated[
        int | None,
        "Simulated releases a piece; its own number unless given.",
        _ONE_OR_MORE,
    ] = None,
    output: Annotated[Path, "Folder of results."] = RESULTS,
) -> None:
    """Measure the pieces of a claim that the results lack, and print all.

    Everything is simulated, in this process. Results are kept as JSON after each piece,
    so that a run that was broken off goes on.

        python -m research questions coverage
    """
    # SciPy's distributions take a second to import.
    from precad.common.errors import Misconfiguration  # noqa: PLC0415
    from research.questions.evidence.claims import CLAIMS  # noqa: PLC0415
    from research.questions.evidence.pieces import run  # noqa: PLC0415

    if name != "all" and name not in CLAIMS:
        raise Misconfiguration("name", name, f"use one of {', '.join(CLAIMS)}, all")
    for claim in CLAIMS if name == "all" else [name]:
        click.echo(f"{claim}: {CLAIMS[claim].claim}")
        for piece in run(CLAIMS[claim], output / f"{claim}.json", draws=draws):
            click.echo(json.dumps(piece))
