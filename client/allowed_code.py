"""Code that lies beside an owner's settings runs only once the owner has allowed it.

Settings may come from somebody else, as a kit's archive, and with them a file that they name. What
lies in the folder where the owner works, or is installed, the owner has put there.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder, all_suffixes
from pathlib import Path

from precad.common.errors import Misconfiguration, one_line
from precad.common.files import append_line, make_folder, read_regular

_SHOWN = 5


@contextmanager
def code_from(field: str, place: str, folder: Path | None) -> Iterator[None]:
    """Let MODULE:NAME be imported from the current folder, or from ``folder`` where it is allowed.

    Args:
        field: of the settings, for errors.
        place: MODULE:NAME.
        folder: of the settings; None where a person typed ``place``.

    Raises:
        Misconfiguration: it lies in ``folder``, and its owner hasn't allowed what is there.
    """
    first = place.partition(":")[0].partition(".")[0]
    usual, cache, found = list(sys.path), sys.pycache_prefix, [str(Path.cwd())]
    if folder is not None and PathFinder.find_spec(first, [str(folder)]) is not None:
        _require_allowed(field, place, folder)
        # What is compiled there isn't what was looked at.
        sys.pycache_prefix = os.devnull
        found.insert(0, str(folder))
    sys.path[:0] = found
    try:
        yield
    finally:
        sys.path[:], sys.pycache_prefix = usual, cache


def allowed_file() -> Path:
    """Where the digests of allowed code stand, a line each: outside of any folder that travels."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "precad" / "allowed-code"


def _require_allowed(field: str, place: str, folder: Path) -> None:
    known, (names, digest) = allowed_file(), _digest(folder)
    if known.is_file() and digest in known.read_text(encoding="utf-8").split():
        return
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    if sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write(
            f"These settings name code that lies beside them: {field} = {one_line(place)}\n"
            f"In {one_line(str(folder))}: {one_line(shown)}\nSHA-256 of all of it: {digest}\n"
            "It would run as you, with your records in reach. Look at it first, whoever sent it.\n"
            "Allow it from now on? [y/N] "
        )
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            make_folder(known.parent)
            append_line(known, digest)
            return
    raise Misconfiguration(
        field,
        place,
        f"is code that lies beside the settings ({shown}) and isn't allowed here: look at it, then "
        f"say yes to precad doctor on a terminal, or add a line to {known}: {digest}",
    )


def _digest(folder: Path) -> tuple[list[str], str]:
    """All that Python may import from the folder, by name, and a SHA-256 of names and contents."""
    suffixes, digest = tuple(all_suffixes()), hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.name.endswith(suffixes))
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    names = [name for name in names if "__pycache__" not in name.split("/")]
    for name in names:
        for part in (name.encode(), read_regular(folder / name)):
            digest.update(hashlib.sha256(part).digest())
    return names, digest.hexdigest()
