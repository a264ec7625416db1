"""`precad ledger` and `backup`: what a server charged, what an owner keeps, a copy of the state."""

import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from precad.accounting.filter import RenyiLimit
from precad.aggregator.rounds.privacy_cap import PrivacyCap, epsilon_spent
from precad.cli.main import ARGUMENT, AsJson, command, digest_of, print_json
from precad.client import account_file
from precad.client.account_file import ACCOUNT_FILE, AccountCharge, AccountFile
from precad.client.own_account import Account, exact_epsilon
from precad.client.server_statements import (
    KeptStatements,
    re_release_counts,
    read_kept_statements,
)
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.signatures import CertificateVerifier
from precad.common.terminal import AlignedTable, say, upper
from precad.common.wire.messages import check_statement

if TYPE_CHECKING:
    from precad.aggregator.store import TrainingSummary
    from precad.aggregator.store.audit import Audit


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


_RAISED = account_file.RaisedLimit | account_file.RaisedWholeLimit
_STATE = {"metavar": "STATE"}
State = Annotated[
    str, "The server's state folder, or its database's URL.", ARGUMENT, _STATE
]


@command(ledger)
def show(
    state: State, client: Annotated[str | None, "A client alone."], as_json: AsJson
) -> None:
    """Participations and exact ε of every client.

    ε is of one record, against one corrupted server with any other clients, at the
    task's δ. CAP is what the task's epsilon_limit allows within its rounds. AGAIN
    counts versions that may have been released more than once (1 + m times each): such
    a one is a single step with σ/√(1+m).
    """
    from precad.aggregator.store import read_training  # noqa: PLC0415

    document = _document(read_training(_url(state)), client)
    print_json(document, indent=2) if as_json else _show(document)


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

    audit = audit_ledger(_url(state), None if head is None else digest_of(head))
    if against is not None:
        findings = (*audit.findings, *compare_ledgers(_url(state), _url(against)))
        audit = replace(audit, findings=findings)
    _end_with(audit, as_json=as_json)


@command()
def backup(
    state: Annotated[Path, "The server's state folder.", ARGUMENT],
    copy: Annotated[Path, "The folder to make; it must not exist.", ARGUMENT],
) -> None:
    """Copy a server's state, while it runs, and look whether the copy is sound.

    Database, model, its seal and enrolment tokens, as of one moment. Never the journal
    file: put back, it would forget what left. docs/runbooks/backup.md says how a copy
    is put back.

        precad backup server-a/state backup/server-a-monday
    """
    from precad.aggregator.store.audit import back_up  # noqa: PLC0415

    _end_with(back_up(state, copy))


def _end_with(audit: "Audit", *, as_json: bool = False) -> None:
    """Say whether a ledger is sound, and exit with 1 where it isn't."""
    sound = not audit.findings
    if as_json:
        print_json(
            {"sound": sound} | asdict(audit) | {"head": str(audit.head)}, indent=2
        )
    else:
        for finding in audit.findings:
            click.echo(f"{finding.where}: {finding.what}")
        click.echo(
            f"{'sound' if sound else 'BROKEN'}: {audit.entries} entries, head"
            f" {audit.head}"
        )
    sys.exit(0 if sound else 1)


def _url(state: str) -> str:
    database = Path(state) / "state.db"
    if "://" in state:
        return state
    if not database.is_file():
        remedy = (
            "isn't a server's state folder: it holds no state.db; give a URL for a"
            " database "
        )
        raise Misconfiguration("STATE", state, f"{remedy}elsewhere")
    return f"sqlite:///{database.resolve()}"


def _document(view: "TrainingSummary", only: str | None) -> dict[str, Any]:
    privacy = view.task.privacy
    cap = PrivacyCap(view.task)
    shown = [c for c in view.clients if only is None or c.client.name == only]
    if only is not None and not shown:
        raise Misconfiguration("--client", only, "is neither enrolled nor charged here")
    clients: list[dict[str, Any]] = [
        {
            "client": row.client.name,
            "record_rate": row.record_rate,
            "participations": row.participations,
            "released_again": {str(m): count for m, count in sorted(row.again.items())},
            "epsilon": epsilon_spent(
                view.task, row.record_rate, row.participations, row.again
            ),
            "cap": cap.most(row.record_rate),
            "remaining": cap.left(row.record_rate, row.participations, row.again),
        }
        for row in shown
    ]
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


def _cell(value: object) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else "–"
        if value is None
        else str(value)
    )


