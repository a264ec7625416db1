"""One process at a time in a folder."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precad.common.errors import Misconfiguration


@contextmanager
def exclusive(folder: Path, elsewhere: str = "use Linux") -> Iterator[None]:
    """The block has ``folder`` to itself; a second process waits until it ends.

    Args:
        folder: exists; nothing is written to it.
        elsewhere: what to do on a system without such locks, for the error.

    Raises:
        Misconfiguration: the system has no such locks.
    """
    if sys.platform == "win32":
        raise Misconfiguration("folder", str(folder), f"this system can't lock it; {elsewhere}")
    # Here, because `precad keys request` on a data owner's machine needs no Unix.
    import fcntl  # noqa: PLC0415

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
