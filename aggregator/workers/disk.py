"""A folder of one attempt's bodies on a worker's disk; what killed workers left of theirs goes.

What lies there is encrypted under a key that went with the process: noise that takes room.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "precad-bodies-"
_LOCK, _UNLOCKED = "lock", "lock.new"
"""A folder's lock stands under its name once it is held: a sweep never meets a free one in use."""


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder until the block ends; the system lets go of its lock when the process ends."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        descriptor = os.open(folder / _UNLOCKED, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (folder / _UNLOCKED).rename(folder / _LOCK)
            yield folder
        finally:
            os.close(descriptor)


def remove_left_over() -> None:
    """Remove this user's folders whose process is gone; what can't be removed stays."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and _free(folder / _LOCK):
                shutil.rmtree(folder)


def _free(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
