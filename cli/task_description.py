"""A task in words: its file with comments, and what it guarantees to an owner.

For `precad task new` and `precad task show`.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from precad.accounting import guarantees
from precad.cli import Wishes, longer_update_passes, toml_value, upload_bytes
from precad.client.own_account import OwnAccount
from precad.common import (
    NOT_PRESENCE,
    ROOM_IN_SIZES,
    LocalTraining,
    Mechanism,
    Task,
    Unit,
    between,
    upper,
)

_WIDTH = 98
"""Characters in a line of a comment at most."""
_NO_PROTECTION = 20.0
"""An ε above it protects nobody."""


def described(made: Task, wishes: Wishes) -> str:
    """Return what was planned for these wishes, for the head of the task's file."""
    most = math.floor(made.enrolment.max_expected_records / made.mechanism.unit_rate)
    record = guarantees.planned_guarantees(made)[0]
    owners = "" if wishes.owners is None else f"{wishes.owners}x"
    held = made.mechanism.claimed.plural
    lower = ""
    if made.local is None:
        lower = "; one with more claims a lower record_rate"
    return (
        f"Planned for owners of {owners}{wishes.records} {held}: ε ="
        f" {upper(record.epsilon, 3)}{record.at_owners} at δ ="
        f" {made.privacy.delta:g} for {record.unit.one}"
        " against one curious server. training.learning_rate and privacy.client_clip"
        " suit most tasks (docs/simulate.md): try others on public data with precad"
        f" simulate --try. An owner may hold up to {most:,} {held}, {ROOM_IN_SIZES:g}"
        f" times the most that was planned for (enrolment.max_expected_records){lower}."
        " The sum is divided by the number that"
        " was planned (enrolment.planned_units). precad task show says what it"
        " guarantees. Everybody has the same file: its digest is in every message."
    )


def written(made: Task, head: str) -> str:
    """Return the text of the task's file, with ``head`` as a comment above all.

    ``Task.parse`` of its values gives the task.
    """
    tables = _tables(Task, made.model_dump(mode="json"), section="")
    return "\n\n".join([_comment(head), *tables]) + "\n"


def meaning(field: FieldInfo) -> str:
    """Return the text under a field in the schema, in one line."""
    return " ".join(str(field.description).split())


def table_of(annotation: object) -> type[BaseModel] | None:
    """Return the table that a field is, or holds many of; None for another type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = map(table_of, get_args(annotation))
    return next((table for table in found if table is not None), None)


def _tables(
    model: type[BaseModel], values: Mapping[str, Any], section: str
) -> Iterator[str]:
    """Yield a table's own fields, each with its comment, and then the tables in it.

    Args:
        model: the table's fields.
        values: their values, as plain ones.
        section: the table's name in the file; empty for the whole file.
    """
    inner = {}
    lines = [f"[{section}]"] if section else []
    for name, field in model.model_fields.items():
        value = values[name]
        table = table_of(field.annotation)
        if table is not None and not isinstance(value, list | float):
            inner[name] = table
            continue
        if isinstance(value, list) and value and isinstance(value[0], dict):
            # A row's fields that are as they are without being said are left out.
            value = [_without_empty(row) for row in value]
        assigned = f"# {name} =" if value is None else f"{name} = {toml_value(value)}"
        lines += [_comment(meaning(field)), assigned]
    yield "\n".join(lines)
    for name, table in inner.items():
        if values[name] is not None:
            yield from _tables(table, values[name], f"{section}.{name}".lstrip("."))


def _without_empty(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row without its fields that are None or an empty list.

    A parameter's shape stays: of a single number it is empty.
    """
    return {
        name: value
        for name, value in row.items()
        if value not in (None, []) or name == "shape"
    }


