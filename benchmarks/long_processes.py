"""Thousands of rounds of real processes; what changes but figures, and what grows.

Two servers and three owners over TLS, whose owners prove their norms, play until the
task's rounds are over or ``--minutes`` have passed; a later call goes on with the same
folder, from where its parts stand. For each tenth of the task's rounds the result has
every part's processor time, memory and open files, the bytes of its log and state, and
the lines of the logs whose words, without figures, no earlier tenth had. At the end
both ledgers are verified, by themselves and against each other.

    PYTHONPATH=. python benchmarks/long_processes.py [--minutes 20] [--folder FOLDER]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from examples.demo.local_processes import LocalDeployment, environment_of_parts

from benchmarks.crowd.resident import open_files, resident_mib
from benchmarks.rounds.hardware import hardware
from precad.aggregator.store import audit_ledger, compare_ledgers, read_training
from precad.common.files import write_file
from precad.common.identifiers import ClientId
from precad.common.task import Task

RESULT = Path(__file__).parent / "results" / "long_processes.json"
ROUNDS, OWNERS, FEATURES, CLASSES, RECORDS = 5_000, 3, 8, 2, 60
SERVERS = ("server-a", "server-b")
OWNER_NAMES = tuple(f"ward-{number}" for number in range(OWNERS))
PARTS = (*SERVERS, *OWNER_NAMES)
TENTH = ROUNDS // 10
LOOK_S = 2.0
MADE = re.compile(
    r"^.* version (\d+), attempt \d+: (\d+) of (\d+) submissions", re.MULTILINE
)


def task() -> Task:
    """A small model, and a limit of ε that all rounds fit below."""
    weight = {"name": "1.weight", "shape": [CLASSES, FEATURES]}
    return Task.parse(
        {
            "name": "long-processes",
            "validation": "proof",
            "model": {
                "architecture": "logistic",
                "parameters": [weight, {"name": "1.bias", "shape": [CLASSES]}],
            },
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 8.0,
                "noise_multiplier": 20.0,
                "record_rate": 0.1,
                "client_rate": 1.0,
                "epsilon_limit": 8.0,
            },
            "training": {"learning_rate": 0.1, "rounds": ROUNDS},
            "enrolment": {"clients": OWNERS, "max_expected_records": 20.0},
            "deadlines": {"work": 0.5, "collect": 20.0, "peer": 20.0, "outage": 600.0},
        }
    )


def make(folder: Path) -> None:
    """All parties' files, of which none is running."""
    rng = np.random.default_rng(46)
    data = {}
    for name in OWNER_NAMES:
        x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
        data[ClientId(name)] = x, (x.sum(axis=1) > 0).astype(np.int64)
    LocalDeployment(folder, task(), data, linger_s=60)


