"""`precad doctor`: what is wrong with a data owner's settings, before it enrols."""

import sys
from pathlib import Path

import click

from precad.cli.options import PATH, json_option, print_json


@click.command()
@click.option("--config", "-c", type=PATH, required=True, help="The owner's settings file.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=4.0,
    help="Seconds that the servers may take to answer.",
)
@json_option
def doctor(config: Path, wait: float, as_json: bool) -> None:
    """Find mistakes before you enrol: a sentence each, in seconds.

    It looks at the settings, the task, the certificate, every record with
    the model and the loss, the limit, the state folder, both servers and
    the clocks. Nothing is enrolled; the servers see a connection and one
    call, whatever the records are. Exit 1 where something has to be mended.
    """
    from precad.client.owner_settings import FINISHED, look_at_settings  # noqa: PLC0415

    findings = look_at_settings(config, wait)
    if as_json:
        rows = [{"about": f.about, "kind": f.kind.value, "said": f.text} for f in findings]
        print_json({"findings": rows, "wrong": len(findings.wrong)})
    else:
        for each in findings:
            click.echo(f"{_MARKS[each.kind.value]} {each.about}: {each.text}")
        if findings.wrong:
            click.echo(f"\nMend what is marked with {_MARKS['bad']}, then look again.")
        elif not any(each.about == FINISHED for each in findings):
            click.echo(f"\nNothing is in the way: precad join --config {config}")
    if findings.wrong:
        sys.exit(1)


_MARKS = {"good": "✓", "note": "!", "bad": "✗"}
