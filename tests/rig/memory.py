"""Folders in memory: tests that write and sync thousands of files wait for no disk."""

import shutil
import tempfile
from pathlib import Path

_MEMORY, _LEAST_BYTES = Path("/dev/shm"), 1 << 28


def in_memory() -> "tempfile.TemporaryDirectory[str]":
    """A folder for the time of a ``with``: in memory where the system has room there."""
    room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _LEAST_BYTES
    return tempfile.TemporaryDirectory(
        prefix="precad-test-", dir=_MEMORY if room else None
    )
