"""Writing keys and certificates: whole or not at all, keys for their owner's eyes only."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precad.common.errors import Misconfiguration
from precad.common.secret import Secret

PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644
FOLDER_MODE = 0o700


def make_folder(path: Path) -> None:
    """Create a folder that only its owner may enter; one that exists is left as it is."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def write_public(path: Path, data: bytes) -> None:
    """Write or replace a file that anybody may read."""
    _write(path, data, mode=PUBLIC_MODE, replace=True)


def write_private(path: Path, data: Secret, *, replace: bool = False) -> None:
    """Write a key with mode 0600; never over an existing file unless told.

    Raises:
        Misconfiguration: the file exists and ``replace`` is false.
    """
    _write(path, data.reveal(), mode=PRIVATE_MODE, replace=replace)


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
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes, *, mode: int, replace: bool) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # the umask must not decide
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            # Unlike a rename, a link never replaces what is there, however two writers race.
            path.hardlink_to(temporary)
            temporary.unlink()
    except FileExistsError:
        raise Misconfiguration("file", str(path), "it exists; --force replaces it") from None
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
