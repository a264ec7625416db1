"""The owner's own part: do its records, model, loss, claim and limit go with the task?"""

from typing import Any

from precad.client.check_disk_and_servers import Findings
from precad.client.gradients.local_update import padded_work_s
from precad.client.gradients.rehearsal import rehearse
from precad.client.own_account import OwnAccount
from precad.client.records.torch_records import Records
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.identity.credentials import Identity
from precad.common.identity.party_certificate import Principal
from precad.common.roster import Enrolment
from precad.common.task import Task


def look_at_owner(
    task: Task,
    client: ClientId,
    records: Records,
    record_rate: float,
    model: Any,
    loss: Any,
    most: int,
) -> Findings:
    """Every record with this model and this loss, and the claim that would be made."""
    findings = Findings()
    shape, kind = list(records.inputs.shape[1:]), str(records.inputs.dtype).removeprefix("torch.")
    claim = Enrolment(client, len(records), record_rate)
    if findings.passes("data", lambda: claim.check(task)):
        findings.good("data", f"{len(records):,} records, each {kind}{shape}")
    if findings.passes("model and loss", lambda: rehearse(model, loss, records, task, most)):
        findings.good("model and loss", f"take every record; {task.dimension:,} parameters")
        _look_at_pace(findings, task, records, record_rate, model, loss)
    return findings


def _look_at_pace(
    findings: Findings, task: Task, records: Records, record_rate: float, model: Any, loss: Any
) -> None:
    # The model has just run: what is loaded once is there.
    work_s = padded_work_s(model, loss, records, len(records), record_rate, task, repeats=1)
    text = f"a round's work takes {work_s:.2g} s here, and uploads begin after {{}} s"
    wait_s = task.deadlines.work
    if work_s < wait_s:
        findings.good("pace", text.format(f"{wait_s:g}"))
    else:
        remedy = "this owner's come late, whatever its records: let the task's deadlines.work be"
        findings.note("pace", f"{text.format(f'{wait_s:g}')}: {remedy} {2 * work_s:.2g} or more")


def look_at_held_out(task: Task, records: Records, model: Any, loss: Any) -> Findings:
    """Every record that the owner keeps for trying the models."""
    findings = Findings()
    if findings.passes("held-out records", lambda: rehearse(model, loss, records, task)):
        findings.good("held-out records", f"{len(records):,}, as good as the others")
    return findings


def check_name(client: ClientId, identity: Identity) -> None:
    """The certificate must be this client's: servers believe it, and nothing else.

    Raises:
        Misconfiguration: it is another party's.
    """
    if identity.principal != Principal.client(client.name):
        raise Misconfiguration(
            "client",
            client.name,
            f"the certificate in {identity.path} is {identity.principal}'s: mend the name, or name "
            "the folder of this client's own certificate",
        )


def look_at_limit(task: Task, account: OwnAccount) -> Findings:
    """How far the owner's limit goes."""
    findings = Findings()
    if account.limit is None:
        findings.note("limit", "no epsilon_limit of your own: only the servers' limit holds")
        return findings
    rounds, planned = account.rounds_left(task.training.rounds), task.training.rounds
    text = f"ε = {account.limit.epsilon:g} allows {rounds:,} of the task's {planned:,} rounds"
    if account.whole_task():
        findings.note(
            "limit",
            f"{text}, and goes to this task alone: these records take part in no other under it; "
            f"for that, an epsilon_limit of {account.ample():.2f} or more",
        )
    elif rounds < planned:
        findings.note("limit", f"{text}: raise epsilon_limit to take part to the end")
    else:
        findings.good("limit", text)
    return findings
