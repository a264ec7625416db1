"""`precad ledger mine` and `precad ledger receipts`: what a data owner keeps for itself."""

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from precad.cli.options import ARGUMENT, AsJson, print_json, with_options
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest, Role
from precad.common.terminal import Table, say, upper

if TYPE_CHECKING:
    from precad.client.account_file import Charge
    from precad.client.own_account import Account
    from precad.client.server_statements import KeptStatements


@click.command()
@with_options
def mine(
    folder: Annotated[
        Path, "The owner's account or state folder.", ARGUMENT, {"metavar": "FOLDER"}
    ],
    delta: Annotated[
        float | None, "δ of the sum; the limit's, or the smallest of its tasks', unless given."
    ],
    as_json: AsJson,
) -> None:
    """A data owner's own account: what its records have spent in all tasks together.

    Record level, against one curious server. EXACT ε is that of this list of steps, as if it had
    been fixed beforehand. Where later tasks were chosen with earlier models in view, the limit's
    own number is the guarantee: FILTER ε, which the limit is enforced by. The limit holds against
    a malicious server too, which chooses when this owner takes part, where every task
    had validation = "proof".
    """
    from precad.client.account_file import ACCOUNT_FILE  # noqa: PLC0415
    from precad.client.own_account import Account  # noqa: PLC0415

    path = folder / ACCOUNT_FILE
    if not path.is_file():
        raise Misconfiguration("FOLDER", str(folder), f"holds no account: no {ACCOUNT_FILE}")
    document = _account(Account(path), delta)
    if as_json:
        print_json(document, indent=2)
    else:
        _show_account(document)


@click.command()
@with_options
def receipts(
    folder: Annotated[Path, "The owner's state folder.", ARGUMENT, {"metavar": "STATE"}],
    account: Annotated[Path | None, "The account's folder; STATE unless given."],
    other: Annotated[
        Path | None, "Another owner's state folder of the same task: were both shown one model?"
    ],
    identity: Annotated[
        Path | None, "A folder with ca.pem: checks the servers' signatures once more."
    ],
    as_json: AsJson,
) -> None:
    """What both servers last signed of an owner's account, compared. Exit 1 where it is bad.

    Both servers' statements are held against each other, against the owner's own account and
    against the models that it was served. That one server counts more than the other is no
    finding: the larger count rules, and the other takes it over when it is shown.
    """
    from precad.client.server_statements import read_kept_statements  # noqa: PLC0415

    kept = read_kept_statements(folder)
    if not kept.statements:
        raise Misconfiguration("STATE", str(folder), "isn't an owner's: no server's statement")
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
            click.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in values.items()))
        for finding in findings:
            click.echo(finding)
        click.echo("BROKEN" if findings else "sound")
    if findings:
        sys.exit(1)


def _account(account: "Account", delta: float | None) -> dict[str, Any]:
    from precad.accounting.filter import RenyiLimit  # noqa: PLC0415
    from precad.client.account_file import RaisedLimit, RaisedWholeLimit  # noqa: PLC0415
    from precad.client.own_account import exact_epsilon  # noqa: PLC0415

    charges = list(account.charges.values())
    if delta is None:
        deltas = [charge.delta for charge in charges]
        delta = account.limit.delta if account.limit is not None else min(deltas, default=None)
    by_task: dict[tuple[Digest, str, float], list[Charge]] = {}
    for charge in charges:
        by_task.setdefault((charge.task, charge.client, charge.record_rate), []).append(charge)
    tasks = [
        {
            "task": str(task),
            "client": client,
            "versions": len(some),
            "further_releases": sum(charge.re_releases for charge in some),
            "noise_multiplier": some[0].noise_multiplier,
            "record_rate": rate,
            "delta": some[0].delta,
            "epsilon": exact_epsilon(Counter(charge.event for charge in some), some[0].delta),
        }
        for (task, client, rate), some in by_task.items()
    ]
    limit = account.limit
    spent = account.filter
    proved = (charge.malicious_server for charge in charges)
    return {
        "tasks": tasks,
        "versions": len(charges),
        "delta": delta,
        "epsilon": 0.0 if delta is None else account.epsilon(delta),
        "limit": None
        if limit is None
        else {
            "epsilon": limit.epsilon,
            "delta": limit.delta,
            "order": limit.order if isinstance(limit, RenyiLimit) else None,
            "only_task": None if isinstance(limit, RenyiLimit) else str(limit.task),
            "filter_epsilon": None if spent is None else spent.epsilon(),
            "overdrawn": spent is None,
            "raised": isinstance(limit, RaisedLimit | RaisedWholeLimit),
            # Never for what was counted.
            "server": "malicious" if charges and all(proved) else "curious",
        },
    }