def _show(document: dict[str, Any]) -> None:
    limit = document["epsilon_limit"]
    say(sys.stdout, f"{document['role']}, task {document['task']}", style="bold")
    say(
        sys.stdout,
        "exact ε of one record against one corrupted server, at δ ="
        f" {document['delta']:g}, σ = {document['noise_multiplier']:g}; "
        + ("no limit" if limit is None else f"limit {limit:g}"),
    )
    table = AlignedTable(
        "client",
        ">p",
        ">participations",
        ">again",
        ">ε",
        ">cap",
        ">remaining",
    )
    for row in document["clients"]:
        shown = row | {"released_again": sum(row["released_again"].values())}
        table.add(*map(_cell, shown.values()))
    table.show(sys.stdout)
    totals = document["totals"]
    say(
        sys.stdout,
        f"{totals['clients']} clients, {totals['participations']} participations,"
        f" largest ε {upper(totals['epsilon_max'])}; {totals['rounds_released']} of"
        f" {totals['rounds']} rounds released, {totals['attempts_written_off']} written"
        f" off\n{document['entries']} entries, head {document['head']}",
    )


@command(ledger)
def mine(
    folder: Annotated[Path, "The owner's account or state folder.", ARGUMENT],
    delta: Annotated[
        float | None, "δ of the sum; else the limit's, or its tasks' smallest."
    ],
    as_json: AsJson,
) -> None:
    """A data owner's own account: what its records have spent in all tasks together.

    Record level, against one curious server. EXACT ε is that of this list of steps, as
    if it had been fixed beforehand. Where later tasks were chosen with earlier models
    in view, the limit's own number is the guarantee: FILTER ε, which the limit is
    enforced by. The limit holds against a malicious server too, which chooses when this
    owner takes part, where every task had validation = "proof".
    """
    path = folder / ACCOUNT_FILE
    if not path.is_file():
        raise Misconfiguration(
            "FOLDER", str(folder), f"holds no account: no {ACCOUNT_FILE}"
        )
    document = _account(Account(path), delta)
    print_json(document, indent=2) if as_json else _show_account(document)


@command(ledger)
def receipts(
    folder: Annotated[Path, "The owner's state folder.", ARGUMENT, _STATE],
    account: Annotated[Path | None, "The account's folder; STATE unless given."],
    other: Annotated[
        Path | None, "Another owner's state folder: were both shown one model?"
    ],
    identity: Annotated[
        Path | None, "A folder with ca.pem: checks the signatures once more."
    ],
    as_json: AsJson,
) -> None:
    """What both servers last signed of an owner's account, compared.

    Exit 1 where it is bad.

    Both servers' statements are held against each other, against the owner's own
    account and against the models that it was served. That one server counts more than
    the other is no finding: the larger count rules, and the other takes it over when it
    is shown.
    """
    kept = read_kept_statements(folder)
    if not kept.statements:
        raise Misconfiguration(
            "STATE", str(folder), "isn't an owner's: no server's statement"
        )
    findings = _findings(kept, account or folder)
    if other is not None:
        findings += _against(kept, read_kept_statements(other))
    if identity is not None:
        findings += _signatures(kept, identity)
    statements = {role.value: _statement(kept, role) for role in kept.statements}
    if as_json:
        print_json({"sound": not findings, "findings": findings} | statements, indent=2)
    else:
        for name, values in statements.items():
            click.echo(
                f"{name}: "
                + ", ".join(f"{key} {value}" for key, value in values.items())
            )
        for finding in findings:
            click.echo(finding)
        click.echo("BROKEN" if findings else "sound")
    sys.exit(1 if findings else 0)


def _account(account: "Account", delta: float | None) -> dict[str, Any]:
    charges = list(account.charges.values())
    limit = account.limit
    spent = account.filter
    if delta is None:
        delta = (
            limit.delta
            if limit
            else min((each.delta for each in charges), default=None)
        )
    by_task: dict[tuple[Digest, str, float], list[AccountCharge]] = {}
    for charge in charges:
        by_task.setdefault((charge.task, charge.client, charge.record_rate), []).append(
            charge
        )
    tasks = [
        {
            "task": str(task),
            "client": client,
            "versions": len(some),
            "further_releases": sum(charge.re_releases for charge in some),
            "noise_multiplier": some[0].noise_multiplier,
            "record_rate": rate,
            "delta": some[0].delta,
            "epsilon": exact_epsilon(
                Counter(charge.event for charge in some), some[0].delta
            ),
        }
        for (task, client, rate), some in by_task.items()
    ]
    proved = (charge.malicious_server for charge in charges)
    return {
        "tasks": tasks,
        "versions": len(charges),
        "delta": delta,
        "epsilon": 0.0 if delta is None else account.epsilon(delta),
        "limit": (
            limit
            and {
                "epsilon": limit.epsilon,
                "delta": limit.delta,
                "order": limit.order if isinstance(limit, RenyiLimit) else None,
                "only_task": None if isinstance(limit, RenyiLimit) else str(limit.task),
                "filter_epsilon": None if spent is None else spent.epsilon(),
                "overdrawn": spent is None,
                "raised": isinstance(limit, _RAISED),
                # Never for what was counted.
                "server": "malicious" if charges and all(proved) else "curious",
            }
        ),
    }


