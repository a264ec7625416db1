"""A task file from what is wanted, with a comment at each field; and what a task guarantees."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from precad.accounting.guarantees import ASSUMED, PrivacyStatement, planned_guarantees
from precad.cli.local_deployment import toml_value
from precad.cli.report import longer_update_passes
from precad.cli.task_command import Wishes
from precad.cli.task_planning import ROOM_IN_SIZES, upload_bytes
from precad.client.own_account import OwnAccount
from precad.common.task import Task
from precad.common.terminal import upper

_WIDTH = 98
_NO_PROTECTION = 20.0


def described(made: Task, wishes: Wishes) -> str:
    """What was planned, for the head of the file."""
    most = math.floor(made.enrolment.max_expected_records / made.privacy.record_rate)
    record = planned_guarantees(made)[0]
    owners = "" if wishes.owners is None else f"{wishes.owners}x"
    return (
        f"Planned for owners of {owners}{wishes.records} records: ε = {upper(record.epsilon, 3)} "
        f"at δ = {made.privacy.delta:g} for a record against one curious server. "
        "training.learning_rate and privacy.client_clip suit most tasks (docs/simulate.md): try "
        "others on public data with precad simulate --try. An owner may hold up to "
        f"{most:,} records, {ROOM_IN_SIZES:g} times the most that was planned for "
        "(enrolment.max_expected_records); one with more claims a lower record_rate. "
        "precad task show says what it guarantees. Everybody has the same file: its digest is in "
        "every message."
    )


def written(made: Task, head: str) -> str:
    """The file's text with this comment as its head; ``Task.parse`` of it gives the task."""
    values = made.model_dump(mode="json")
    blocks = [_comment(head), *_tables(Task, values, "")]
    return "\n\n".join(blocks) + "\n"


def meaning(field: FieldInfo) -> str:
    """The text under a field in the schema, in one line."""
    return " ".join(str(field.description).split())


def table_of(annotation: Any) -> type[BaseModel] | None:
    """The table that a field is, or holds many of."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def _tables(model: type[BaseModel], values: dict[str, Any], section: str) -> Iterator[str]:
    """A table's own fields, each with its comment, and then the tables in it."""
    inner = {
        name: found
        for name, field in model.model_fields.items()
        if (found := table_of(field.annotation)) and not isinstance(values[name], list)
    }
    lines = [f"[{section}]"] if section else []
    for name, field in model.model_fields.items():
        if name not in inner:
            lines += [_comment(meaning(field)), _assigned(name, values[name])]
    yield "\n".join(lines)
    for name, table in inner.items():
        if values[name] is not None:
            yield from _tables(table, values[name], f"{section}.{name}".lstrip("."))


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _assigned(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} ="
    if isinstance(value, list) and value and isinstance(value[0], dict):
        # Without what is as it is without saying so.
        value = [{k: v for k, v in row.items() if v not in (None, [])} for row in value]
    return f"{name} = {toml_value(value)}"


def sentences(made: Task) -> list[str]:
    """What holds for records and owners, and what is asked of an owner."""
    privacy, training, enrolment = made.privacy, made.training, made.enrolment
    record, other, whole, *cheating = planned_guarantees(made)
    limit = privacy.epsilon_limit
    stop = "nothing stops an owner at any ε"
    if limit is not None:
        stop = f"both servers stop counting an owner at ε = {limit:g}"
    alone = upper(record.epsilon)
    ample = max(float(alone), OwnAccount(made, privacy.record_rate, None, None).ample())
    nobody = ", which protects nobody" if whole.epsilon > _NO_PROTECTION else ""
    undrawn = ", and as much when it isn't drawn" if privacy.cover_uploads else ""
    found = f"""\
{enrolment.min_clients:,} to {enrolment.clients:,} owners train {made.dimension:,} parameters \
({made.model.architecture}) over {training.rounds:,} rounds. Each is drawn in a round with \
probability {privacy.client_rate:g}, then each of its records with at most {privacy.record_rate:g}.
Planned for a record, against one curious server: ε = {upper(record.epsilon, 3)} at \
δ = {record.delta:g}, if its owner takes part {record.compositions:,} times; {stop}.
{_against_a_cheating_server(cheating, made)}
Planned for a record, against other owners only: ε = {upper(other.epsilon, 3)}.
Planned for a whole owner, both servers honest: ε = {upper(whole.epsilon, 3)}{nobody}.
A record's gradient is cut to a norm of {privacy.record_clip:g}, an owner's update to \
{privacy.client_clip:g}. The servers check that; a longer update passes with probability \
{longer_update_passes(made)}.
An owner uploads {upload_bytes(made):,} bytes each time that it takes part{undrawn}.
An owner that sets an epsilon_limit of its own takes part to the end with {alone} or more; for \
other tasks under the same limit, {ample:g} or more."""
    if limit is None:
        found += "\nSet privacy.epsilon_limit to have an ε enforced."
    return found.split("\n")


def _against_a_cheating_server(at_cap: Sequence[PrivacyStatement], made: Task) -> str:
    """Which check of norms the task has decides it."""
    if not at_cap:
        return (
            f'Nothing is claimed against a server that cheats: validation = "{made.validation}" '
            "holds against one that follows the protocol."
        )
    (record,) = at_cap
    # A task says how many attempts it has, so both terms are known.
    added = (record.rejection_delta or 0.0) + (record.advantage_delta or 0.0)
    return (
        f'For a record, against {record.against}, as validation = "{made.validation}": '
        f"ε = {upper(record.epsilon, 3)}, at {record.compositions:,} participations, the most that "
        f"count, with δ and {upper(added, 2)} more ({ASSUMED}); who is counted, availability, "
        "whole owners and robustness aren't claimed against it."
    )
