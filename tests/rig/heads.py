"""Questions for a head on features, and owners' tables that have them."""

import numpy as np
from tests.rig.documents import Document
from tests.rig.questions import asking

from precad.common.arrays import Floats, Integers
from precad.common.task import Task

WIDTH = 12
LEVELS = ("a", "b", "c")
DATA: Document = {
    "target": {"name": "kind", "kind": "categorical", "levels": list(LEVELS)},
    "columns": [
        {"name": f"f{place}", "centre": 1.0, "scale": 2.0} for place in range(WIDTH)
    ],
}
HEAD: Document = {"name": "head", "kind": "head", "column": "kind"}


def task_of(
    *queries: Document, sigma: float = 0.02, largest: int = 400, **more: object
) -> Task:
    usual: Document = {
        "columns": None,
        "data": DATA,
        "enrolment": {"clients": 3, "max_expected_records": largest},
    }
    return asking(queries or [HEAD], {"noise_multiplier": sigma}, **(usual | more))


def drawn(count: int, seed: int) -> tuple[Floats, Integers]:
    """Features around their classes', unequal in number, and the classes."""
    draw = np.random.default_rng(seed)
    classes = draw.choice(3, count, p=[0.6, 0.3, 0.1])
    centres = np.random.default_rng(1).normal(0.0, 1.0, (3, WIDTH))
    return 1.0 + 2.0 * (centres[classes] + draw.normal(size=(count, WIDTH))), classes


def table_of(features: Floats, classes: Integers) -> dict[str, list[str]]:
    table = {
        f"f{place}": [repr(float(value)) for value in column]
        for place, column in enumerate(features.T)
    }
    return table | {"kind": [LEVELS[place] for place in classes]}
