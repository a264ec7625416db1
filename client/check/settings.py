"""A settings file looked at whole: one thing that is wrong keeps no other from being found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from precad.client.account_file import ACCOUNT_FILE
from precad.client.check.finding import Findings, Kind
from precad.client.check.servers import WITHIN_S, look_at_servers
from precad.client.check.state import final_model, look_at_state
from precad.client.own_account import OwnAccount
from precad.client.settings import JoinSettings
from precad.common.enrolment import on_grid
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.secret import Secret
from precad.common.task import Task

FINISHED = "finished training"
"""About what it is found that the owner has the task's final model."""


def look_at_settings(path: Path, within_s: float = WITHIN_S) -> Findings:
    """All that ``DataOwner`` refuses and ``DataOwner.check`` finds, for an owner's settings file.

    Nothing is enrolled, and no folder made. The servers are asked first, and the same whatever the
    records are.

    Args:
        path: the settings file.
        within_s: how long the servers may take to answer.
    """
    findings = Findings()
    settings = findings.attempt("settings", lambda: JoinSettings.load(path))
    if settings is None:
        return findings
    task = findings.attempt("task", lambda: Task.load(settings.task))
    client = findings.attempt("settings", lambda: ClientId(settings.client))
    identity = findings.attempt("identity", lambda: Identity.load(settings.identity))
    servers = None
    if identity is not None and client is not None:
        addresses = {Role.SERVER_A: settings.server_a, Role.SERVER_B: settings.server_b}
        token = (
            None if settings.token is None else Secret(settings.token.get_secret_value().encode())
        )
        servers = look_at_servers(task, client, identity, addresses, within_s, token)
    # From here on torch is loaded: while it is, the servers answer.
    from precad.client.check.owner import check_name, look_at_limit  # noqa: PLC0415

    if identity is not None and client is not None:
        about = "identity"
        if findings.passes(about, lambda: check_name(client, identity)):
            findings.good(about, f"{settings.identity} holds a valid certificate of {client}")
    if task is not None:
        findings.good("task", f"{task.name}, digest {task.digest}")
        if client is not None:
            _look_at_training(findings, settings, task, client)
            account = findings.attempt("limit", lambda: _account(settings, task, client))
            if account is not None:
                findings.extend(look_at_limit(task, account))
        findings.extend(look_at_state(task, settings.state, settings.account))
    found = Findings() if servers is None else servers()
    final = None if task is None else final_model(task, settings.state)
    if final is not None:
        findings.note(FINISHED, f"{final} is its final model: nothing is left to take part in")
        # Servers that have left, or take nobody any more, are no mistake then.
        found = Findings(
            replace(each, kind=Kind.NOTE if each.kind is Kind.BAD else each.kind) for each in found
        )
    findings.extend(found)
    return findings


def _look_at_training(
    findings: Findings, settings: JoinSettings, task: Task, client: ClientId
) -> None:
    """Records, model and loss, each by itself and then together."""
    from torch.nn import functional  # noqa: PLC0415

    from precad.client.check.owner import look_at_held_out, look_at_owner  # noqa: PLC0415
    from precad.client.read import read_records  # noqa: PLC0415
    from precad.client.train import as_records, build, most_records  # noqa: PLC0415

    def records(path: Path) -> Any:
        return as_records(read_records(path, task.data, settings.columns))

    def model() -> Any:
        return settings.own_model() or build(task.model)

    found = findings.attempt("data", lambda: records(settings.data))
    module = findings.attempt("model", model)
    loss = findings.attempt("loss", lambda: settings.own_loss() or functional.cross_entropy)
    rate = findings.attempt("settings", lambda: _rate(settings, task))
    if found is None or module is None or loss is None or rate is None:
        return
    held_out = settings.held_out
    if held_out is not None:
        others = findings.attempt("held-out records", lambda: records(held_out))
        if others is not None:
            findings.extend(look_at_held_out(task, others, module, loss))
    most = most_records(len(found), rate)
    findings.extend(look_at_owner(task, client, found, rate, module, loss, most))


def _rate(settings: JoinSettings, task: Task) -> float:
    given = settings.record_rate
    return on_grid(task, task.privacy.record_rate if given is None else given)


def _account(settings: JoinSettings, task: Task, client: ClientId) -> OwnAccount:
    folder = settings.state if settings.account is None else settings.account
    file = folder / ACCOUNT_FILE
    return OwnAccount(
        task,
        _rate(settings, task),
        settings.epsilon_limit,
        file if file.exists() else None,
        client,
    )
