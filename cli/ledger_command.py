"""`precad ledger`: what servers charged, and what owners keep."""

import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from precad.accounting.filter import RenyiLimit, exact_epsilon
from precad.aggregator.rounds.privacy_cap import PrivacyCap, epsilon_spent
from precad.cli.main import ARGUMENT, AsJson, command, digest_of, print_json
from precad.client import account_file
from precad.client.account_file import ACCOUNT_FILE, AccountCharge, AccountFile
from precad.client.data_set_account import Account, at_owners_of
from precad.client.server_statements import (
    KeptStatements,
    re_release_counts,
    read_kept_statements,
)
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest
from precad.common.identity.credentials import Identity
from precad.common.identity.signatures import CertificateVerifier
from precad.common.mechanism import Unit
from precad.common.terminal import AlignedTable, say, upper
from precad.common.wire.messages import Statement

if TYPE_CHECKING:
    from precad.aggregator.store import TrainingSummary
    from precad.aggregator.store.audit import Audit

JsonObject = dict[str, Any]
"""Plain values by name, for JSON."""


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
"""Limits that took a lower one's place, by the owner's word."""
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
    from precad.aggregator.store.summary import snapshot  # noqa: PLC0415

    wanted = {
        "version": version,
        "attempt": attempt,
        "owner": owner,
        "submission": submission,
        "verdict": verdict,
    }
    with snapshot(url_of(state)) as server:
        rows = [asdict(each) for each in server.ledger.submissions(**wanted)]
    if as_json:
        print_json(rows, indent=2)
        return
    table = AlignedTable(">version", ">attempt", "owner", "submission", "verdict")
    for row in rows:
        table.add(*map(str, row.values()))
    table.show(sys.stdout)


def end_with(audit: "Audit", *, as_json: bool = False) -> None:
    """Print whether a ledger is sound, and exit: with 0, or with 1 where it isn't."""
    sound = not audit.findings
    if as_json:
        document = {"sound": sound, **asdict(audit), "head": str(audit.head)}
        print_json(document, indent=2)
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
        remedy = (
            "isn't a server's state folder: it holds no state.db; give a URL for a"
            " database "
        )
        raise Misconfiguration("STATE", state, f"{remedy}elsewhere")
    return f"sqlite:///{database.resolve()}"


def _document(training: "TrainingSummary", only: str | None) -> JsonObject:
    """Return what `precad ledger show` answers: every client's charges, and totals.

    ``only`` names the one client that is shown; None shows all.

    Raises Misconfiguration: there is no such client.
    """
    task = training.task
    cap = PrivacyCap(task)
    shown = [c for c in training.clients if only is None or c.client.name == only]
    if only is not None and not shown:
        raise Misconfiguration("--client", only, "is neither enrolled nor charged here")
    rows: list[JsonObject] = []
    for charges in shown:
        rate = charges.record_rate
        participations = charges.participations
        again = charges.again
        at_one = {}
        if task.mechanism.owners_per_unit > 1:
            alone = task.at_one_owner
            epsilon = epsilon_spent(alone, rate, participations, again)
            at_one = {"epsilon_at_one": epsilon}
        rows.append(
            {
                "client": charges.client.name,
                "record_rate": rate,
                "participations": participations,
                "released_again": {str(m): count for m, count in sorted(again.items())},
                "epsilon": epsilon_spent(task, rate, participations, again),
                "cap": cap.most(rate),
                "remaining": cap.left(rate, participations, again),
                **at_one,
            }
        )
    return {
        "task": task.name,
        "task_digest": str(task.digest),
        "role": training.role.value,
        "unit": task.mechanism.unit,
        "at_owners": task.mechanism.at_owners,
        "delta": task.privacy.delta,
        "noise_multiplier": task.mechanism.noise_multiplier,
        "epsilon_limit": task.privacy.epsilon_limit,
        "clients": rows,
        "totals": {
            "clients": len(rows),
            "participations": sum(charges.participations for charges in shown),
            "epsilon_max": max((row["epsilon"] for row in rows), default=0.0),
            "rounds_released": len(training.versions),
            "attempts_written_off": training.written_off,
            "rounds": task.mechanism.releases,
        },
        "entries": training.entries,
        "head": str(training.head),
    }


