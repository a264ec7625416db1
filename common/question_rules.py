"""What a question's task must be: filled in where it has no choice, else refused.

One release of what every record answers: T = p = q = 1, no learning rate, no coin, no
clip of an owner. Its owners' bounds follow their sizes, at R for each record.
"""

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from precad.common import task_schema as schema
from precad.common.mechanism import MAX_BOUND
from precad.common.questions import LEAST_UNIT, Questions

if TYPE_CHECKING:
    from precad.common.task import Task

ARCHITECTURE = "questions"
"""What stands in the place of a model's."""
_FIXED: Mapping[str, object] = {
    "local": None,
    "objective": None,
    "privacy.record_rate": 1.0,
    "privacy.client_rate": 1.0,
    "privacy.cover_uploads": False,
    "privacy.unit": None,
    "enrolment.planned_units": None,
    "training.learning_rate": 1.0,
    "training.rounds": 1,
    "training.loss": None,
    "training.any_operations": False,
    "training.least_counted": None,
    "training.class_weights": None,
    "training.compact_release": None,
}
"""What a question can't choose; None and False are alike."""
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
    try:
        made["training"] = {
            "learning_rate": 1.0,
            "rounds": 1,
            **made.get("training", {}),
        }
        privacy = {"record_rate": 1.0, "client_rate": 1.0, **made["privacy"]}
        made["privacy"] = privacy
        largest = made["enrolment"]["max_expected_records"]
        if "record_clip" not in privacy:
            # R from 1 to 2: as many units as the largest owner's bound leaves a record.
            units = int(MAX_BOUND // largest)
            bits = units.bit_length() - 1
            privacy["record_clip"] = math.ldexp(units, -bits)
            made.setdefault("fractional_bits", bits)
        most = float(privacy["record_clip"] * largest)
        privacy.setdefault("client_clip", {"per_record": 1.0, "most": most})
    except (TypeError, KeyError, ValueError, ArithmeticError):
        # Parsing says what is wrong with these sections.
        pass
    return made


def wrong_with_questions(task: "Task") -> tuple[str, str, object] | None:
    """Return what a task with questions may not say: field, remedy and value."""
    if task.query is None:
        if task.columns is not None:
            return "columns", "goes with [[query]]; a training has [data]", "columns"
        return None
    if task.columns is not None and task.data is not None:
        return "columns", "leave it out: [data] names the columns", "columns"
    parameters = tuple(block.parameter for block in task.blocks)
    if task.model != schema.ModelSection(
        architecture=ARCHITECTURE, parameters=parameters
    ):
        return "model", "leave it out: a question has none", task.model.architecture
    mechanism = task.mechanism
    most = mechanism.unit_clip * task.enrolment.max_expected_records
    by_size = schema.ClipBySize(per_record=1.0, most=most)
    for field, right in (_FIXED | {"privacy.client_clip": by_size}).items():
        value = attrgetter(field)(task)
        if value != right and (value or right):
            return field, _LEFT_OUT, value
    return None


def coarse_blocks(task: "Task") -> tuple[str, str, object] | None:
    """Return what is wrong where a record's norm has too few units of the last place.

    Below four for each of the vector's √d, or in one block, records would mostly be
    rounding.
    """
    norm = round(task.mechanism.sensitivity_units)
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
