"""Records held against a task, at their owner's: what `precad task check --data` says."""

from pathlib import Path

from precad.client.check_owner import look_at_owner
from precad.client.gradients.local_update import most_records
from precad.client.gradients.torch_models import BUILT_IN, build
from precad.client.owner_settings import own_model, own_object
from precad.client.records.read_records import read_records
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task


def said_of(task: Task, data: Path, model: str | None, loss: str | None = None) -> str:
    """That all records can be used, in a sentence.

    Args:
        task: the task.
        data: the file.
        model: the owner's model, MODULE:NAME; the task's architecture unless given.
        loss: the owner's loss, MODULE:NAME; cross-entropy unless given.

    Raises:
        Misconfiguration: one can't; names it and the remedy.
    """
    from torch.nn import functional  # noqa: PLC0415

    if task.data is None and data.suffix in {".csv", ".parquet"}:
        raise Misconfiguration(
            "data",
            str(data),
            "the task has no [data] that says what a table's columns become: give a .npz file with "
            "arrays x and y, or let precad doctor read it by the [columns] of the owner's settings",
        )
    records = as_records(read_records(data, task.data))
    rate = task.privacy.record_rate
    known = task.model.architecture in BUILT_IN
    if model is None and not known:
        shape = list(records.inputs.shape[1:])
        return (
            f"{len(records):,} records of shape {shape}; give --model to try them with your model"
        )
    module = build(task.model) if model is None else own_model(model)
    tried = functional.cross_entropy if loss is None else own_object("loss", loss)
    most = most_records(len(records), rate)
    findings = look_at_owner(task, ClientId("check"), records, rate, module, tried, most)
    if findings.wrong:
        raise Misconfiguration("data", str(data), findings.wrong[0].text)
    return "; ".join(each.text for each in findings)