def _show_account(document: dict[str, Any]) -> None:
    table = AlignedTable(
        "task",
        "client",
        ">versions",
        ">repeated",
        ">σ",
        ">p",
        ">δ",
        ">ε",
    )
    for task in document["tasks"]:
        row = task | {"task": task["task"][:12], "epsilon": upper(task["epsilon"])}
        table.add(*map(_cell, row.values()))
    table.show(sys.stdout)
    if document["delta"] is None:
        say(sys.stdout, "nothing was shared yet")
        return
    say(
        sys.stdout,
        f"{document['versions']} versions; exact ε of all together"
        f" {upper(document['epsilon'])} at δ = {document['delta']:g}, record level, one"
        " curious server",
    )
    limit = document["limit"]
    if limit is None:
        say(sys.stdout, "no limit")
        return
    of = f"{'raised ' if limit['raised'] else ''}limit ε = {limit['epsilon']:g}"
    if limit["server"] == "malicious":
        # It decides when an owner takes part: what was counted was not fixed before.
        say(
            sys.stdout,
            "Against one malicious server the limit holds, not what was counted.",
        )
    if limit["overdrawn"]:
        say(sys.stdout, f"{of}: PASSED; nothing more is shared")
        return
    if limit["only_task"] is not None:
        how = f"all of it for task {limit['only_task'][:12]}, counted exactly:"
    else:
        how = f"enforced by a Rényi filter of order {limit['order']:g}: filter ε"
    spent = upper(limit["filter_epsilon"])
    say(sys.stdout, f"{of} at δ = {limit['delta']:g}, {how} {spent} so far")


def _statement(kept: KeptStatements, role: Role) -> dict[str, Any]:
    body = kept.statements[role][1]
    return {
        "client": body.client,
        "task": body.task_digest.hex(),
        "version": body.version,
        "model": body.model_digest.hex(),
        "attempt": body.attempt,
        "charged": list(body.charged),
        "opened": body.opened,
        "counted": body.counted,
    }


def _findings(kept: KeptStatements, account: Path) -> list[str]:
    found = []
    own: dict[tuple[Digest, str, int], int] = {}
    for charge in AccountFile(account / ACCOUNT_FILE).new_entries():
        if isinstance(charge, AccountCharge):
            step = charge.task, charge.client, charge.version
            own[step] = max(charge.re_releases, own.get(step, 0))
    models: dict[int, set[str]] = {}
    for role, (_, body) in kept.statements.items():
        task = Digest(body.task_digest)
        digest = body.model_digest.hex()
        models.setdefault(body.version, set()).add(digest)
        served = kept.models.get((task, body.version))
        if served is not None and str(served) != digest:
            signed = f"{role.value} signed {digest} as model {body.version}"
            found.append(f"{signed}; this owner was served {served}")
        owned = [
            m
            for (of, client, _), m in own.items()
            if (of, client) == (task, body.client)
        ]
        for m, count in enumerate(re_release_counts(body)):
            if count > (known := sum(each >= m for each in owned)):
                found.append(
                    f"{role.value} charged {count} versions with {m} or more further"
                    f" releases; this owner knows of {known}: it signs for what was"
                    " never shared, or this isn't the account"
                )
    for version, digests in models.items():
        if len(digests) > 1:
            both = ", ".join(sorted(digests))
            found.append(f"the servers signed different models {version}: {both}")
    return found


def _against(kept: KeptStatements, other: KeptStatements) -> list[str]:
    ours = kept.served()
    theirs = other.served()
    found = [
        f"model {version} was {ours[task, version]} for this owner and {digest} for the"
        " other one"
        for (task, version), digest in theirs.items()
        if ours.get((task, version), digest) != digest
    ]
    if not ours.keys() & theirs.keys():
        remedy = "has no version of the same task: nothing to compare"
        raise Misconfiguration("--other", str(other.folder), remedy)
    return found


def _signatures(kept: KeptStatements, identity: Path) -> list[str]:
    verifier = CertificateVerifier(Identity.load(identity))
    found = []
    for role, (message, _) in kept.statements.items():
        try:
            check_statement(verifier, role, message, kept=True)
        except (PeerUnavailable, PeerViolation) as error:
            found.append(str(error))
    return found
