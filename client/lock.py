"""One process at a time on an owner's state folder: two would share two updates for one version."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precad.common.durable import PRIVATE_MODE
from precad.common.errors import Misconfiguration


@contextmanager
def held(folder: Path | None) -> Iterator[None]:
    """The block has ``folder`` to itself; the system lets go when the process ends, however.

    Raises:
        Misconfiguration: another process has it.
    """
    if folder is None:
        yield
        return
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, PRIVATE_MODE)
    try:
        try:
            _lock(descriptor)
        except OSError:
            raise Misconfiguration(
                "state",
                str(folder),
                "another process takes part from this folder; stop it, or give every client and "
                "task a folder of its own",
            ) from None
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415 -- Windows has none

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
