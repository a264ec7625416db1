"""Faults: tests that import each other's helpers, whether or not pytest was started as a module."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)


@pytest.fixture(scope="session")
def forks() -> Iterator[Any]:
    """The parent of all processes: seconds to start, and then every restart is cheap."""
    from tests.faults.processes import Forks  # noqa: PLC0415 -- after the path above is set

    forks = Forks()
    yield forks
    forks.close()
