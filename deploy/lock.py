"""Resolve deploy/lock.txt: every version that an image holds, with its hashes.

    python deploy/lock.py [--upgrade]        (make lock)

lock-build.txt beside it has what builds the package. A version that the lock has and
that still fits is kept, unless ``--upgrade`` is given. Versions are those that the tests'
own tools allow beside them, so that what is tested can be what is shipped. The lock is
for every system and Python from 3.11 on; it names no index, and whoever installs from it
may use any that has these files. torch's CPU builds lie on an index of their own:
lock-cpu.txt has their hashes, and is changed by hand.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from locked import CPU_BUILDS, LOCK, WHEELS_ONLY, read_lock
from requirements import BARE, requirements

ROOT = Path(__file__).resolve().parents[1]
BUILD = LOCK.with_name("lock-build.txt")
SHIPPED = ["demo", "postgres", "parquet"]
"""The extras whose images are built from the lock, alone or together."""
TESTED = ["dev", "postgres"]
HEAD = """\
# Made by `make lock` (deploy/lock.py), not by hand: every version that an image holds, with the
# hashes of its files. deploy/locked.py takes of it what one image needs.
"""
HEAD_OF_BUILD = (
    "# Made by `make lock` (deploy/lock.py), not by hand: what builds the package.\n"
)


def settings() -> str:
    """Return uv's settings: what an image takes bare asks for what it loads alone."""
    return "".join(
        f'[[dependency-metadata]]\nname = "{name}"\nrequires-dist = {list(loads)}\n'
        for name, loads in BARE.items()
    )


def compiled(asked_for: list[str], into: Path, *more: str) -> None:
    """Resolve ``asked_for`` into a file; versions that stand in it are preferred."""
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "--quiet", "--universal", "--no-header"]
    command += ["--python-version", "3.11", "--prerelease", "disallow"]
    command += ["--only-binary", ":all:", *more]
    subprocess.run(
        [*command, "--output-file", str(into), "-"],
        input="\n".join(asked_for),
        text=True,
        check=True,
    )


def main() -> None:
    """Write the lock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take newer versions")
    keep = not parser.parse_args().upgrade
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    build = document["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as folder:
        tested = Path(folder, "tested.txt")
        made = Path(folder, "lock.txt")
        building = Path(folder, "build.txt")
        configured = Path(folder, "uv.toml")
        configured.write_text(settings(), encoding="utf-8")
        here = ("--config-file", str(configured))
        if keep and LOCK.exists():
            shutil.copy(LOCK, tested)
        compiled(requirements(project, TESTED), tested, *here)
        hashed = ("--constraint", str(tested), "--generate-hashes", *here)
        compiled(requirements(project, SHIPPED), made, *hashed)
        compiled(build, building, *hashed, "--no-annotate")
        text = made.read_text(encoding="utf-8")
        of_build = building.read_text(encoding="utf-8")
    # Where it was made says nothing.
    text = re.sub(r"^    #   -[rc] .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^    # via( -[rc] .*)?\n(?!    #   )", "", text, flags=re.MULTILINE)
    LOCK.write_text(HEAD + text, encoding="utf-8")
    BUILD.write_text(f"{HEAD_OF_BUILD}{WHEELS_ONLY}\n{of_build}", encoding="utf-8")
    versions = {each.name: each.text.split()[0] for each in read_lock(LOCK)}
    for each in read_lock(CPU_BUILDS):
        if each.text.split()[0].partition("+")[0] != versions[each.name]:
            sys.exit(
                f"{CPU_BUILDS.name}: {each.text.split()[0]}, where {LOCK.name} has"
                f" {versions[each.name]}: give the hashes of that version's CPU builds"
            )


if __name__ == "__main__":
    main()
