"""Files and folders that other processes may use too, or that must survive a power cut.

A file appears whole or not at all, and is on the disk before the call returns. A folder
belongs to one process alone while that process has locked it.
"""

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from precad.common import MayPass, Misconfiguration, StorageFailure

PRIVATE_MODE = 0o600
"""Permissions of a file that only its owner reads and writes."""
PUBLIC_MODE = 0o644
"""Permissions of a file that everybody may read."""
FOLDER_MODE = 0o700
"""Permissions of a folder that only its owner uses."""
PUBLIC_FOLDER_MODE = 0o755
"""Permissions of a folder that everybody may read."""
_MOST_BYTES = 2**26
"""Longest file of another party that is read: 64 MiB."""
FileStamp = tuple[int, int, int]
"""What differs once a file has changed or was replaced."""


def file_stamp(path: Path) -> FileStamp | None:
    """Return what differs once the file has changed; None where it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def make_folder(path: Path, mode: int = FOLDER_MODE) -> None:
    """Create a folder with exactly these permissions, whatever the umask says.

    A folder that exists stays as it is.
    """
    if not path.exists():
        path.mkdir(
            mode=mode,
            parents=True,
            exist_ok=True,
        )
        path.chmod(mode)


def read_regular(path: Path) -> bytes:
    """Return the bytes of a file that another party may have sent, at most 64 MiB.

    Raises OSError: it is no regular file (a device, a pipe), is larger, or can't be
    read.
    """
    # With O_NONBLOCK, opening a pipe doesn't wait for a writer.
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
    *parts: bytes | memoryview,
    mode: int = PRIVATE_MODE,
    replace: bool = True,
) -> None:
    """Write ``parts``, one after the other, as the file ``path``, and sync it.

    An older file is replaced if ``replace``.

    Raises FileExistsError: the file exists and may not be replaced. Of two writers that
    race only one succeeds then.
    """
    _write_and_rename(path, parts, mode=mode, replace=replace)
    sync(path.parent)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files of one folder, by name, each as ``write_file`` does.

    The folder's entries are made durable once, after all files.
    """
    for name, data in files.items():
        _write_and_rename(folder / name, (data,), mode=PRIVATE_MODE, replace=True)
    sync(folder)


def _write_and_rename(
    path: Path,
    parts: Iterable[bytes | memoryview],
    *,
    mode: int,
    replace: bool,
) -> None:
    """Write a draft beside ``path``, sync it, and give it the final name.

    All is on the disk afterwards but the folder's entry, which the caller syncs.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(draft, flags, mode), "wb") as file:
            if hasattr(os, "fchmod"):
                # The umask must not decide about the permissions.
                os.fchmod(file.fileno(), mode)
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.replace(path)
        else:
            # Unlike a rename, a link never replaces an existing file, however two
            # writers race.
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Append ``line`` and a line feed to a file, which is created if it doesn't exist.

    A line that a crash cut short has no line feed: readers drop it.
    """
    is_new = not path.exists()
    with to_append(path) as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync(path.parent)


def to_append(path: Path) -> TextIO:
    """Open a file for text to be appended, the same bytes on every system.

    It is created if it doesn't exist, and this user's alone.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_MODE)
    return os.fdopen(descriptor, "a", encoding="utf-8", newline="")


def remove_drafts(path: Path) -> None:
    """Remove drafts of ``path`` that a crash left behind.

    They may be as confidential as the file itself.
    """
    for draft in path.parent.glob(f".{path.name}.*.part"):
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, durable.

    Does nothing on Windows, which can't open a folder and needn't.
    """
    if os.name != "nt":
        with opened(path, os.O_RDONLY) as descriptor:
            os.fsync(descriptor)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file, by ``os.open``'s flags, or a folder for the block.

    Yields its descriptor; a new file is its owner's alone.
    """
    descriptor = os.open(path, flags, PRIVATE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def waiting_lock(folder: Path, remedy: str = "use Linux") -> Iterator[None]:
    """Lock a folder for the block, without writing to it; a second process waits.

    Raises Misconfiguration: the system has no such locks; ``remedy`` says what to do
    then.
    """
    if sys.platform == "win32":
        raise Misconfiguration("folder", folder, f"this system can't lock it; {remedy}")
    # Loaded here, because `precad keys request` on an owner's machine needs no Unix.
    import fcntl  # noqa: PLC0415

    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def writing(
    path: Path,
    remedy: str = "nothing that depends on it is sent; make room or mend the disk, and"
    " start again",
    failure: type[StorageFailure] = StorageFailure,
) -> Iterator[None]:
    """Turn an OSError of the block, which writes ``path``, into a ``failure``.

    Raises StorageFailure, or the kind of it that is given, which names the file and the
    remedy.
    """
    try:
        yield
    except OSError as error:
        raise failure(
            f"{path} can't be written ({error.strerror}): {remedy}"
        ) from error


@contextmanager
def state_lock(folder: Path | None) -> Iterator[None]:
    """Lock a folder with a client's state for the block; lock nothing where it is None.

    The system releases the lock when the process ends, however it ends.

    Raises MayPass: another process has locked it.
    """
    if folder is None:
        yield
        return
    with opened(folder / "lock", os.O_RDWR | os.O_CREAT) as descriptor:
        try:
            _lock(descriptor)
        except OSError:
            raise MayPass(
                "state",
                folder,
                "another process takes part from this folder; stop it, or give every"
                " client and task a folder of its own",
            ) from None
        yield


def _lock(descriptor: int) -> None:
    """Lock an open file. Raises OSError at once where another process has it."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415 -- Windows has none

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
