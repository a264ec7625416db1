"""`precad doctor`: what is wrong with a data owner's settings, before it enrols."""

from pathlib import Path
from typing import Annotated

import typer

from precad.cli.options import Json, print_json


def doctor(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", help="The owner's settings file.", show_default=False),
    ],
    *,
    wait: Annotated[
        float, typer.Option(help="Seconds that the servers may take to answer.", min=0)
    ] = 4.0,
    as_json: Json = False,
) -> None:
    """Find mistakes before you enrol: a sentence each, in seconds.

    It looks at the settings, the task, the certificate, every record with
    the model and the loss, the limit, the state folder, both servers and
    the clocks. Nothing is enrolled; the servers see a connection and one
    call, whatever the records are. Exit 1 where something has to be mended.
    """
    from precad.client.check.settings import look_at_settings  # noqa: PLC0415

    findings = look_at_settings(config, wait)
    if as_json:
        rows = [{"about": f.about, "kind": f.kind.value, "said": f.said} for f in findings]
        print_json({"findings": rows, "wrong": len(findings.wrong)})
    else:
        for each in findings:
            typer.echo(f"{_MARKS[each.kind.value]} {each.about}: {each.said}")
        if findings.wrong:
            typer.echo(f"\nMend what is marked with {_MARKS['bad']}, then look again.")
        else:
            typer.echo(f"\nNothing is in the way: precad join --config {config}")
    if findings.wrong:
        raise typer.Exit(1)


_MARKS = {"good": "✓", "note": "!", "bad": "✗"}