def _comment(text: str) -> str:
    """Return a text as lines of a TOML comment."""
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def sentences(made: Task) -> list[str]:
    """Return what `precad task show` says of a task, for an owner.

    That is what it guarantees for units and owners, and what it asks of an owner.
    """
    mechanism = made.mechanism
    enrolment = made.enrolment
    by_server, by_owners, whole_owner, *cheating = guarantees.planned_guarantees(made)
    limit = made.privacy.epsilon_limit
    if limit is None:
        stop = "nothing stops an owner at any ε"
    else:
        stop = f"both servers stop counting an owner at ε = {limit:g}"
    alone = upper(by_server.epsilon)
    account = OwnAccount(made, mechanism.unit_rate, None, None)
    beside_others = max(float(alone), account.ample())
    undrawn = ", and as much when it isn't drawn" if mechanism.hides_coin else ""
    unit = mechanism.unit.one
    who = "it" if mechanism.unit == Unit.OWNER else "its owner"
    lines = [
        (
            f"{enrolment.min_clients:,} to {enrolment.clients:,} owners"
            f" {_what_owners_do(made)}."
        ),
        (
            f"Planned for {unit}, against one curious server: ε ="
            f" {upper(by_server.epsilon, 3)}{by_server.at_owners} at δ ="
            f" {by_server.delta:g}, if {who}"
            f" takes part {by_server.compositions:,} times; {stop}."
        ),
        _against_a_cheating_server(cheating, made),
        (
            f"Planned for {unit}, against other owners only: ε ="
            f" {upper(by_owners.epsilon, 3)}{by_owners.at_owners}."
        ),
    ]
    if mechanism.unit == Unit.OWNER:
        lines.append(NOT_PRESENCE)
    else:
        useless = whole_owner.epsilon > _NO_PROTECTION
        nobody = ", which protects nobody" if useless else ""
        lines.append(
            "Planned for a whole owner, both servers honest: ε ="
            f" {between(whole_owner.least_epsilon, whole_owner.epsilon, 3)}{nobody}."
        )
    lines += [
        (
            f"{_what_is_clipped(mechanism)} The servers check that; a longer update"
            f" passes with probability {longer_update_passes(made)}."
        ),
        (
            f"An owner uploads {upload_bytes(made):,} bytes each time that it takes"
            f" part{undrawn}."
        ),
        (
            "An owner that sets an epsilon_limit of its own takes part to the end with"
            f" {alone} or more; for other tasks under the same limit,"
            f" {beside_others:g} or more."
        ),
    ]
    if mechanism.step is not None:
        lines.append(f"A round's sum is divided by {mechanism.divided_by}.")
    if made.training.class_weights:
        lines.append(by_class(made, made.training.class_weights))
    if limit is None:
        lines.append("Set privacy.epsilon_limit to have an ε enforced.")
    return lines


def by_class(made: Task, weights: Sequence[float]) -> str:
    """Return what each class's gradients count by, and so which class is rare."""
    # Torch takes seconds to import.
    from precad.client.gradients import level_names  # noqa: PLC0415

    classes = level_names(made, len(weights))
    named = map("{} {:g}".format, classes, weights)
    rarest = classes[weights.index(max(weights))]
    return (
        f"A record's gradient counts by its class: {', '.join(named)}. So {rarest} is"
        " taken for the rarest class."
    )


def _what_owners_do(made: Task) -> str:
    """Return what owners train, or answer."""
    mechanism = made.mechanism
    if made.query is not None:
        names = ", ".join(query.name for query in made.query)
        return f"answer, once, from all their records: {names}"
    return (
        f"train {mechanism.dimension:,} parameters ({made.model.architecture}) over"
        f" {mechanism.releases:,} rounds. Each is drawn in a round with probability"
        f" {mechanism.owner_rate:g}, {_what_a_drawn_owner_does(mechanism)}"
    )


def _what_a_drawn_owner_does(mechanism: Mechanism) -> str:
    """Return what an owner samples or trains once it is drawn."""
    if isinstance(mechanism.contribution, LocalTraining):
        epochs = mechanism.contribution.epochs
        often = "once" if epochs == 1 else f"{epochs} times"
        return f"then goes {often} through all its records"
    most = mechanism.most_records_per_unit
    alone = "" if most is None else f", by the mean of up to {most} records each"
    return (
        f"then each of its {mechanism.unit.plural} with at most"
        f" {mechanism.unit_rate:g}{alone}"
    )


def _what_is_clipped(mechanism: Mechanism) -> str:
    """Return which norms are bounded, and by what."""
    if mechanism.unit == Unit.OWNER:
        return f"An owner's whole update is cut to a norm of {mechanism.owner_clip:g}."
    what = "answer has" if mechanism.step is None else "gradient is cut to"
    return (
        f"{mechanism.unit.one.capitalize()}'s {what} a norm of"
        f" {mechanism.unit_clip:g}, an owner's update to"
        f" {mechanism.owner_clip_in_words}."
    )


def _against_a_cheating_server(
    at_cap: Sequence[guarantees.PrivacyStatement], made: Task
) -> str:
    """Return what holds against a server that cheats.

    The task's check of norms decides it: ``at_cap`` is the one statement that holds
    with proofs, and empty otherwise.
    """
    if not at_cap:
        return (
            "Nothing is claimed against a server that cheats: validation ="
            f' "{made.validation}" holds against one that follows the protocol.'
        )
    (record,) = at_cap
    added = upper(record.added_delta or 0.0, 2)
    return (
        f"For {record.unit.one}, against {record.against}, as validation ="
        f' "{made.validation}": ε = {upper(record.epsilon, 3)}{record.at_owners}, at'
        f" {record.compositions:,} participations, the most that count, each released"
        f" once, with δ and {added} more ({guarantees.ASSUMED}); who is counted,"
        " availability, a whole owner's presence and robustness aren't claimed against"
        " it."
    )
