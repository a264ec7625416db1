"""`precad ledger mine`, `receipts`: what records spent, and what servers signed."""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import click

from precad.accounting import RenyiLimit, exact_epsilon
from precad.cli import ARGUMENT, AsJson, JsonObject, command, lacking, print_json
from precad.client import account_file
from precad.client.account_file import ACCOUNT_FILE, AccountCharge
from precad.client.account_plan import PlanLimit
from precad.client.data_set_account import Account, at_owners_of
from precad.client.server_statements import (
    KeptStatements,
    re_release_counts,
    read_kept_statements,
)
from precad.common import (
    AlignedTable,
    Digest,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    Unit,
    say,
    upper,
)
from precad.common.identity import CertificateVerifier, Identity
from precad.common.wire import Statement

_RAISED = account_file.RaisedLimit | account_file.RaisedWholeLimit
"""Limits that took a lower one's place, by the owner's word."""


@command()
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
    if as_json:
        print_json(_account(folder, delta), indent=2)
    else:
        show_account(folder, delta)


@command()
def receipts(
    folder: Annotated[
        Path, "The owner's state folder.", ARGUMENT, {"metavar": "STATE"}
    ],
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
        raise lacking(
            folder,
            "statement-*.bin",
            lacks="isn't an owner's: no server's statement",
        )
    findings = _findings(kept, account or folder)
    if other is not None:
        findings += _against(kept, read_kept_statements(other))
    if identity is not None:
        findings += _signatures(kept, identity)
    statements = {
        role.value: _statement(body) for role, body in kept.statements.items()
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


def _account(folder: Path, delta: float | None) -> JsonObject:
    """Return what `precad ledger mine` answers: the tasks, their sum, the limit.

    ``delta`` is the δ of the sum; None takes the limit's, or its tasks' smallest.

    Raises Misconfiguration: the folder holds no account.
    """
    path = folder / ACCOUNT_FILE
    if not path.is_file():
        raise lacking(
            folder, ACCOUNT_FILE, lacks=f"holds no account: no {ACCOUNT_FILE}"
        )
    account = Account(path)
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
    plan = None
    match limit:
        case RenyiLimit():
            order = limit.order
        case PlanLimit():
            plan = limit.left_of(account.held_to_limit())
        case _:
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
        "plan": plan,
        "filter_epsilon": spent,
        "overdrawn": spent is None,
        "raised": isinstance(limit, _RAISED),
        "server": "malicious" if malicious else "curious",
    }


def show_account(folder: Path, delta: float | None = None) -> None:
    """Print what `precad ledger mine` answers: a table of tasks, the sum, the limit.

    Raises Misconfiguration: the folder holds no account.
    """
    document = _account(folder, delta)
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
        table.add(*cells.values())
    table.show()
    if document["delta"] is None:
        say("nothing was shared yet")
        return
    say(
        f"{document['versions']} versions; exact ε of all together"
        f" {upper(document['epsilon'])}{document['at_owners']} at δ ="
        f" {document['delta']:g}, {document['unit']} level, one curious server",
    )
    limit = document["limit"]
    if limit is None:
        say("no limit")
        return
    limit_text = f"limit ε = {limit['epsilon']:g}"
    if limit["raised"]:
        limit_text = f"raised {limit_text}"
    if limit["server"] == "malicious":
        # It decides when an owner takes part: what was counted was not fixed before.
        say(
            "Against one malicious server the limit holds, not what was counted.",
        )
    if limit["overdrawn"]:
        say(f"{limit_text}: PASSED; nothing more is shared")
        return
    plan = limit["plan"]
    if plan is not None:
        table = AlignedTable(">σ, least", ">p, most", ">owners", ">rounds", ">left")
        for training in plan["trainings"]:
            table.add(*training.values())
        table.show()
        how = (
            f"a plan, whose purse has μ = {plan['purse_left']:.4g} left of"
            f" {plan['purse']:.4g}: exact ε"
        )
    elif limit["only_task"] is not None:
        how = f"all of it for task {limit['only_task'][:12]}, counted exactly:"
    else:
        how = f"enforced by a Rényi filter of order {limit['order']:g}: filter ε"
    spent = upper(limit["filter_epsilon"])
    say(f"{limit_text} at δ = {limit['delta']:g}, {how} {spent} so far")


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
    may_be_charged = Account(account / ACCOUNT_FILE).known
    findings = []
    models: dict[int, set[str]] = {}
    for role, body in kept.statements.items():
        task = Digest(body.task_digest)
        digest = body.model_digest.hex()
        models.setdefault(body.version, set()).add(digest)
        served = kept.models.get((task, body.version))
        if served is not None and str(served) != digest:
            findings.append(
                f"{role.value} signed {digest} as model {body.version}; this owner was"
                f" served {served}"
            )
        own = may_be_charged[task, body.client].values()
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
    for role, body in kept.statements.items():
        try:
            Statement.checked(verifier, role, body.signed, kept=True)
        except (PeerUnavailable, PeerViolation) as error:
            findings.append(str(error))
    return findings