def _cell(value: object) -> str:
    """Return a table's cell: a number in few digits, a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show(document: JsonObject) -> None:
    """Print what `precad ledger show` answers: a table of clients, and totals."""
    limit = document["epsilon_limit"]
    limit_text = "no limit" if limit is None else f"limit {limit:g}"
    say(sys.stdout, f"{document['role']}, task {document['task']}", style="bold")
    say(
        sys.stdout,
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
        table.add(*map(_cell, cells.values()))
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
        raise Misconfiguration("FOLDER", folder, f"holds no account: no {ACCOUNT_FILE}")
    document = _account(Account(path), delta)
    if as_json:
        print_json(document, indent=2)
    else:
        _show_account(document)


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
            "STATE", folder, "isn't an owner's: no server's statement"
        )
    findings = _findings(kept, account or folder)
    if other is not None:
        findings += _against(kept, read_kept_statements(other))
    if identity is not None:
        findings += _signatures(kept, identity)
    statements = {
        role.value: _statement(body) for role, (_, body) in kept.statements.items()
    }
    if as_json:
        document = {"sound": not findings, "findings": findings, **statements}
        print_json(document, indent=2)
    else:
        for server, values in statements.items():
            pairs = ", ".join(f"{name} {value}" for name, value in values.items())
            click.echo(f"{server}: {pairs}")
        for finding in findings:
            click.echo(finding)
        click.echo("BROKEN" if findings else "sound")
    sys.exit(1 if findings else 0)


def _account(account: Account, delta: float | None) -> JsonObject:
    """Return what `precad ledger mine` answers: the tasks, their sum, the limit.

    ``delta`` is the δ of the sum; None takes the limit's, or its tasks' smallest.
    """
    charges = list(account.charges.values())
    if delta is None and account.limit is not None:
        delta = account.limit.delta
    elif delta is None:
        delta = min((charge.delta for charge in charges), default=None)
    by_task: dict[tuple[Digest, str, float], list[AccountCharge]] = {}
    for charge in charges:
        key = (charge.task, charge.client, charge.record_rate)
        by_task.setdefault(key, []).append(charge)
    tasks = []
    for (task, client, rate), charged in by_task.items():
        steps = Counter(map(account.event_of, charged))
        first = charged[0]
        tasks.append(
            {
                "task": str(task),
                "client": client,
                "versions": len(charged),
                "further_releases": sum(charge.re_releases for charge in charged),
                "noise_multiplier": first.noise_multiplier,
                "record_rate": rate,
                "delta": first.delta,
                "epsilon": exact_epsilon(steps, first.delta),
            }
        )
    return {
        "tasks": tasks,
        "versions": len(charges),
        "unit": account.unit or Unit.RECORD,
        "delta": delta,
        "epsilon": 0.0 if delta is None else account.epsilon(delta),
        "at_owners": "" if delta is None else at_owners_of(account.events(), delta),
        "limit": _limit(account, charges),
    }


def _limit(account: Account, charges: list[AccountCharge]) -> JsonObject | None:
    """Return an account's limit and what was spent of it; None where it has none."""
    limit = account.limit
    if limit is None:
        return None
    order = None
    only_task = None
    if isinstance(limit, RenyiLimit):
        order = limit.order
    else:
        only_task = str(limit.task)
    spent = account.limited_epsilon()
    # Against whom the limit holds. What was counted never holds against a malicious
    # server, which decides when an owner takes part.
    malicious = bool(charges) and all(charge.malicious_server for charge in charges)
    return {
        "epsilon": limit.epsilon,
        "delta": limit.delta,
        "order": order,
        "only_task": only_task,
        "filter_epsilon": spent,
        "overdrawn": spent is None,
        "raised": isinstance(limit, _RAISED),
        "server": "malicious" if malicious else "curious",
    }


