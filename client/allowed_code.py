"""Code that lies beside an owner's settings runs only once the owner has allowed it.

Settings may come from somebody else, for example as a kit's archive, and with them a
file of code that they name. Code in the folder where the owner works, and code that is
installed, was put there by the owner: it needs no permission.
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

from precad.common import (
    Misconfiguration,
    append_line,
    make_folder,
    one_line,
    read_regular,
)

_MOST_SHOWN = 5
"""Names of files that a message lists."""


@contextmanager
def code_from(field: str, place: str, folder: Path | None) -> Iterator[None]:
    """Let the block import MODULE:NAME from the current folder or the settings' folder.

    Args:
        field: the setting that names the code.
        place: its value, MODULE:NAME.
        folder: the folder of the settings; None where a person typed ``place``. Code is
            taken from here first, once its owner has allowed it.

    Raises Misconfiguration: the code, or what it imports, lies in ``folder``, and its
    owner hasn't allowed what is there.
    """
    search_path = list(sys.path)
    added_folders = [str(Path.cwd())]
    finder = None
    if folder is not None:
        finder = _SettingsFolderFinder(field, place, folder.resolve())
        package = place.partition(":")[0].partition(".")[0]
        if PathFinder.find_spec(package, [str(folder)]) is not None:
            finder.require_allowed()
            added_folders.insert(0, str(folder))
        sys.meta_path.insert(0, finder)
    sys.path[:0] = added_folders
    try:
        yield
    finally:
        sys.path[:] = search_path
        if finder is not None:
            finder.keep_own_packages_only()


class _SettingsFolderFinder(MetaPathFinder):
    """Lets a module be imported from the settings' folder only where that is allowed.

    It stands before all other finders, so it sees each import, by whichever name and
    from whichever module. After the block of ``code_from`` it stays for the packages
    that came from the folder: a layer may import when it is made.
    """

    def __init__(self, field: str, place: str, folder: Path) -> None:
        self._field = field
        self._place = place
        self._folder = folder
        self._installed = _installed_below(folder)
        self._allowed_files: frozenset[str] = frozenset()
        """Names of the files that the owner has looked at; empty until it is asked."""
        self._packages: set[str] = set()
        """Top-level packages that were imported from the folder."""
        self._checks_all = True
        """Whether every import is looked at, or only those of ``_packages``."""

    def require_allowed(self) -> None:
        """Check that the owner has allowed the folder's files.

        Raises Misconfiguration: they may not run.
        """
        self._allowed_files = _require_allowed(self._field, self._place, self._folder)

    def keep_own_packages_only(self) -> None:
        """Look only at imports of packages that came from the folder from now on."""
        self._checks_all = False
        if not self._packages:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module of the folder.

        None for every other module, which the finders after this one find.

        Raises Misconfiguration: the module isn't allowed.
        """
        package = name.partition(".")[0]
        if not (self._checks_all or package in self._packages):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not spec.has_location or spec.origin is None:
            return None
        file = self._name_in_folder(Path(spec.origin))
        if file is None:
            return None
        if not self._allowed_files:
            self.require_allowed()
        if file not in self._allowed_files:
            raise Misconfiguration(
                self._field,
                self._place,
                f"runs {file}, which lies beside the settings and isn't shown: give it"
                " without a linked folder or __pycache__ in between",
            )
        self._packages.add(package)
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _SourceOnlyLoader(spec.loader.name, spec.loader.path)
        return spec

    def _name_in_folder(self, origin: Path) -> str | None:
        """Return the file's name relative to the folder.

        None where the file isn't in the folder, or belongs to a Python that is
        installed in a part of it.
        """
        as_named = Path(os.path.abspath(origin))  # noqa: PTH100 -- no link is followed
        for path in (origin.resolve(), as_named):
            if path.is_relative_to(self._folder):
                if any(map(path.is_relative_to, self._installed)):
                    return None
                return path.relative_to(self._folder).as_posix()
        return None


class _SourceOnlyLoader(SourceFileLoader):
    """Compiles a module from its source.

    What is already compiled in ``__pycache__`` isn't what the owner has looked at.
    """

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 -- importlib's
        """Return the module's code, compiled anew."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _installed_below(folder: Path) -> list[Path]:
    """Return the folders below ``folder`` where this Python finds modules.

    Such is the folder of an environment's installed packages.
    """
    search_path = [Path(entry).resolve() for entry in sys.path if entry]
    return [
        path for path in search_path if path != folder and path.is_relative_to(folder)
    ]


def allowed_file() -> Path:
    """Return the path of the file with the digests of allowed code, one a line.

    It lies in the user's own configuration, outside of any folder that travels.
    """
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "precad" / "allowed-code"


def _require_allowed(field: str, place: str, folder: Path) -> frozenset[str]:
    """Return the names of the folder's files that may run, all of them allowed.

    Where they aren't allowed yet, the owner is asked on the terminal, if there is one;
    a yes is kept.

    Raises Misconfiguration: the files can't be read, or may not run.
    """
    try:
        known = allowed_file()
        (names, digest) = _names_and_digest(folder)
    except OSError as error:
        raise Misconfiguration(
            field,
            place,
            f"lies beside the settings, with what can't be looked at: {error}",
        ) from None
    if known.is_file() and digest in known.read_text(encoding="utf-8").split():
        return frozenset(names)
    shown = ", ".join(names[:_MOST_SHOWN])
    if len(names) > _MOST_SHOWN:
        shown += ", …"
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


def _names_and_digest(folder: Path) -> tuple[list[str], str]:
    """Return all files that Python may import from the folder, and their digest.

    The files come as sorted names relative to the folder. The digest is a SHA-256 of
    the names and the contents.
    """
    suffixes = tuple(all_suffixes())
    installed = _installed_below(folder)
    names = []
    for path in folder.rglob("*"):
        if not path.name.endswith(suffixes) or any(map(path.is_relative_to, installed)):
            continue
        inside = path.relative_to(folder)
        if "__pycache__" not in inside.parts:
            names.append(inside.as_posix())
    names.sort()
    digest = hashlib.sha256()
    for name in names:
        for part in (name.encode(), read_regular(folder / name)):
            digest.update(hashlib.sha256(part).digest())
    return names, digest.hexdigest()
