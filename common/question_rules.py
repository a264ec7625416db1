"""What a question's task must be: filled in where it has no choice, else refused.

One release of what every record answers: T = p = q = 1, no learning rate, no coin, no
clip of an owner. Its owners' bounds follow their sizes, at R for each record.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from precad.common import task_schema as schema
from precad.common.mechanism import MAX_BOUND, owner_bound
from precad.common.questions import LEAST_UNIT, Questions

if TYPE_CHECKING:
    from precad.common.task import Task

ARCHITECTURE = "questions"
"""What stands in the place of a model's."""
_LEFT_OUT = "leave it out: a question is asked once, of every record of every owner"


def filled(data: Mapping[str, Any], questions: Questions) -> dict[str, Any]:
    """Return a task's plain values with those that follow from its questions.

    Values that are there stay: ``wrong_with_questions`` looks at them.
    """
    made = dict(data)
    parameters = [
        block.parameter.model_dump(mode="json") for block in questions.blocks(MAX_BOUND)
    ]
    made.setdefault("model", {"architecture": ARCHITECTURE, "parameters": parameters})
    training = made.get("training", {})
    if isinstance(training, Mapping):
        made["training"] = {"learning_rate": 1.0, "rounds": 1} | dict(training)
    privacy = made.get("privacy")
    if not isinstance(privacy, Mapping):
        return made
    privacy = made["privacy"] = {"record_rate": 1.0, "client_rate": 1.0} | privacy
    enrolment = made.get("enrolment")
    largest = None
    if isinstance(enrolment, Mapping):
        largest = enrolment.get("max_expected_records")
    if not isinstance(largest, int | float) or not 1 <= largest <= MAX_BOUND:
        return made
    if "record_clip" not in privacy:
        # R from 1 to 2: its 2^f-fold is as large as the largest owner's bound allows.
        units = int(MAX_BOUND // largest)
        bits = max(1, units.bit_length() - 1)
        privacy["record_clip"] = math.ldexp(units, -bits)
        made.setdefault("fractional_bits", bits)
    clip = privacy["record_clip"]
    if isinstance(clip, int | float):
        most = {"per_record": 1.0, "most": float(clip * largest)}
        privacy.setdefault("client_clip", most)
    return made


def wrong_with_questions(task: "Task") -> tuple[str, str, object] | None:
    """Return what a task with questions may not say: field, remedy and value."""
    questions = task.questions
    if questions is None:
        if task.columns is not None:
            return "columns", "goes with [[query]]; a training has [data]", "columns"
        return None
    if task.columns is not None and task.data is not None:
        return "columns", "leave it out: [data] names the columns", "columns"
    blocks = task.blocks
    parameters = tuple(block.parameter for block in blocks)
    if task.model != schema.ModelSection(
        architecture=ARCHITECTURE, parameters=parameters
    ):
        return "model", "leave it out: a question has none", task.model.architecture
    privacy = task.privacy
    largest = task.enrolment.max_expected_records
    by_size = schema.ClipBySize(per_record=1.0, most=privacy.record_clip * largest)
    wanted: dict[str, tuple[object, object]] = {
        "local": (task.local, None),
        "objective": (task.objective, None),
        "privacy.record_rate": (privacy.record_rate, 1.0),
        "privacy.client_rate": (privacy.client_rate, 1.0),
        "privacy.cover_uploads": (privacy.cover_uploads, False),
        "privacy.unit": (privacy.unit, None),
        "privacy.client_clip": (privacy.client_clip, by_size),
        "enrolment.planned_units": (task.enrolment.planned_units, None),
    }
    training = schema.TrainingSection(
        learning_rate=1.0, rounds=1, attempts=task.training.attempts
    )
    for name, plain in training:
        wanted[f"training.{name}"] = getattr(task.training, name) or None, plain or None
    for field, (value, right) in wanted.items():
        if value != right:
            return field, _LEFT_OUT, value
    return None


def coarse_blocks(task: "Task") -> tuple[str, str, object] | None:
    """Return what is wrong where a record's norm has too few units of the last place.

    Below four for each of the vector's √d, or in one block, records would mostly be
    rounding.
    """
    norm = owner_bound(task.privacy.record_clip, task.fractional_bits)
    dimension = task.mechanism.dimension
    least = min(task.blocks, key=lambda block: block.unit)
    if norm**2 >= 16 * dimension and least.unit >= LEAST_UNIT:
        return None
    remedy = (
        f"R·2^f = {norm} units hold {norm**2 // 16} numbers, not {dimension}, and leave"
        f" {least.unit} of at least {LEAST_UNIT} to {least.query.name}: ask less at"
        " once, or more evenly, or of smaller owners (enrolment.max_expected_records)"
        " with more fractional_bits"
    )
    return "query", remedy, len(task.blocks)
