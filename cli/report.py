"""The command `precad report`: one document of a training, as a page or as JSON."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import click

from precad.cli import (
    ARGUMENT,
    Report,
    command,
    page,
    print_json,
    require_writable,
    summary,
)
from precad.common import json_of


@command()
def report(
    *,
    run: Annotated[
        tuple[str, ...],
        "A finished run's folder; or each server's state folder, or its database's"
        " URL.",
        ARGUMENT,
        {"metavar": "RUN..."},
    ],
    out: Annotated[
        Path | None, "The file; report.html or report.json by default.", "--out", "-o"
    ],
    form: Annotated[Literal["html", "json"], "html, or json.", "--format"] = "html",
    results: Annotated[
        Path | None,
        "What `precad evaluate --json` printed of the final model on held-out records;"
        " the report publishes it.",
    ],
    schema: Annotated[bool, "Print the JSON document's schema and end."],
) -> None:
    """One document of a training for an auditor: self-contained, prints well.

    Who trained what on how much data; what is guaranteed to a record, or the task's own
    unit such as a patient, to an organisation and against bad participants, in words,
    numbers and plots; accuracy and ε by round, measures with their
    intervals; submissions and rejections; what was
    enforced, both servers' ledgers recomputed and compared; what is not guaranteed.
    Nothing in it says how often a single owner took part.

    \b
        precad report demo-run
        precad report /srv/a/state /srv/b/state --out training.html
        precad report demo-run --format json --out report.json

    Exit 1 where a ledger isn't sound or the two differ; the document is written all the
    same.
    """  # noqa: D301 -- click reads the control character
    if schema:
        print_json(Report.model_json_schema(), indent=2)
        return
    path = Path(f"report.{form}") if out is None else out
    # It says how the same run stands now.
    require_writable("--out", path, replaced=True)
    replaced = path.exists()
    from precad.cli import gather  # noqa: PLC0415

    gathered = gather(run, results)
    text = page(gathered) if form == "html" else json_of(gathered, indent=2)
    path.write_text(f"{text}\n", encoding="utf-8")
    for line in summary(gathered):
        click.echo(line, err=True)
    if replaced:
        click.echo(f"{path} was there already, and is replaced", err=True)
    click.echo(path)
    faults = [
        f"{ledger.server}: {finding}"
        for ledger in gathered.ledgers
        for finding in ledger.findings
    ]
    faults += gathered.differences or []
    for fault in faults:
        click.echo(f"precad report: {fault}", err=True)
    sys.exit(1 if faults else 0)
