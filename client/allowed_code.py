"""Code that lies beside an owner's settings runs only once the owner has allowed it.

Settings may come from somebody else, as a kit's archive, and with them a file that they
name. What lies in the folder where the owner works, or is installed, the owner has put
there.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, all_suffixes
from pathlib import Path
from types import CodeType, ModuleType

from precad.common.errors import Misconfiguration, one_line
from precad.common.files import append_line, make_folder, read_regular

_SHOWN = 5


@contextmanager
def code_from(field: str, place: str, folder: Path | None) -> Iterator[None]:
    """Let MODULE:NAME be imported from the current folder, or from ``folder`` where it is allowed.

    ``folder`` is the settings', whose ``field`` names it; None where a person typed
    ``place``.

    Raises Misconfiguration: it, or what it imports, lies in ``folder``, and its owner
    hasn't allowed what is there.
    """
    usual = list(sys.path)
    found = [str(Path.cwd())]
    beside = None
    if folder is not None:
        beside = _Beside(field, place, folder.resolve())
        first = place.partition(":")[0].partition(".")[0]
        if PathFinder.find_spec(first, [str(folder)]) is not None:
            beside.require_allowed()
            found.insert(0, str(folder))
        sys.meta_path.insert(0, beside)
    sys.path[:0] = found
    try:
        yield
    finally:
        sys.path[:] = usual
        if beside is not None:
            beside.only_what_came()


class _Beside(MetaPathFinder):
    """Sees each import, by whichever name and whoever's: one from the folder has to be allowed.

    Afterwards it stays for the packages that came from there: a layer may import when
    it is made.
    """

    def __init__(self, field: str, place: str, folder: Path) -> None:
        self._field = field
        self._place = place
        self._folder = folder
        self._installed = _installed(folder)
        self._looked_at: frozenset[str] = frozenset()
        self._came: set[str] = set()
        self._all = True

    def require_allowed(self) -> None:
        self._looked_at = _require_allowed(self._field, self._place, self._folder)

    def only_what_came(self) -> None:
        self._all = False
        if not self._came:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What is to be run from the folder; None for everything else, which others find.

        Raises Misconfiguration: it isn't allowed.
        """
        first = name.partition(".")[0]
        looks = self._all or first in self._came
        spec = PathFinder.find_spec(name, path, target) if looks else None
        if spec is None or not spec.has_location or spec.origin is None:
            return None
        file = self._file(Path(spec.origin))
        if file is None:
            return None
        if not self._looked_at:
            self.require_allowed()
        if file not in self._looked_at:
            raise Misconfiguration(
                self._field,
                self._place,
                f"runs {file}, which lies beside the settings and isn't shown: give it"
                " without a linked folder or __pycache__ in between",
            )
        self._came.add(first)
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _AsShown(spec.loader.name, spec.loader.path)
        return spec

    def _file(self, origin: Path) -> str | None:
        """Its name in the folder; None where it isn't there, or Python is installed around it."""
        as_named = Path(os.path.abspath(origin))  # noqa: PTH100 -- no link is followed
        for each in (origin.resolve(), as_named):
            if each.is_relative_to(self._folder):
                if any(each.is_relative_to(place) for place in self._installed):
                    return None
                return each.relative_to(self._folder).as_posix()
        return None


class _AsShown(SourceFileLoader):
    """What is compiled in ``__pycache__`` isn't what was looked at."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 -- as importlib calls it
        return self.source_to_code(self.get_data(self.path), self.path)


def _installed(folder: Path) -> list[Path]:
    """Where this Python finds modules in a part of the folder, such as an environment's."""
    places = [Path(each).resolve() for each in sys.path if each]
    return [each for each in places if each != folder and each.is_relative_to(folder)]


def allowed_file() -> Path:
    """Where the digests of allowed code stand, a line each: outside of any folder that travels."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "precad" / "allowed-code"


def _require_allowed(field: str, place: str, folder: Path) -> frozenset[str]:
    """Return the files of the folder that may run.

    Raises Misconfiguration: they may not.
    """
    try:
        known = allowed_file()
        (names, digest) = _digest(folder)
    except OSError as error:
        raise Misconfiguration(
            field,
            place,
            f"lies beside the settings, with what can't be looked at: {error}",
        ) from None
    if known.is_file() and digest in known.read_text(encoding="utf-8").split():
        return frozenset(names)
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    if sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write(
            f"These settings name code that lies beside them: {field} ="
            f" {one_line(place)}\nIn {one_line(str(folder))}:"
            f" {one_line(shown)}\nSHA-256 of all of it: {digest}\nIt would run as you,"
            " with your records in reach. Look at it first, whoever sent it.\nAllow it"
            " from now on? [y/N] "
        )
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            make_folder(known.parent)
            append_line(known, digest)
            return frozenset(names)
    raise Misconfiguration(
        field,
        place,
        f"is code that lies beside the settings ({shown}) and isn't allowed here: look"
        " at it, then say yes to precad doctor on a terminal, or add a line to"
        f" {known}: {digest}",
    )


def _digest(folder: Path) -> tuple[list[str], str]:
    """All that Python may import from the folder, by name, and a SHA-256 of names and contents."""
    suffixes = tuple(all_suffixes())
    digest = hashlib.sha256()
    others = _installed(folder)
    files = (
        path
        for path in folder.rglob("*")
        if path.name.endswith(suffixes) and not any(map(path.is_relative_to, others))
    )
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    names = [name for name in names if "__pycache__" not in name.split("/")]
    for name in names:
        for part in (name.encode(), read_regular(folder / name)):
            digest.update(hashlib.sha256(part).digest())
    return names, digest.hexdigest()
