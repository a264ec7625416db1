"""Files that survive a power cut: whole or not at all, on the disk before the call returns."""

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644
FOLDER_MODE = 0o700


def make_folder(path: Path) -> None:
    """Create a folder that only its owner may enter; one that exists is left as it is."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def write_file(
    path: Path, *data: bytes | memoryview, mode: int = PRIVATE_MODE, replace: bool = True
) -> None:
    """Write ``path``, one of ``data`` after the other, in place of an older file if ``replace``.

    Raises:
        FileExistsError: it exists and may not be replaced; two writers can't both succeed.
    """
    _put(path, data, mode, replace=replace)
    _sync_folder(path.parent)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write these files of ``folder``, by name, each as ``write_file`` does; the names at once."""
    for name, data in files.items():
        _put(folder / name, (data,), PRIVATE_MODE, replace=True)
    _sync_folder(folder)


def _put(path: Path, data: Iterable[bytes | memoryview], mode: int, *, replace: bool) -> None:
    """All but the folder's entry is on the disk."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # the umask must not decide
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.replace(path)
        else:
            # Unlike a rename, a link never replaces what is there, however two writers race.
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def append_line(path: Path, line: str, *, mode: int = PRIVATE_MODE) -> None:
    """Append ``line`` and its end to ``path``, which is created where it doesn't exist.

    A line that a crash cut short lacks its end: whoever reads drops it.
    """
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
    # The same bytes on every system.
    with os.fdopen(descriptor, "a", encoding="utf-8", newline="\n") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync_folder(path.parent)


def remove_drafts(path: Path) -> None:
    """Remove what a crash left of ``write_file``: it may be as confidential as the file."""
    for draft in path.parent.glob(f".{path.name}.*.part"):
        draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the folder's entries durable; Windows can't open a folder, and needs no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