@contextmanager
def running(folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """All parts as processes; they are told to stop at the block's end."""
    parts = {}
    for name in (*reversed(SERVERS), *OWNER_NAMES):
        part = ["serve", name[-1]] if name in SERVERS else ["join", "--quiet"]
        settings = str(folder / f"{name}.toml")
        with (folder / "logs" / f"{name}.log").open("ab") as log:
            parts[name] = subprocess.Popen(
                [sys.executable, "-m", "precad", *part, "--config", settings],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment_of_parts(),
            )
    try:
        yield parts
    finally:
        for process in parts.values():
            if process.poll() is None:
                process.terminate()
        for process in parts.values():
            process.wait()


def log_of(folder: Path, name: str) -> str:
    """All that a part has logged."""
    path = folder / "logs" / f"{name}.log"
    if not path.exists():
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def bytes_of(folder: Path) -> int:
    """Of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def words_of(line: str) -> str:
    """A line's words, with a # for each figure and digest."""
    line = re.sub(r"\b[0-9a-f]{12,}\b", "#", line)
    return re.sub(r"\d+(?:[.,:]\d+)*", "#", line)


def cpu_s(pid: int) -> float:
    """Processor time that a process has taken, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pieces:
    """What is known of a run, in pieces, in the result's file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "known.json"
        self.known: dict[str, Any] = {"pieces": [], "tenths": []}
        if self.path.exists():
            self.known = json.loads(self.path.read_text("utf-8"))

    def keep(self) -> None:
        """Write what is known, in the run's folder and as the benchmark's result."""
        text = json.dumps(self.known | {"hardware": hardware()}, indent=2) + "\n"
        for path in (self.path, RESULT):
            write_file(path, text.encode())

    def play(self, minutes: float) -> None:
        """Play one piece: until the rounds are over, or the minutes."""
        began = time.monotonic()
        starts = {name: len(log_of(self.folder, name)) for name in PARTS}
        first = self.rounds()
        with running(self.folder) as parts:
            seen = first
            at: dict[str, Any] = {"round": first, "moment": began, "logs": starts}
            while seen < ROUNDS and time.monotonic() - began < 60 * minutes:
                time.sleep(LOOK_S)
                ended = {n: p.poll() for n, p in parts.items() if p.poll() is not None}
                seen = self.rounds()
                if ended and seen < ROUNDS:
                    tails = {name: log_of(self.folder, name)[-500:] for name in ended}
                    raise SystemExit(f"ended in mid-training: {ended}\n{tails}")
                if seen // TENTH > at["round"] // TENTH:
                    at = self.tenth(at, seen, parts)
            self.tenth(at, seen, parts)
        self.known["pieces"].append(
            {
                "from_round": first,
                "to_round": seen,
                "seconds": round(time.monotonic() - began, 1),
                "not_counted": sum(
                    int(all_of_them) - int(counted)
                    for _, counted, all_of_them in MADE.findall(
                        log_of(self.folder, "server-a")[starts["server-a"] :]
                    )
                ),
            }
        )
        self.known |= self.verified()
        self.keep()

    def rounds(self) -> int:
        """How many are made, by server A's log."""
        made = MADE.findall(log_of(self.folder, "server-a"))
        return int(made[-1][0]) if made else 0

    def tenth(
        self, at: dict[str, Any], seen: int, parts: dict[str, subprocess.Popen[bytes]]
    ) -> dict[str, Any]:
        """Keep what a tenth of the rounds took, or the part of one; begin the next."""
        rounds = seen - at["round"]
        if rounds == 0:
            return at
        now = time.monotonic()
        row: dict[str, Any] = {
            "from_round": at["round"],
            "to_round": seen,
            "seconds_a_round": round((now - at["moment"]) / rounds, 3),
            "parts": {},
        }
        logs = {}
        cpu = {}
        words = set(self.known.get("words", []))
        said: set[str] = set()
        for name, process in parts.items():
            text = log_of(self.folder, name)
            logs[name] = len(text)
            lines = text[at["logs"][name] :].splitlines()
            said |= {f"{name}: {words_of(line)}" for line in lines}
            row["parts"][name] = {
                "log_bytes_a_round": round((len(text) - at["logs"][name]) / rounds, 1),
                "state_bytes": bytes_of(self.folder / "state" / name),
            }
            if process.poll() is None:
                cpu[name] = cpu_s(process.pid)
                cpu_before = at.get("cpu", {}).get(name, 0.0)
                row["parts"][name] |= {
                    "cpu_ms_a_round": round(
                        1000 * (cpu[name] - cpu_before) / rounds, 1
                    ),
                    "resident_mib": resident_mib(process.pid),
                    "open_files": open_files(process.pid),
                }
        row["words_that_are_new"] = sorted(said - words)
        self.known["words"] = sorted(words | said)
        self.known["tenths"].append(row)
        self.keep()
        print(json.dumps(row), flush=True)
        return {"round": seen, "moment": now, "logs": logs, "cpu": cpu}

    def verified(self) -> dict[str, Any]:
        """What both ledgers say of all rounds so far."""
        urls = [f"sqlite:///{self.folder}/state/{name}/state.db" for name in SERVERS]
        counts = [
            {
                each.client.name: each.participations
                for each in read_training(url).clients
            }
            for url in urls
        ]
        return {
            "faults_in_ledgers": [len(audit_ledger(url).findings) for url in urls],
            "differences_of_ledgers": len(compare_ledgers(*urls)),
            "participations": counts,
        }


def main() -> None:
    """Play one piece more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, default=Path("build/long_processes"))
    given = parser.parse_args()
    folder = given.folder.resolve()
    if not (folder / "task.toml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        make(folder)
    Pieces(folder).play(given.minutes)


if __name__ == "__main__":
    main()
