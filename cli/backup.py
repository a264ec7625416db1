"""`precad backup`: a copy of a server's state, while it runs."""

import sys
from pathlib import Path

import click

from precad.cli.options import PATH


@click.command()
@click.argument("state", type=PATH, help="The server's state folder.")
@click.argument("copy", type=PATH, help="The folder to make; it must not exist.")
def backup(state: Path, copy: Path) -> None:
    """Copy a server's state, while it runs, and look whether the copy is sound.

    Database, model, its seal and enrolment tokens, as of one moment. Never the journal file: put
    back, it would forget what left. docs/runbooks/backup.md says how a copy is put back.

        precad backup server-a/state backup/server-a-monday
    """
    from precad.aggregator.store.backup import back_up  # noqa: PLC0415

    audit = back_up(state, copy)
    for finding in audit.findings:
        click.echo(f"{finding.where}: {finding.what}")
    said = "BROKEN" if audit.findings else "sound"
    click.echo(f"{said}: {audit.entries} entries, head {audit.head}")
    if audit.findings:
        sys.exit(1)
