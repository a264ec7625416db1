"""Which version and commit a source tree is, for setup.py and for a checkout itself.

    python deploy/build_version.py
    python deploy/build_version.py --environment

prints both, the second time as what docker-compose.yml takes from the environment for
images' labels, with the commit's time. The newest entry of common/releases.toml
decides. The commit that it names, or that added it where it names none, is that
release, where nothing in the tree was changed; every later one is on the way to the
next minor version: ``0.3.0.dev12+gabc12345`` is 12 commits after 0.2.0. Before the entry
is committed the tree is on the way to the entry's own version. Where git isn't
there, the number of commits is 0 and the commit "unknown".

A source distribution holds what was decided when it was made. An image's build, which
git isn't there for either, is told by the environment: PRECAD_BUILD="VERSION COMMIT".
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

PACKAGED = Path("src", "precad", "common", "build.json")
"""The file of a source distribution that says what was decided."""
RELEASES = Path("common", "releases.toml")
UNKNOWN = "unknown"


def build_of(root: Path) -> dict[str, str]:
    """Return ``version`` and ``commit`` of the source tree at ``root``."""
    told = os.environ.get("PRECAD_BUILD", "")
    if told:
        found = re.fullmatch(r"(\d[\w.+]*) ([0-9a-f]{40}|unknown)", told)
        if found is None:
            sys.exit(
                f"PRECAD_BUILD={told}: give a version and a commit's 40 digits, as"
                " deploy/build_version.py prints them"
            )
        return {"version": found[1], "commit": found[2]}
    if (root / ".git").exists():
        return _of_checkout(root)
    packaged = root / PACKAGED
    if packaged.exists():
        decided: dict[str, str] = json.loads(packaged.read_text(encoding="utf-8"))
        return decided
    return {"version": f"{_next(_newest(root)[0])}.dev0", "commit": UNKNOWN}


def _of_checkout(root: Path) -> dict[str, str]:
    newest, added = _newest(root)
    asked = _git(root, "rev-parse", "HEAD", "--is-shallow-repository")
    head, _, shallow = asked.partition("\n")
    if not shallow:
        return {"version": f"{_next(newest)}.dev0", "commit": UNKNOWN}
    described = _git(root, "describe", "--always", "--exclude=*", "--dirty")
    changed = not described or described.endswith("-dirty")
    local = f"+g{head[:8]}" + ".dirty" * changed
    if shallow != "false":
        # Where history is cut off its oldest commit seems to add every line.
        return {"version": f"{_next(newest)}.dev0{local}", "commit": head}
    line = f'version = "{newest}"'
    added = added or _git(
        root, "log", "-1", "--format=%H", f"-S{line}", "--", str(RELEASES)
    )
    if not added:
        return {"version": f"{newest}.dev0{local}", "commit": head}
    if added == head and not changed:
        return {"version": newest, "commit": head}
    since = _git(root, "rev-list", "--count", f"{added}..HEAD") or "0"
    return {"version": f"{_next(newest)}.dev{since}{local}", "commit": head}


def _newest(root: Path) -> tuple[str, str]:
    """Return the newest release's version, and its commit where its entry names one."""
    path = root / RELEASES
    if not path.exists():
        # A source distribution has the package in src/precad alone.
        path = root / "src" / "precad" / RELEASES
    newest = tomllib.loads(path.read_text(encoding="utf-8"))["release"][0]
    return newest["version"], newest.get("commit", "")


def _next(version: str) -> str:
    """Return the next minor version."""
    major, minor, _ = version.split(".")
    return f"{major}.{int(minor) + 1}.0"


def _git(root: Path, *words: str) -> str:
    """Return what git says; nothing where it can't be asked."""
    # A hook's variables name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        ended = subprocess.run(
            ["git", "-C", str(root), *words],  # noqa: S607 -- wherever it is installed
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    build = build_of(here)
    if sys.argv[1:] == ["--environment"]:
        print(f"PRECAD_VERSION={build['version']}")
        print(f"PRECAD_REVISION={build['commit']}")
        print(f"PRECAD_CREATED={_git(here, 'log', '-1', '--format=%cI')}")
    else:
        print(*build.values())
