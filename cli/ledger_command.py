"""`precad ledger`: what a server charged its clients, and whether anybody changed it since."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import click

from precad.cli.options import ARGUMENT, AsJson, digest_of, print_json, with_options
from precad.cli.own_ledger import mine, receipts
from precad.common.errors import Misconfiguration
from precad.common.terminal import Table, say, upper

if TYPE_CHECKING:
    from precad.aggregator.store import TrainingSummary


@click.group()
def ledger() -> None:
    """Privacy ledgers: a server's, and a data owner's own.

    `show` and `verify` are for a server's operator, on its own machine; the server may be running.
    STATE is its state folder, or the SQLAlchemy URL of its database. Clients don't see this: their
    own account rests on not knowing in which rounds the others took part.

    `mine` and `receipts` are for a data owner: what its records have spent in all tasks together,
    and what the servers have signed of it.
    """


ledger.add_command(mine)
ledger.add_command(receipts)

State: TypeAlias = Annotated[
    str, "The server's state folder, or its database's URL.", ARGUMENT, {"metavar": "STATE"}
]


@ledger.command()
@with_options
def show(
    state: State, client: Annotated[str | None, "This client alone."], as_json: AsJson
) -> None:
    """Participations and exact ε of every client.

    ε is of one record, against one corrupted server with any other clients, at the task's δ.
    CAP is what the task's epsilon_limit allows within its rounds. AGAIN counts versions that may
    have been released more than once (1 + m times each): such a one is a single step with σ/√(1+m).
    """
    from precad.aggregator.store import read_training  # noqa: PLC0415

    view = read_training(_url(state))
    document = _document(view, client)
    if as_json:
        print_json(document, indent=2)
    else:
        _show(document)


@ledger.command()
@with_options
def verify(
    state: State,
    head: Annotated[str | None, "A head noted earlier, in hex: it must still be in the chain."],
    against: Annotated[
        str | None,
        "The other server's state folder, or its database's URL: must hold the same.",
        {"metavar": "OTHER"},
    ],
    as_json: AsJson,
) -> None:
    """Recompute the ledger's chain, and hold the rounds against it. Exit 1 where it is broken.

    Every entry's hash covers its content, its charges and the hash before it. Note the head that
    this prints, away from the server: with --head it shows even a ledger replaced as a whole.

    With --against both servers' databases are compared: whom they charged for which attempts. An
    attempt that is under way may differ while the servers run.
    """
    from precad.aggregator.store import audit_ledger, compare_ledgers  # noqa: PLC0415

    audit = audit_ledger(_url(state), None if head is None else digest_of(head))
    if against is not None:
        findings = (*audit.findings, *compare_ledgers(_url(state), _url(against)))
        audit = replace(audit, findings=findings)
    sound = not audit.findings
    if as_json:
        document = {"sound": sound} | asdict(audit) | {"head": str(audit.head)}
        print_json(document, indent=2)
    else:
        for finding in audit.findings:
            click.echo(f"{finding.where}: {finding.what}")
        click.echo(f"{'sound' if sound else 'BROKEN'}: {audit.entries} entries, head {audit.head}")
    if not sound:
        sys.exit(1)


def _url(state: str) -> str:
    if "://" in state:
        return state
    folder = Path(state)
    database = folder / "state.db"
    if not database.is_file():
        raise Misconfiguration(
            "STATE",
            state,
            "isn't a server's state folder: it holds no state.db; give a URL for "
            "a database elsewhere",
        )
    return f"sqlite:///{database.resolve()}"


def _document(view: "TrainingSummary", only: str | None) -> dict[str, Any]:
    # The accountants load here, so that `precad --help` doesn't wait for them.
    from precad.aggregator.rounds.privacy_cap import PrivacyCap, epsilon_spent  # noqa: PLC0415

    privacy, cap = view.task.privacy, PrivacyCap(view.task)
    shown = [c for c in view.clients if only is None or c.client.name == only]
    if only is not None and not shown:
        raise Misconfiguration("--client", only, "is neither enrolled nor charged here")
    clients: list[dict[str, Any]] = []
    for row in shown:
        epsilon = epsilon_spent(view.task, row.record_rate, row.participations, row.again)
        clients.append(
            {
                "client": row.client.name,
                "record_rate": row.record_rate,
                "participations": row.participations,
                "released_again": {str(m): count for m, count in sorted(row.again.items())},
                "epsilon": epsilon,
                "cap": cap.most(row.record_rate),
                "remaining": cap.left(row.record_rate, row.participations, row.again),
            }
        )
    return {
        "task": view.task.name,
        "task_digest": str(view.task.digest),
        "role": view.role.value,
        "delta": privacy.delta,
        "noise_multiplier": privacy.noise_multiplier,
        "epsilon_limit": privacy.epsilon_limit,
        "clients": clients,
        "totals": {
            "clients": len(clients),
            "participations": sum(c.participations for c in shown),
            "epsilon_max": max((c["epsilon"] for c in clients), default=0.0),
            "rounds_released": len(view.versions),
            "attempts_written_off": view.written_off,
            "rounds": view.task.training.rounds,
        },
        "entries": view.entries,
        "head": str(view.head),
    }


def _show(document: dict[str, Any]) -> None:
    limit = document["epsilon_limit"]
    say(sys.stdout, f"{document['role']}, task {document['task']}", style="bold")
    say(
        sys.stdout,
        f"exact ε of one record against one corrupted server, at δ = {document['delta']:g}, "
        f"σ = {document['noise_multiplier']:g}; "
        + ("no limit" if limit is None else f"limit {limit:g}"),
    )
    table = Table("client", ">p", ">participations", ">again", ">ε", ">cap", ">remaining")
    for row in document["clients"]:
        table.add(
            *(
                f"{x:g}" if isinstance(x, float) else "–" if x is None else str(x)
                for x in (row | {"released_again": sum(row["released_again"].values())}).values()
            )
        )
    table.show(sys.stdout)
    totals = document["totals"]
    say(
        sys.stdout,
        f"{totals['clients']} clients, {totals['participations']} participations, "
        f"largest ε {upper(totals['epsilon_max'])}; {totals['rounds_released']} of "
        f"{totals['rounds']} rounds released, {totals['attempts_written_off']} written off\n"
        f"{document['entries']} entries, head {document['head']}",
    )
