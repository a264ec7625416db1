"""Source trees of releases, and of what a later one may be, to run parts from.

A release's tree is taken from git by its commit. A clone without history hasn't that:
``.ci/run`` fetches it, and whoever asks for a tree that isn't there is told how to get
it. Nothing is skipped.
"""

import compileall
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precad.aggregator.store.database import NEWEST
from precad.common.identity.mutual_tls import WIRE_VERSION

ROOT = Path(__file__).parents[2]
LIST = Path("common", "releases.toml")
PACKAGE = ROOT / "src" / "precad"
DEEPEN = "git fetch --unshallow"


@dataclass(frozen=True, kw_only=True)
class Release:
    """One of the list, with the commit that it is."""

    version: str
    commit: str
    wire: int
    schema: str


def git(*words: str) -> bytes:
    """What git says; nothing where it can't be asked."""
    # A hook's variables name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    ended = subprocess.run(
        ["git", "-C", str(ROOT), *words],
        env=environment,
        capture_output=True,
        check=False,
    )
    return ended.stdout if ended.returncode == 0 else b""


def listed_versions() -> list[str]:
    """The versions of the list, the newest first, also one that isn't committed yet."""
    return [entry["version"] for entry in _entries()]


def listed() -> list[Release]:
    """All releases, the newest first, without one that isn't committed yet.

    Raises LookupError, which says how to get it: which commit is the newest one is
    history's to say, and this clone has none.
    """
    found = []
    for entry in _entries():
        version = entry["version"]
        commit = entry.get("commit") or _commit_that_added(version)
        if commit:
            found.append(
                Release(
                    version=version,
                    commit=commit,
                    wire=entry["wire"],
                    schema=entry["schema"],
                )
            )
    return found


def _entries() -> list[dict[str, Any]]:
    text = (PACKAGE / LIST).read_text("utf-8")
    entries: list[dict[str, Any]] = tomllib.loads(text)["release"]
    return entries


def _commit_that_added(version: str) -> str:
    if git("rev-parse", "--is-shallow-repository").strip() == b"true":
        raise LookupError(f"which commit {version} is isn't in this clone: {DEEPEN}")
    added = ("log", "-1", "--format=%H", f'-Sversion = "{version}"')
    return git(*added, "--", str(LIST)).decode().strip()


def previous_release() -> Release:
    """The newest release that isn't this commit itself."""
    head = git("rev-parse", "HEAD").decode().strip()
    return next(each for each in listed() if each.commit != head)


def unpack(commit: str, folder: Path) -> Path:
    """Write the tree of a commit into ``folder``, and return that.

    Raises LookupError, which says how to get it: the commit isn't in this clone.
    """
    made = git("archive", commit)
    if not made:
        raise LookupError(
            f"commit {commit} of an earlier release isn't in this clone: {DEEPEN}"
        )
    # Python has filters for that only from 3.11.4 on.
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=made, check=True)
    return folder


def copy_of_this(folder: Path, *, wire: int) -> Path:
    """Write a tree like this one that speaks another wire version.

    One with a newer wire version has a newer schema of its database too.
    """
    package = folder / "src" / "precad"
    ignored = shutil.ignore_patterns("__pycache__")
    # Files, as an installed package has, and no links.
    shutil.copytree(PACKAGE, package, ignore=ignored)
    patch(
        package / "common" / "identity" / "mutual_tls.py",
        r"(?m)^WIRE_VERSION = \d+$",
        f"WIRE_VERSION = {wire}",
    )
    if wire > WIRE_VERSION:
        store = package / "aggregator" / "store"
        newer = f"{int(NEWEST) + 1:04}"
        migration = f'revision = "{newer}"\ndown_revision = "{NEWEST}"\n'
        later = store / "migrations" / "versions" / f"r{newer}_later.py"
        later.write_text(f"{migration}def upgrade() -> None: ...\n")
        patch(
            store / "database.py", rf'(?m)^NEWEST = "{NEWEST}"$', f'NEWEST = "{newer}"'
        )
    # In the place of git, which isn't there.
    (package / "common" / "build.json").write_text(
        f'{{"version": "99.{wire}.0", "commit": "unknown"}}'
    )
    return folder


def compiled(tree: Path) -> Path:
    """Compile a tree's package once, where every process would anew; return the tree."""
    for package in (tree / "src" / "precad").iterdir():
        if package.is_dir():
            # Of a checkout they are links, which aren't followed.
            compileall.compile_dir(package.resolve(), quiet=2)
    return tree


def patch(path: Path, pattern: str, replacement: str) -> None:
    """Replace what must be there once."""
    text, count = re.subn(pattern, replacement, path.read_text("utf-8"))
    assert count == 1, f"{path} has {pattern} {count} times"
    path.write_text(text, encoding="utf-8")
