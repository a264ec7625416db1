"""`precad ledger`: what servers charged, and what owners keep."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from precad.aggregator.rounds.privacy_cap import PrivacyCap, epsilon_spent
from precad.cli import (
    ARGUMENT,
    AsJson,
    JsonObject,
    command,
    digest_of,
    lacking,
    mine,
    print_json,
    receipts,
)
from precad.common import AlignedTable, Misconfiguration, say, upper

if TYPE_CHECKING:
    from precad.aggregator.store import Audit, TrainingSummary


@click.group()
def ledger() -> None:
    """Privacy ledgers: a server's, and a data owner's own.

    `show` and `verify` are for a server's operator, on its own machine; the server may
    be running. STATE is its state folder, or the SQLAlchemy URL of its database.
    Clients don't see this: their own account rests on not knowing in which rounds the
    others took part.

    `mine` and `receipts` are for a data owner: what its records have spent in all tasks
    together, and what the servers have signed of it.
    """


_STATE = {"metavar": "STATE"}
"""How the help calls an argument that is a state folder."""
State = Annotated[
    str, "The server's state folder, or its database's URL.", ARGUMENT, _STATE
]


@command(ledger)
def show(
    state: State, client: Annotated[str | None, "A client alone."], as_json: AsJson
) -> None:
    """Participations and exact ε of every client.

    ε is of one record, or of the task's own unit, against one curious server with any
    other clients, at the task's δ; a malicious one decides who takes part, and what was
    counted says nothing against it. CAP is what the task's epsilon_limit allows within
    its rounds. AGAIN counts versions that may have been released more than once (1 + m
    times each): such a one is a single step with σ/√(1+m).
    """
    from precad.aggregator.store import read_training  # noqa: PLC0415

    document = _document(read_training(url_of(state)), client)
    if as_json:
        print_json(document, indent=2)
    else:
        _show(document)


@command(ledger)
def verify(
    state: State,
    head: Annotated[
        str | None, "A head noted earlier, in hex: it must still be in the chain."
    ],
    against: Annotated[
        str | None,
        "The other server's state folder, or its database's URL: must hold the same.",
        {"metavar": "OTHER"},
    ],
    as_json: AsJson,
) -> None:
    """Recompute the ledger's chain, and hold the rounds against it.

    Exit 1 where it is broken.

    Every entry's hash covers its content, its charges and the hash before it. Note the
    head that this prints, away from the server: with --head it shows even a ledger
    replaced as a whole.

    With --against both servers' databases are compared: whom they charged for which
    attempts. An attempt that is under way may differ while the servers run.
    """
    from precad.aggregator.store import audit_ledger, compare_ledgers  # noqa: PLC0415

    audit = audit_ledger(url_of(state), None if head is None else digest_of(head))
    if against is not None:
        findings = (*audit.findings, *compare_ledgers(url_of(state), url_of(against)))
        audit = replace(audit, findings=findings)
    end_with(audit, as_json=as_json)


@command(ledger)
def submissions(
    *,
    state: State,
    version: Annotated[int | None, "How many rounds were done before."],
    attempt: Annotated[int | None, "Of one attempt alone."],
    owner: Annotated[str | None, "Of one owner alone."],
    submission: Annotated[str | None, "Its id, 12 digits of every party's log."],
    verdict: Annotated[str | None, "What became of it."],
    as_json: AsJson,
) -> None:
    """What became of each submission, by the words of all parties' logs.

    All of them, unless options say which. VERDICT is `counted`, why it was rejected, or
    the state of an attempt that isn't done. Both servers' ledgers say the same; no hash
    of the chain covers the ids.

        precad ledger submissions server-a/state --submission 9c41f0a2b7de
    """
    from precad.aggregator.store import snapshot  # noqa: PLC0415

    with snapshot(url_of(state)) as server:
        chosen = server.ledger.submissions(
            version=version,
            attempt=attempt,
            owner=owner,
            submission=submission,
            verdict=verdict,
        )
        rows = [asdict(each) for each in chosen]
    if as_json:
        print_json(rows, indent=2)
        return
    table = AlignedTable(">version", ">attempt", "owner", "submission", "verdict")
    for row in rows:
        table.add(*row.values())
    table.show()


def end_with(audit: "Audit", *, as_json: bool = False) -> None:
    """Print whether a ledger is sound, and exit: with 0, or with 1 where it isn't."""
    sound = not audit.findings
    if as_json:
        print_json({"sound": sound, **asdict(audit), "head": str(audit.head)}, indent=2)
    else:
        for finding in audit.findings:
            click.echo(f"{finding.where}: {finding.what}")
        verdict = "sound" if sound else "BROKEN"
        click.echo(f"{verdict}: {audit.entries} entries, head {audit.head}")
    sys.exit(0 if sound else 1)


