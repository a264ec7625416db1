"""Files and folders that others may use too, or that must survive a power cut.

A file is whole or not there at all, and on the disk before the call returns. A folder
is one process's alone while it is locked.
"""

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from precad.common.errors import Misconfiguration, StorageFailure

PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644
FOLDER_MODE = 0o700
PUBLIC_FOLDER_MODE = 0o755
_MOST_BYTES = 2**26


def make_folder(path: Path, mode: int = FOLDER_MODE) -> None:
    """Create a folder, of this ``mode`` whatever the umask; one that exists stays as it is."""
    if not path.exists():
        path.mkdir(
            mode=mode,
            parents=True,
            exist_ok=True,
        )
        path.chmod(mode)


def read_regular(path: Path) -> bytes:
    """The bytes of a file that another party may have sent: no device or pipe, at most 64 MiB.

    Raises OSError: it isn't one of those, or can't be read.
    """
    # A pipe is opened without waiting for whoever writes it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"is larger than {_MOST_BYTES >> 20} MiB")
    return data


def write_file(
    path: Path,
    *data: bytes | memoryview,
    mode: int = PRIVATE_MODE,
    replace: bool = True,
) -> None:
    """Write ``path``, one of ``data`` after the other, in place of an older file if ``replace``.

    Raises FileExistsError: it exists and may not be replaced; two writers can't both
    succeed.
    """
    _put(path, data, mode, replace=replace)
    sync(path.parent)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write these files of ``folder``, by name, each as ``write_file`` does; the names at once."""
    for name, data in files.items():
        _put(folder / name, (data,), PRIVATE_MODE, replace=True)
    sync(folder)


def _put(
    path: Path,
    data: Iterable[bytes | memoryview],
    mode: int,
    *,
    replace: bool,
) -> None:
    """All but the folder's entry is on the disk."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb"
        ) as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # the umask must not decide
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.replace(path)
        else:
            # Unlike a rename, a link never replaces what is there, however two writers
            # race.
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Append ``line`` and its end to ``path``, which is created where it doesn't exist.

    A line that a crash cut short lacks its end: whoever reads drops it.
    """
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_MODE)
    # The same bytes on every system.
    with os.fdopen(descriptor, "a", encoding="utf-8", newline="\n") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(path.parent)


def remove_drafts(path: Path) -> None:
    """Remove what a crash left of ``write_file``: it may be as confidential as the file."""
    for draft in path.parent.glob(f".{path.name}.*.part"):
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file, or a folder's entries, durable; Windows can't open a folder, and needn't."""
    if os.name != "nt":
        with _opened(path, os.O_RDONLY) as descriptor:
            os.fsync(descriptor)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, PRIVATE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def waiting_lock(folder: Path, elsewhere: str = "use Linux") -> Iterator[None]:
    """Lock ``folder`` for the block, and write nothing to it; a second process waits.

    Raises Misconfiguration: the system has no such locks; do what ``elsewhere`` says.
    """
    if sys.platform == "win32":
        raise Misconfiguration(
            "folder", str(folder), f"this system can't lock it; {elsewhere}"
        )
    # Here, because `precad keys request` on a data owner's machine needs no Unix.
    import fcntl  # noqa: PLC0415

    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a disk's error while the block writes ``path`` into a StorageFailure with a remedy."""
    try:
        yield
    except OSError as error:
        raise StorageFailure(
            f"{path} can't be written ({error.strerror}): nothing that depends on it is"
            " sent; make room or mend the disk, and start again"
        ) from error


@contextmanager
def state_lock(folder: Path | None) -> Iterator[None]:
    """Lock ``folder`` for the block, or refuse; the system lets go when the process ends.

    Raises Misconfiguration: another process has it.
    """
    if folder is None:
        yield
        return
    with _opened(folder / "lock", os.O_RDWR | os.O_CREAT) as descriptor:
        try:
            _lock(descriptor)
        except OSError:
            remedy = (
                "another process takes part from this folder; stop it, or give every"
                " client and task a folder of its own"
            )
            raise Misconfiguration("state", str(folder), remedy) from None
        yield


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415 -- Windows has none

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
