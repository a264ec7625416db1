"""The second tier: long schedules, matrices of real processes, documented commands typed in full.

`make test` doesn't collect this folder, `make soak` runs all of it in parts, CI one part a commit.
"""

from tests.faults.conftest import forks, play
from tests.soak.selection import pytest_addoption, pytest_collection_modifyitems, pytest_configure

__all__ = ["forks", "play", "pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]
