"""The demo's run beside an earlier version's, in turn; writes results/demo_versions.json.

    PYTHONPATH=. python benchmarks/demo_versions.py [--earlier COMMIT] [--pairs 5]
                                                    [--out FILE] [--packages FOLDER]

Both run from the command to its end by this interpreter, with what is installed for the
newer one; setting up isn't in it. The earlier one is the first version unless another
commit is named; it is checked out from this clone's history into a temporary folder.
What it alone imports (for the first version typer 0.20 and its own: ``pip install
--target FOLDER 'typer<0.21' 'rich<15'``) is looked for in FOLDER.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rounds.hardware import hardware

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "demo_versions.json"
FIRST = "8dac5bb"
"""The last commit of the first version."""
DEMO = "from {module} import main; main()"
ENTRIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "first": ("precad.cli.main", ("demo",)),
    "now": ("examples.demo.__main__", ()),
}
"""Of each version: the module whose ``main`` it is, and its first arguments."""
TIMEOUT_S = 600.0
_ACCURACY = re.compile(r"(\d+\.\d) ?%")


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with ``commit``'s files."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "earlier"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run(
            [*git, "add", "--quiet", "--detach", str(tree), commit], check=True
        )
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def run(
    tree: Path, entry: tuple[str, tuple[str, ...]], packages: Path | None = None
) -> dict[str, Any]:
    """One demo's wall and processor time, and the accuracy that it printed last."""
    module, words = entry
    paths = [tree / "src", tree] + ([] if packages is None else [packages.resolve()])
    program = DEMO.format(module=module)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [sys.executable, "-c", program, *words, "--output", str(Path(out) / "run")],
            cwd=out,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(
            f"the demo of {tree} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    accuracies = _ACCURACY.findall(done.stdout)
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "accuracy_percent": float(accuracies[-1]) if accuracies else None,
    }


def main() -> None:
    """Alternate, print as it goes, write the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--earlier", default=FIRST, help="commit to compare with")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--packages", type=Path, help="what the earlier one alone imports"
    )
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"first": [], "now": []}
    with checked_out(args.earlier) as earlier:
        for number in range(-1, args.pairs):
            for name, tree, more in (
                ("first", earlier, args.packages),
                ("now", ROOT, None),
            ):
                taken = run(tree, ENTRIES[name], more)
                if number < 0:
                    continue  # a warm-up: the first run compiles the modules
                runs[name].append(taken)
                print(f"pair {number + 1} of {args.pairs}, {name}: {taken}", flush=True)
    medians = {
        key: {name: median(run[key] for run in runs[name]) for name in runs}
        for key in ("wall_s", "cpu_s")
    }
    ratios = {
        key: round(both["now"] / both["first"], 3) for key, both in medians.items()
    }
    result = {
        "what": "the demo with its defaults, from the command to its end, in turn",
        "hardware": hardware(),
        "earlier": args.earlier,
        "medians": medians,
        "now over first": ratios,
        "runs": runs,
    }
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({"medians": medians, "now over first": ratios}))


if __name__ == "__main__":
    main()
