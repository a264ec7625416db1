"""A finished run of `make demo`, and what holds of every one."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.rig.documents import Document
from tests.rig.warm import SOURCES

from precad.common.model import load_model
from precad.common.task import Task

STEPS = (
    "making keys",
    "server A start",
    "enrol",
    "round   1/",
    "the training is over",
    "done",
)
ENDS = ("clients", "server-a", "server-b")


class Demo(NamedTuple):
    folder: Path
    summary: Document
    stderr: str


def demo(
    folder: Path,
    *options: object,
    python: str | Path = sys.executable,
    sources: str | Path = SOURCES,
) -> Demo:
    """``sources`` has the demo, and the package unless ``python`` has it installed."""
    env = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
    }
    env |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(sources)}
    command = [python, "-m", "examples.demo", "--json", "--output", folder]
    ended = subprocess.run(
        [str(each) for each in (*command, *options)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder.parent,
        env=env,
    )
    logs = [
        f"--- {log.name}\n{log.read_text()}" for log in folder.glob("logs/owner*.log")
    ]
    assert ended.returncode == 0, "\n".join([ended.stderr, *sorted(logs)])
    # One JSON document, and nothing else: this fails on a word before or after it.
    return Demo(folder, json.loads(ended.stdout), ended.stderr)


def check_every_run(run: Demo, *, rounds: int, clients: int, attackers: int) -> None:
    said = run.summary
    fields = (
        "version",
        "clients",
        "attackers",
        "participations",
        "honest_rejected",
        "delta",
    )
    assert [said[name] for name in fields] == [
        rounds,
        clients,
        attackers,
        rounds,
        0,
        1e-5,
    ]
    assert said["model_digest_a"] == said["model_digest_b"]
    assert len(said["model_digest_a"]) == 64
    assert 0 < said["epsilon_exact_clients"] < said["epsilon_exact_server"]
    # The approximation isn't a guarantee: it lies below.
    assert said["epsilon_clt_server"] < said["epsilon_exact_server"]
    assert 0 <= said["accuracy"] <= 1
    links = [f"{one} to {other}" for one in ENDS for other in ENDS if one != other]
    links += ["dealer to server-b"] * (said["validation"] == "crypten")
    assert all(said["bytes"][link] > 0 for link in links)
    # Every round stands in the summary, and in a table of its own.
    rows = said["history"]
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    assert sum(row["accepted"] for row in rows) == said["accepted"]
    for reason, count in said["rejected"].items():
        assert sum(row[reason] for row in rows) == count
    assert rows[-1]["epsilon_server"] == said["epsilon_exact_server"]
    table = csv.DictReader((run.folder / "history.csv").read_text("utf-8").splitlines())
    assert [float(row["epsilon_server"]) for row in table] == [
        r["epsilon_server"] for r in rows
    ]
    # It says what it does from the first second on.
    lines = run.stderr.splitlines()
    assert "loading torch and the data" in lines[0]
    said_so = [
        next(n for n, line in enumerate(lines) if words in line) for words in STEPS
    ]
    assert said_so == sorted(said_so)
    assert json.loads((run.folder / "summary.json").read_text()) == said
    picture = (run.folder / "training.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 10_000
    model = load_model(
        run.folder / "model.safetensors", Task.load(run.folder / "task.toml")
    )
    assert (str(model.digest), model.theta.shape) == (
        said["model_digest_a"],
        (said["dim"],),
    )
