"""What costs seconds to make is made once a run, whichever processes run the tests that need it."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

MADE = ".made"
"""Names a folder that is whole."""


def made_once(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that all tests of a run share, and that none may change.

    Args:
        folders: of any of the processes that run tests.
        name: the folder's.
        make: fills the empty folder. Others wait meanwhile; where it fails, the next one tries.
    """
    own = folders.getbasetemp()
    # Under pytest-xdist each process has a folder of its own, in one that they share.
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    number = 0
    with (shared / f"{name}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while (folder := shared / f"{name}-{number}").exists():
            if (folder / MADE).exists():
                return folder
            number += 1
        folder.mkdir()
        make(folder)
        (folder / MADE).touch()
    return folder
