"""What many tests need: a small task that can be varied field by field.

precad is imported here before any test imports gRPC, which reads its TLS settings once.
"""

import gc
from collections.abc import Callable, Mapping

import pytest
from hypothesis import settings
from tests.rig.documents import Document
from tests.rig.leftovers import nothing_is_left_running
from tests.rig.order import pytest_collection_modifyitems

from precad.common.task import Task

__all__ = ["nothing_is_left_running", "pytest_collection_modifyitems"]
# No timed tests: these machines are noisy. The same examples each time, so that the
# same code has the same verdict; `--hypothesis-profile=soak` draws others, and a
# failure prints its example.
settings.register_profile(
    "precad", max_examples=50, deadline=None, print_blob=True, derandomize=True
)
settings.register_profile("soak", max_examples=500, deadline=None, print_blob=True)
settings.load_profile("precad")

# Nearly all that is made until the tests begin stays: see below.
gc.set_threshold(200_000, 30, 30)

TaskMaker = Callable[..., Task]


def pytest_collection_finish() -> None:
    """Modules and tests stay: looking through them for cycles takes a tenth of the
    time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 30, 30)


def task_values(dimension: int = 8) -> Document:
    """The plain values of a valid small task."""
    return {
        "name": "small",
        "model": {"parameters": [{"name": "w", "shape": [dimension]}]},
        "privacy": {
            "record_clip": 1.0,
            "client_clip": 20.0,
            "noise_multiplier": 2.0,
            "record_rate": 0.2,
            "client_rate": 1.0,
        },
        "training": {"learning_rate": 0.5, "rounds": 10},
        "enrolment": {"clients": 10, "max_expected_records": 100.0},
        "fractional_bits": 20,
    }


def small_task(dimension: int = 8, changes: Mapping[str, object] | None = None) -> Task:
    """``small_task(16, {"privacy.client_clip": 30.1})``: a task with some fields
    changed."""
    values = task_values(dimension)
    for path, value in (changes or {}).items():
        *sections, field = path.split(".")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        section[field] = value
    return Task.parse(values)


@pytest.fixture(scope="session")
def make_task() -> TaskMaker:
    return small_task
