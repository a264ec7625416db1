"""Keys and certificates on disk: keys for their owner's eyes only, one writer at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precad.common.durable import PUBLIC_MODE, write_file
from precad.common.errors import Misconfiguration
from precad.common.secret import Secret


def write_public(path: Path, data: bytes) -> None:
    """Write or replace a file that anybody may read."""
    write_file(path, data, mode=PUBLIC_MODE)


def write_private(path: Path, data: Secret, *, replace: bool = False) -> None:
    """Write a key with mode 0600; never over an existing file unless told.

    Raises:
        Misconfiguration: the file exists and ``replace`` is false.
    """
    try:
        write_file(path, data.reveal(), replace=replace)
    except FileExistsError:
        raise Misconfiguration("file", str(path), "it exists; --force replaces it") from None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One process at a time works in the folder; a second one waits.

    Raises:
        Misconfiguration: the system has no such locks.
    """
    try:
        # Here, because a data owner's process only reads keys, and needs no Unix for that.
        import fcntl  # noqa: PLC0415
    except ImportError:
        raise Misconfiguration(
            "folder", str(folder), "this system can't lock it; make keys on Linux and copy them"
        ) from None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
