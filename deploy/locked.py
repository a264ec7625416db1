"""What pip installs for some of the project's extras, each version with its hashes.

    python locked.py [--cpu] EXTRA… < pyproject.toml

prints those of lock.txt, beside this file, that the extras need with all that these ask
for, so for ``pip install --no-deps --require-hashes``. ``--cpu`` takes torch's CPU build,
of lock-cpu.txt, and none of CUDA's libraries.
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from requirements import name_of, requirements

LOCK = Path(__file__).with_name("lock.txt")
CPU_BUILDS = Path(__file__).with_name("lock-cpu.txt")
OF_CUDA = re.compile(r"(nvidia|cuda)-|triton$")
"""Packages that torch's builds for CUDA ask for, and its CPU builds don't."""
WHEELS_ONLY = "--only-binary :all:"
"""An option of pip's: what isn't a wheel runs its own code when it is installed."""


@dataclass(frozen=True)
class Locked:
    """One version of a package.

    ``text`` is as pip reads it, with all hashes; ``asked_by`` are the packages that
    need it, where it isn't asked for by the project itself.
    """

    name: str
    text: str
    asked_by: frozenset[str]


def read_lock(path: Path) -> list[Locked]:
    """Return what a lock holds, in its order."""
    entries: list[list[str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.match(r"\w", line):
            entries.append([line])
        elif entries and line.strip():
            entries[-1].append(line)
    return [_locked(lines) for lines in entries]


def needed(locked: list[Locked], roots: set[str], *, cpu: bool) -> list[Locked]:
    """Return what ``roots`` need with all that these ask for.

    A ``KeyError`` names a root that isn't locked.
    """
    for root in sorted(roots - {each.name for each in locked}):
        raise KeyError(root)
    wanted = set(roots)
    before = 0
    while len(wanted) > before:
        before = len(wanted)
        wanted |= {each.name for each in locked if each.asked_by & wanted}
    if cpu:
        wanted = {name for name in wanted if not OF_CUDA.match(name)}
    return [each for each in locked if each.name in wanted]


def of_extras(
    project: dict[str, Any], extras: list[str], *, cpu: bool = False
) -> list[Locked]:
    """Return what an environment with these extras of the project holds."""
    roots = {name_of(each) for each in requirements(project["project"], extras)}
    found = needed(read_lock(LOCK), roots, cpu=cpu)
    builds = {each.name: each for each in read_lock(CPU_BUILDS)} if cpu else {}
    return [builds.get(each.name, each) for each in found]


def as_text(locked: list[Locked]) -> str:
    """Return a file of requirements for pip."""
    return "\n".join([WHEELS_ONLY, *(each.text for each in locked)]) + "\n"


def _locked(lines: list[str]) -> Locked:
    name = name_of(lines[0])
    comments = [line.strip("# ") for line in lines if line.lstrip().startswith("#")]
    # "via a", or "via" and one a line.
    parents = [comment.removeprefix("via").strip() for comment in comments]
    text = [line for line in lines if not line.lstrip().startswith("#")]
    return Locked(name, "\n".join(text), frozenset(filter(None, parents)))


if __name__ == "__main__":
    extras = [each for each in sys.argv[1:] if each != "--cpu"]
    project = tomllib.loads(sys.stdin.read())
    try:
        found = of_extras(project, extras, cpu="--cpu" in sys.argv[1:])
    except KeyError as missing:
        sys.exit(
            f"{LOCK.name} has no {missing.args[0]}, which {','.join(extras)} needs: name"
            " the extra in deploy/lock.py and `make lock`, or build without it (LOCK=)"
        )
    print(as_text(found), end="")