def _show_account(document: JsonObject) -> None:
    """Print what `precad ledger mine` answers: a table of tasks, the sum, the limit."""
    out = sys.stdout
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
        # A task's values are in the order of these columns.
        cells = task | {"task": task["task"][:12], "epsilon": upper(task["epsilon"])}
        table.add(*map(_cell, cells.values()))
    table.show(out)
    if document["delta"] is None:
        say(out, "nothing was shared yet")
        return
    say(
        out,
        f"{document['versions']} versions; exact ε of all together"
        f" {upper(document['epsilon'])}{document['at_owners']} at δ ="
        f" {document['delta']:g}, {document['unit']} level, one curious server",
    )
    limit = document["limit"]
    if limit is None:
        say(out, "no limit")
        return
    limit_text = f"limit ε = {limit['epsilon']:g}"
    if limit["raised"]:
        limit_text = f"raised {limit_text}"
    if limit["server"] == "malicious":
        # It decides when an owner takes part: what was counted was not fixed before.
        say(
            out,
            "Against one malicious server the limit holds, not what was counted.",
        )
    if limit["overdrawn"]:
        say(out, f"{limit_text}: PASSED; nothing more is shared")
        return
    if limit["only_task"] is not None:
        how = f"all of it for task {limit['only_task'][:12]}, counted exactly:"
    else:
        how = f"enforced by a Rényi filter of order {limit['order']:g}: filter ε"
    spent = upper(limit["filter_epsilon"])
    say(out, f"{limit_text} at δ = {limit['delta']:g}, {how} {spent} so far")


def _statement(body: Statement) -> JsonObject:
    """Return what a server signed of an owner's account, as a JSON object."""
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
    """Return what is wrong with both servers' statements, a sentence each.

    They are held against each other, against the owner's own account in the folder
    ``account``, and against the models that the owner was served.
    """
    # The further releases that the account knows of, by task, client and version.
    charged: dict[tuple[Digest, str, int], int] = {}
    for charge in AccountFile(account / ACCOUNT_FILE).new_entries():
        if isinstance(charge, AccountCharge):
            step = (charge.task, charge.client, charge.version)
            charged[step] = max(charge.re_releases, charged.get(step, 0))
    findings = []
    models: dict[int, set[str]] = {}
    for role, (_, body) in kept.statements.items():
        task = Digest(body.task_digest)
        digest = body.model_digest.hex()
        models.setdefault(body.version, set()).add(digest)
        served = kept.models.get((task, body.version))
        if served is not None and str(served) != digest:
            signed = f"{role.value} signed {digest} as model {body.version}"
            findings.append(f"{signed}; this owner was served {served}")
        own = [
            re_releases
            for (charged_task, client, _), re_releases in charged.items()
            if (charged_task, client) == (task, body.client)
        ]
        for m, count in enumerate(re_release_counts(body)):
            known = sum(re_releases >= m for re_releases in own)
            if count > known:
                findings.append(
                    f"{role.value} charged {count} versions with {m} or more further"
                    f" releases; this owner knows of {known}: it signs for what was"
                    " never shared, or this isn't the account"
                )
    for version, digests in models.items():
        if len(digests) > 1:
            both = ", ".join(sorted(digests))
            findings.append(f"the servers signed different models {version}: {both}")
    return findings


def _against(kept: KeptStatements, other: KeptStatements) -> list[str]:
    """Return which models of the same version differed between two owners.

    Raises Misconfiguration: the other one has no version of the same task.
    """
    own_models = kept.served()
    other_models = other.served()
    if not own_models.keys() & other_models.keys():
        raise Misconfiguration(
            "--other",
            other.folder,
            "has no version of the same task: nothing to compare",
        )
    findings = []
    for (task, version), digest in other_models.items():
        own_digest = own_models.get((task, version), digest)
        if own_digest != digest:
            findings.append(
                f"model {version} was {own_digest} for this owner and {digest} for the"
                " other one"
            )
    return findings


def _signatures(kept: KeptStatements, identity: Path) -> list[str]:
    """Return what is wrong with the statements' signatures, a sentence each.

    The folder ``identity`` has the root's certificate.
    """
    verifier = CertificateVerifier(Identity.load(identity))
    findings = []
    for role, (message, _) in kept.statements.items():
        try:
            Statement.checked(verifier, role, message, kept=True)
        except (PeerUnavailable, PeerViolation) as error:
            findings.append(str(error))
    return findings
