"""The second tier, part by part: `make soak`.

    python -m tests.soak.run --output benchmarks/results/soak.json
    python -m tests.soak.run --part 7/20
    python -m tests.soak.run --part commit
    python -m tests.soak.run --weigh

Each part is a pytest run of its own, and its result is written as soon as it is there: a run that
is broken off goes on with the parts that this commit hasn't had yet. ``--part commit`` is the part
whose turn it is: twenty commits in a row have all of them. ``--weigh`` runs nothing; it keeps the
seconds of the last run as weights, by which parts are made equally long.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rounds.hardware import hardware
from tests.soak.selection import PARTS, SECONDS, Part

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "benchmarks" / "results" / "soak.json"
NOTHING_COLLECTED = 5
"""pytest's exit status; a part may be empty."""


def git(*words: str, at: Path = ROOT) -> str:
    done = subprocess.run(["git", *words], cwd=at, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit, with a word when files differ from it."""
    changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return (git("rev-parse", "HEAD") or "unknown") + (" with changes" if changed else "")


def turn(hash_: str, count: str, *, shallow: bool, of: int = PARTS) -> Part:
    """The part whose turn it is: by the commit's number, or by its name where history is cut."""
    number = int(hash_ or "0", 16) if shallow or not count else int(count)
    return Part(number % of + 1, of)


def run(part: Part, words: list[str]) -> dict[str, Any]:
    began, spent = time.monotonic(), children_s()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        command = [
            *(sys.executable, "-m", "pytest", "tests/soak", f"--part={part}"),
            *(f"--seconds={outcomes}", "-n", str(os.cpu_count()), "--dist", "worksteal", *words),
        ]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        found: dict[str, Any] = {"failed": [], "skipped": [], "seconds_by_test": {}}
        if outcomes.exists():
            found = json.loads(outcomes.read_text(encoding="utf-8"))
    return {
        "part": str(part),
        "commit": commit(),
        "passed": status in {0, NOTHING_COLLECTED} and not found["failed"],
        "tests": len(found["seconds_by_test"]),
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(children_s() - spent, 1),
        "hardware": hardware(),
    } | found


def children_s() -> float:
    """CPU seconds of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    return {each["part"]: each for each in json.loads(path.read_text(encoding="utf-8"))["parts"]}


def write(path: Path, results: dict[str, dict[str, Any]]) -> None:
    kept = sorted(results.values(), key=lambda each: int(each["part"].partition("/")[0]))
    document = {"what": "the soak tests' parts, each as it last ended", "parts": kept}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def weigh(path: Path) -> None:
    """Keep the seconds of the last results as weights."""
    tests = [test for result in read(path).values() for test in result["seconds_by_test"].items()]
    # Shorter ones aren't told apart by their weights.
    kept = {test: max(0.5, seconds) for test, seconds in sorted(dict(tests).items())}
    SECONDS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", help=f"7/{PARTS}, or commit: the one whose turn it is")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--weigh", action="store_true", help="run nothing, keep the seconds")
    given, words = parser.parse_known_args()
    if given.weigh:
        weigh(given.output)
        return 0
    results = read(given.output)
    if given.part is None:
        now = commit()
        parts = [Part(number) for number in range(1, PARTS + 1)]
        # A result of a tree with changes says nothing of the tree as it is now.
        done = {name for name, each in results.items() if each["commit"] == now != "unknown"}
        wanted = [part for part in parts if str(part) not in done or now.endswith("changes")]
    elif given.part == "commit":
        shallow = git("rev-parse", "--is-shallow-repository") != "false"
        count = git("rev-list", "--count", "HEAD")
        wanted = parts = [turn(git("rev-parse", "HEAD"), count, shallow=shallow)]
    else:
        wanted = parts = [Part.parse(given.part)]
    for part in wanted:
        sys.stdout.write(f"::: soak, part {part}\n")
        sys.stdout.flush()
        results[str(part)] = run(part, words)
        write(given.output, results)
    failed = [str(part) for part in parts if not results[str(part)]["passed"]]
    sys.stdout.write(f"soak: failed parts: {', '.join(failed) or 'none'}\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