def url_of(state: str) -> str:
    """Return the SQLAlchemy URL of a server's database, by its state folder or itself.

    Raises Misconfiguration: the folder isn't a server's.
    """
    if "://" in state:
        return state
    database = Path(state)
    if database.is_dir():
        database /= "state.db"
    if not database.is_file():
        raise lacking(
            Path(state),
            "state.db",
            lacks="isn't a server's state folder: it holds no state.db (of a database"
            " elsewhere give the URL)",
        )
    return f"sqlite:///{database.resolve()}"


def _document(training: "TrainingSummary", only: str | None) -> JsonObject:
    """Return what `precad ledger show` answers: every client's charges, and totals.

    ``only`` names the one client that is shown; None shows all.

    Raises Misconfiguration: there is no such client.
    """
    task = training.task
    mechanism = task.mechanism
    cap = PrivacyCap(task)
    shown = [c for c in training.clients if only is None or c.client.name == only]
    if only is not None and not shown:
        raise Misconfiguration("--client", only, "is neither enrolled nor charged here")
    rows: list[JsonObject] = []
    for charges in shown:
        rate = charges.record_rate
        participations = charges.participations
        again = charges.again
        row = {
            "client": charges.client.name,
            "record_rate": rate,
            "participations": participations,
            "released_again": {str(m): count for m, count in sorted(again.items())},
            "epsilon": epsilon_spent(task, rate, participations, again),
            "cap": cap.most(rate),
            "remaining": cap.left(rate, participations, again),
        }
        if mechanism.owners_per_unit > 1:
            row["epsilon_at_one"] = epsilon_spent(
                task.at_one_owner, rate, participations, again
            )
        rows.append(row)
    return {
        "task": task.name,
        "task_digest": str(task.digest),
        "role": training.role.value,
        "unit": mechanism.unit,
        "at_owners": mechanism.at_owners,
        "delta": task.privacy.delta,
        "noise_multiplier": mechanism.noise_multiplier,
        "epsilon_limit": task.privacy.epsilon_limit,
        "clients": rows,
        "totals": {
            "clients": len(rows),
            "participations": sum(charges.participations for charges in shown),
            "epsilon_max": max((row["epsilon"] for row in rows), default=0.0),
            "rounds_released": len(training.versions),
            "attempts_written_off": training.written_off,
            "rounds": mechanism.releases,
        },
        "entries": training.entries,
        "head": str(training.head),
    }


def _show(document: JsonObject) -> None:
    """Print what `precad ledger show` answers: a table of clients, and totals."""
    limit = document["epsilon_limit"]
    limit_text = "no limit" if limit is None else f"limit {limit:g}"
    say(f"{document['role']}, task {document['task']}", style="bold")
    say(
        f"exact ε of one {document['unit']}{document['at_owners']} against one curious"
        f" server, at δ = {document['delta']:g}, σ = {document['noise_multiplier']:g};"
        f" {limit_text}",
    )
    table = AlignedTable(
        "client",
        ">p",
        ">participations",
        ">again",
        ">ε",
        ">cap",
        ">remaining",
        *([">ε at one owner"] if document["at_owners"] else []),
    )
    for row in document["clients"]:
        # A row's values are in the order of these columns.
        cells = row | {"released_again": sum(row["released_again"].values())}
        table.add(*cells.values())
    table.show()
    totals = document["totals"]
    say(
        f"{totals['clients']} clients, {totals['participations']} participations,"
        f" largest ε {upper(totals['epsilon_max'])}; {totals['rounds_released']} of"
        f" {totals['rounds']} rounds released, {totals['attempts_written_off']} written"
        f" off\n{document['entries']} entries, head {document['head']}",
    )


ledger.add_command(mine)
ledger.add_command(receipts)
