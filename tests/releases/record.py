"""Record what a release leaves on disks: a short real training of its own commit.

    PYTHONPATH=src:. python -m tests.releases.record 0.1.0

The release's tree is taken from git into a temporary folder, and plays server A,
server B, dealer and two owners by its own code, with keys that are thrown away. Kept
under ``tests/releases/VERSION``: both databases as SQL, the task, the owners' accounts,
and what the release itself says of them. No private key, no record of an owner.
"""

import io
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SERVERS = ("server-a", "server-b")
# Played by the release's own code.
PLAY = r"""
import json, subprocess, sys
from pathlib import Path
import numpy as np
from precad.aggregator.store import audit_ledger, read_training
from precad.common.identifiers import ClientId
from tests.integration.deployment.conftest import deployments
x = np.zeros((1, 3), dtype=np.float32)
y = np.zeros(1, dtype=np.int64)
data = {ClientId(f"ward-{number:02d}"): (x, y) for number in range(2)}
with deployments(Path(sys.argv[1])) as make:
    changes = {"training.rounds": 3}
    deployment = make(changes, data=data, linger_s=20, popen=subprocess.Popen)
    deployment.start_servers()
    deployment.start_clients()
    names = [*(client.name for client in data), "server-a", "server-b"]
    statuses = deployment.wait(names, 120)
    assert set(statuses.values()) == {0}, deployment.log("server-a")
    said = {"task": deployment.task.digest.value.hex()}
    for name in ("server-a", "server-b"):
        url = f"sqlite:///{deployment.folder}/state/{name}/state.db"
        audit, training = audit_ledger(url), read_training(url)
        assert audit.findings == ()
        said[name] = {
            "entries": audit.entries,
            "head": audit.head.value.hex(),
            "participations": training.participations_by_version(),
            "clients": [each.client.name for each in training.clients],
        }
    Path(sys.argv[1], "said.json").write_text(json.dumps(said, indent=1) + "\n")
"""


def commit_of(version: str) -> str:
    """The commit of a release, by the file of releases."""
    listed = tomllib.loads((ROOT / "common" / "releases.toml").read_text())
    commits = {each["version"]: each.get("commit") for each in listed["release"]}
    return str(commits[version])


def unpack(commit: str, folder: Path) -> None:
    """The tree of a commit; where git hasn't it, an error that says how to get it."""
    command = ["git", "archive", commit]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if made.returncode != 0:
        sys.exit(f"commit {commit} isn't here: git fetch --unshallow")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="tar")


def keep(work: Path, kept: Path) -> None:
    """Copy what is kept of a run; keys and records stay behind."""
    folder = work / "deployment-0"
    task = (folder / "task.toml").read_text()
    (kept / "task.toml").write_text(task)
    (kept / "said.json").write_text((work / "said.json").read_text())
    for server in SERVERS:
        database = folder / "state" / server / "state.db"
        with closing(sqlite3.connect(database)) as connection:
            dump = "\n".join(connection.iterdump()) + "\n"
        (kept / f"{server}.sql").write_text(dump)
    for account in (folder / "state").glob("ward-*/participations.log"):
        (kept / f"{account.parent.name}.log").write_bytes(account.read_bytes())


def main(version: str) -> None:
    kept = HERE / version
    kept.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        unpack(commit_of(version), tree)
        path = f"{tree / 'src'}{os.pathsep}{tree}"
        environment = {**os.environ, "PYTHONPATH": path}
        work = Path(name, "run")
        work.mkdir()

        subprocess.run(
            [sys.executable, "-c", PLAY, str(work)],
            cwd=tree,
            env=environment,
            check=True,
        )
        keep(work, kept)


if __name__ == "__main__":
    main(sys.argv[1])
