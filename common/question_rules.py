"""What a question's task must be: filled in where it has no choice, else refused.

One release of what every record answers: T = p = q = 1, no learning rate, no coin, no
clip of an owner. Its owners' bounds follow their sizes, at R for each record.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from precad.common import LEAST_UNIT, MAX_BOUND, Block, Mechanism, Questions
from precad.common import task_schema as schema

LEFT_OUT = "leave it out: a question is asked once, of every record of every owner"
"""What is said of a field that a question fixes."""
MOST_OWNERS = 1000
"""Each owner is told whose records count: so many names fit a statement."""
ARCHITECTURE = "questions"
"""What stands in the place of a model's."""
_FIXED: Mapping[str, object] = {
    "local": None,
    "objective": None,
    "privacy.record_rate": 1.0,
    "privacy.client_rate": 1.0,
    "privacy.cover_uploads": False,
    "enrolment.planned_units": None,
    "training.learning_rate": 1.0,
    "training.rounds": 1,
    "training.loss": None,
    "training.any_operations": False,
    "training.least_counted": None,
    "training.class_weights": None,
    "training.compact_release": None,
}


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
        if "unit" in privacy:
            privacy.setdefault("most_records_per_unit", 1)
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


def fixed(
    blocks: Iterable[Block], *, record_clip: float, largest: float
) -> Mapping[str, object]:
    """Return what fields of a question's task must be, by name; None and False alike.

    ``largest`` is how many records an owner may have, and ``record_clip`` is R.
    """
    parameters = tuple(block.parameter for block in blocks)
    return {
        **_FIXED,
        "model": schema.ModelSection(architecture=ARCHITECTURE, parameters=parameters),
        "privacy.client_clip": schema.ClipBySize(
            per_record=1.0, most=record_clip * largest
        ),
    }


def too_coarse(mechanism: Mechanism, blocks: Sequence[Block]) -> str | None:
    """Return what is wrong where a record's norm has too few units of the last place.

    Below four for each of the vector's √d, or in one block, records would mostly be
    rounding.
    """
    norm = round(mechanism.sensitivity_units)
    dimension = mechanism.dimension
    least = min(blocks, key=lambda block: block.unit)
    if norm**2 >= 16 * dimension and least.unit >= LEAST_UNIT:
        return None
    return (
        f"R·2^f = {norm} units hold {norm**2 // 16} numbers, not {dimension}, and leave"
        f" {least.unit} of at least {LEAST_UNIT} to {least.query.name}: ask less at"
        " once, or more evenly, or of smaller owners (enrolment.max_expected_records)"
        " with more fractional_bits"
    )
