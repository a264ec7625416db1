"""What `precad task new` asks on a terminal, and what a task guarantees, in words."""

import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import click

from precad.accounting.adversaries import Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import (
    ASSUMED,
    PrivacyStatement,
    against_a_cheating_server,
    guarantees,
)
from precad.client.check_owner import look_at_owner
from precad.client.gradients.local_update import most_records
from precad.client.gradients.torch_models import BUILT_IN, build
from precad.client.owner_settings import own_model, own_object
from precad.client.records.read_records import read_records
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task

_QUESTIONS = {
    "records": "Records of each owner, like 3x600 or 500,1200,300",
    "epsilon": "ε of a record against one curious server, all rounds together (3 is usual)",
}


def recipe() -> Path | None:
    """The file that says how tables become numbers; None for arrays, or without a terminal."""
    if not _terminal():
        return None
    answer = click.prompt(
        "File that says how the owners' tables become numbers (docs/own-data.md); none for arrays",
        default="none",
    )
    return None if answer == "none" else Path(answer)


Architecture = Literal["logistic", "mlp"]


def model() -> tuple[Architecture | None, str | None]:
    """Architecture, or a model of one's own; neither without a terminal."""
    if not _terminal():
        return None, None
    answer: str = click.prompt(
        "Model: logistic, mlp, or your own as MODULE:NAME", default="logistic"
    )
    match answer:
        case "logistic" | "mlp":
            return answer, None
    return None, answer


def sizes(features: int | None, classes: int | None) -> tuple[int | None, int | None]:
    """Numbers in an input, and labels."""
    if _terminal():
        if features is None:
            features = click.prompt("Numbers in one record's input", type=int)
        if classes is None:
            classes = click.prompt("Labels", type=int)
    return features, classes


def needed(field: str, value: Any) -> Any:
    """What an option gives, or the answer. Raises Misconfiguration: neither is there."""
    if value is not None:
        return value
    if not _terminal():
        raise Misconfiguration(field, None, f"give --{field}")
    return click.prompt(_QUESTIONS[field], type=float if field == "epsilon" else str)


def _terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def statements(task: Task) -> tuple[PrivacyStatement, ...]:
    """The exact statements, before a run."""
    delta = task.privacy.delta
    planned = guarantees(Run.of(task), delta, accountants=(AccountantName.EXACT,))
    cheating = against_a_cheating_server(task, delta)
    return planned if cheating is None else (*planned, cheating)


def sentences(task: Task) -> list[str]:
    """What holds for records and owners, and what is asked of an owner."""
    privacy, training, enrolment = task.privacy, task.training, task.enrolment
    record, other, whole, *cheating = statements(task)
    limit = privacy.epsilon_limit
    stop = (
        "nothing stops an owner at any ε"
        if limit is None
        else f"both servers stop counting an owner at ε = {limit:g}"
    )
    found = [
        (
            f"{enrolment.min_clients:,} to {enrolment.clients:,} owners train {task.dimension:,} "
            f"parameters ({task.model.architecture}) over {training.rounds:,} rounds. Each is "
            f"drawn in a round with probability {privacy.client_rate:g}, then each of its records "
            f"with at most {privacy.record_rate:g}."
        ),
        (
            f"Planned for a record, against one curious server: ε = {record.epsilon:.3g} at "
            f"δ = {record.delta:g}, if its owner takes part {record.compositions:,} times; {stop}."
        ),
        _against_a_cheating_server(cheating, task),
        f"Planned for a record, against other owners only: ε = {other.epsilon:.3g}.",
        f"Planned for a whole owner, both servers honest: ε = {whole.epsilon:.3g}"
        + (", which protects nobody." if whole.epsilon > _NO_PROTECTION else "."),
        (
            f"A record's gradient is cut to a norm of {privacy.record_clip:g}, an owner's update "
            f"to {privacy.client_clip:g}. The servers check that; a longer update passes with "
            f"probability 2^−{task.projections}."
        ),
        f"An owner uploads {8 * task.dimension + 32:,} bytes each time that it takes part"
        + (", and as much when it isn't drawn." if privacy.cover_uploads else "."),
    ]
    if limit is None:
        found.append("Set privacy.epsilon_limit to have an ε enforced.")
    return found


def _against_a_cheating_server(at_cap: Sequence[PrivacyStatement], task: Task) -> str:
    """Which check of norms the task has decides it."""
    if not at_cap:
        return (
            f'Nothing is claimed against a server that cheats: validation = "{task.validation}" '
            "holds against one that follows the protocol."
        )
    (record,) = at_cap
    # A task says how many attempts it has, so both terms are known.
    added = (record.rejection_delta or 0.0) + (record.advantage_delta or 0.0)
    return (
        f'For a record, against {record.against}, as validation = "{task.validation}": '
        f"ε = {record.epsilon:.3g}, at {record.compositions:,} participations, the most that "
        f"count, with δ and {added:.0e} more ({ASSUMED}); who is counted, availability, whole "
        "owners and robustness aren't claimed against it."
    )


_NO_PROTECTION = 20.0


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


MOST_OWNERS = 100_000
"""The most that a task takes."""

_PART = re.compile(r"(?:([0-9][0-9_]{0,15})\s*[xX×]\s*)?([0-9][0-9_]{0,15})")
_FORM = "like 10x6000 (ten owners of 6,000), separated by commas where they differ"


def owners_sizes(text: str) -> tuple[int, ...]:
    """Records of each owner, in order.

    Args:
        text: sizes separated by commas, each with the number of owners that have it before an x
            (1 if there is none); underscores group digits.

    Raises:
        Misconfiguration: a part isn't of this form, a number is 0, or there are more owners than
            a task takes.
    """
    sizes: list[int] = []
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            where = "" if part == text else f"'{part.strip()}' is no size: "
            raise Misconfiguration("records", text, f"{where}give whole numbers {_FORM}")
        owners, size = int(found[1] or "1"), int(found[2])
        if not owners or not size:
            raise Misconfiguration(
                "records", text, f"'{part.strip()}': give 1 or more, owners and records alike"
            )
        if len(sizes) + owners > MOST_OWNERS:
            raise Misconfiguration("records", text, f"a task takes at most {MOST_OWNERS:,} owners")
        sizes += [size] * owners
    return tuple(sizes)


def sizes_text(sizes: tuple[int, ...]) -> str:
    """Return the shortest text of these sizes in their order; ``owners_sizes`` reads it back."""
    runs = [(len(list(run)), size) for size, run in groupby(sizes)]
    return ",".join(str(size) if owners == 1 else f"{owners}x{size}" for owners, size in runs)
