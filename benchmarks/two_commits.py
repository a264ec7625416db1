"""Rounds of this tree and of an earlier commit over loopback, in turns on this machine.

    python -m benchmarks.two_commits
    python -m benchmarks.two_commits --turns 5 --output two_commits.json

Shows medians of seconds and of processor time, of each tree under each check. The
earlier tree is unpacked from git into a temporary folder and runs its own benchmark
(``benchmarks.rounds.case``), with this environment's libraries and compiled kernel.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.releases.trees import ROOT, compiled, git, unpack

BEFORE = "12bf2a87"
"""The last commit before compact releases."""
KERNEL = Path("common", "kernel")
MEASURE = """
import json, os, sys
import precad
assert precad.__file__.startswith(os.getcwd()), "another tree"
from benchmarks.rounds.case import Case, measure
from benchmarks.rounds.ours.system import PHASES
d, n, repeats = map(int, sys.argv[1:4])
case = Case(d, n, repeats, slow_repeats=0, peers=False)
local = measure(case, lambda what: print(what, file=sys.stderr, flush=True))["local"]
print(json.dumps({
    check: {
        "round_s": local[check]["wall_s"]["round_s"],
        **{
            f"{process}_cpu_s": sum(
                local[check]["cpu_s"][phase][process] for phase in PHASES
            )
            for process in local[check]["cpu_s"]["collect"]
        },
    }
    for check in case.checks
}))
"""
"""What either tree runs: one line of JSON, by check and measure."""
Figures = dict[str, dict[str, float]]


def earlier(commit: str, folder: Path) -> Path:
    """The tree of ``commit``, ready to run. Raises LookupError: it can't be."""
    if git("diff", "--name-only", commit, "--", f"{KERNEL}/*.c", "setup.py"):
        raise LookupError(
            f"commit {commit} has another compiled kernel: build it first"
        )
    tree = unpack(commit, folder)
    for built in (ROOT / KERNEL).glob("*.so"):
        shutil.copy(built, tree / KERNEL)
    return compiled(tree)


def measured(tree: Path, *sizes: int) -> Figures:
    """Medians of one turn of a tree."""
    paths = os.pathsep.join(map(str, (tree / "src", tree)))
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, sizes)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: Figures = json.loads(ended.stdout.splitlines()[-1])
    return found


def shown(turns: dict[str, list[Figures]]) -> Iterator[str]:
    """Lines of a table: by check and measure, each tree's median and their ratio."""
    before, after = turns.values()
    yield f"{'':28}{''.join(f'{name:>12}' for name in turns)}{'ratio':>8}"
    for check, figures in after[0].items():
        for name in figures:
            old, new = (
                median(turn[check][name] for turn in each) for each in (before, after)
            )
            ratio = new / old if old else float("nan")
            yield f"{check + ' ' + name:28}{old:12.3f}{new:12.3f}{ratio:8.2f}"


def main() -> None:
    """Play the turns; show their medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT")
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3, help="of each tree")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of a turn")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    turns = defaultdict[str, list[Figures]](list)
    with tempfile.TemporaryDirectory(prefix="precad-two-") as folder:
        trees = {given.before: earlier(given.before, Path(folder)), "here": ROOT}
        for number in range(given.turns):
            for name, tree in trees.items():
                say = f"turn {number + 1} of {given.turns}: {name}"
                print(say, file=sys.stderr)
                sizes = (given.dimension, given.clients, given.repeats)
                turns[name].append(measured(tree, *sizes))
    print("\n".join(shown(turns)))
    if given.output is not None:
        document: dict[str, Any] = {"what": "two_commits.py", "turns": turns}
        given.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