def _show_account(document: dict[str, Any]) -> None:
    columns = (">versions", ">repeated", ">σ", ">p", ">δ", ">ε")
    table = Table("task", "client", *columns)
    for task in document["tasks"]:
        row = task | {"epsilon": upper(task["epsilon"])}
        cells = [f"{x:g}" if isinstance(x, float) else str(x) for x in row.values()]
        table.add(cells[0][:12], *cells[1:])
    table.show(sys.stdout)
    if document["delta"] is None:
        say(sys.stdout, "nothing was shared yet")
        return
    say(
        sys.stdout,
        f"{document['versions']} versions; exact ε of all together {upper(document['epsilon'])} at "
        f"δ = {document['delta']:g}, record level, one curious server",
    )
    limit = document["limit"]
    if limit is None:
        say(sys.stdout, "no limit")
        return
    of = f"{'raised ' if limit['raised'] else ''}limit ε = {limit['epsilon']:g}"
    if limit["server"] == "malicious":
        # It decides when an owner takes part: what was counted was not fixed before.
        say(sys.stdout, "Against one malicious server the limit holds, not what was counted.")
    if limit["overdrawn"]:
        say(sys.stdout, f"{of}: PASSED; nothing more is shared")
    elif limit["only_task"] is not None:
        say(
            sys.stdout,
            f"{of} at δ = {limit['delta']:g}, all of it for task "
            f"{limit['only_task'][:12]}, counted exactly: {upper(limit['filter_epsilon'])} so far",
        )
    else:
        say(
            sys.stdout,
            f"{of} at δ = {limit['delta']:g}, enforced by a Rényi filter "
            f"of order {limit['order']:g}: filter ε {upper(limit['filter_epsilon'])} so far",
        )


def _statement(kept: "KeptStatements", role: Role) -> dict[str, Any]:
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


def _findings(kept: "KeptStatements", account: Path) -> list[str]:
    from precad.client.account_file import ACCOUNT_FILE, AccountFile, Charge  # noqa: PLC0415
    from precad.client.server_statements import re_release_counts  # noqa: PLC0415

    found = []
    own: dict[tuple[Digest, str, int], int] = {}
    for charge in AccountFile(account / ACCOUNT_FILE).new_entries():
        if not isinstance(charge, Charge):
            continue
        step = charge.task, charge.client, charge.version
        own[step] = max(charge.re_releases, own.get(step, 0))
    models: dict[int, set[str]] = {}
    for role, (_, body) in kept.statements.items():
        task, digest = Digest(body.task_digest), body.model_digest.hex()
        models.setdefault(body.version, set()).add(digest)
        served = kept.models.get((task, body.version))
        if served is not None and str(served) != digest:
            found.append(
                f"{role.value} signed {digest} as model {body.version}; this owner was served "
                f"{served}"
            )
        mine = [m for (of, client, _), m in own.items() if (of, client) == (task, body.client)]
        for m, count in enumerate(re_release_counts(body)):
            known = sum(each >= m for each in mine)
            if count > known:
                found.append(
                    f"{role.value} charged {count} versions with {m} or more further releases; "
                    f"this owner knows of {known}: it signs for what was never shared, or this "
                    "isn't the account"
                )
    found += [
        f"the servers signed different models {version}: {', '.join(sorted(digests))}"
        for version, digests in models.items()
        if len(digests) > 1
    ]
    return found


def _against(kept: "KeptStatements", other: "KeptStatements") -> list[str]:
    ours, theirs = kept.served(), other.served()
    found = [
        f"model {version} was {ours[task, version]} for this owner and {digest} for the other one"
        for (task, version), digest in theirs.items()
        if ours.get((task, version), digest) != digest
    ]
    if not ours.keys() & theirs.keys():
        raise Misconfiguration(
            "--other", str(other.folder), "has no version of the same task: nothing to compare"
        )
    return found


def _signatures(kept: "KeptStatements", identity: Path) -> list[str]:
    from precad.common.errors import PeerUnavailable, PeerViolation  # noqa: PLC0415
    from precad.common.identity.credentials import Identity  # noqa: PLC0415
    from precad.common.identity.signatures import CertificateVerifier  # noqa: PLC0415
    from precad.common.wire.signed_statements import check_statement  # noqa: PLC0415

    verifier = CertificateVerifier(Identity.load(identity))
    found = []
    for role, (message, _) in kept.statements.items():
        try:
            check_statement(verifier, role, message, kept=True)
        except (PeerUnavailable, PeerViolation) as error:
            found.append(str(error))
    return found
