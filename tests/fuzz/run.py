"""The longer run: each target in a process of its own, guided by coverage (atheris, libFuzzer).

    pip install atheris
    python tests/fuzz/run.py --target all --runs 30000 --write benchmarks/results/fuzz.json

Nothing else than the errors of ours may come out of a target, no input may take 10 s, and no
process may grow beyond 2 GiB. A failing input is kept in ``--artifacts`` and the exit status is 1.

Figures are written target by target, beside those of the targets that weren't asked for; with
``--missing`` only targets that have none are run, so that a run that is broken off goes on there.
"""

import argparse
import importlib
import json
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MOST_BYTES = 4096
TIMEOUT_S = 10
RSS_LIMIT_MB = 2048
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")
_STAT = re.compile(r"stat::(\w+):\s+(\d+)")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one target's run came to."""

    target: str
    inputs: int
    seconds: float
    crashes: int
    peak_rss_mb: int
    first_rss_mb: int
    coverage: int
    """Edges of instrumented Python code that were reached."""
    features: int


def fuzz(name: str, arguments: list[str]) -> None:
    """Fuzz one target in this process; libFuzzer ends it."""
    atheris: Any = importlib.import_module("atheris")
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # Heavy and not ours: uninstrumented, so that they are imported before.
    for heavy in ("torch", "scipy.stats", "sklearn", "google.protobuf.json_format"):
        importlib.import_module(heavy)
    with atheris.instrument_imports(include=["precad", "tests"]):
        targets = importlib.import_module("tests.fuzz.targets")
    target = targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.seeds_of(name)):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], *arguments, corpus], target.check)
        atheris.Fuzz()


def run(name: str, options: argparse.Namespace) -> Figures:
    """Fuzz one target in a process of its own and read its figures."""
    options.artifacts.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        __file__,
        "--in-process",
        name,
        f"-runs={options.runs}",
        f"-seed={options.seed}",
        f"-max_len={MOST_BYTES}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={RSS_LIMIT_MB}",
        f"-artifact_prefix={options.artifacts}/{name}-",
        "-print_final_stats=1",
    ]
    started = time.monotonic()
    # Targets import gRPC before precad, which then can't ask for TLS 1.3 itself.
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GRPC_SSL_CIPHER_SUITES": "ECDHE-PSK-AES128-CBC-SHA",
    }
    ended = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, check=False
    )
    seconds = time.monotonic() - started
    stats = {key: int(value) for key, value in _STAT.findall(ended.stderr)}
    reached = [(int(c), int(f)) for c, f in _COVERAGE.findall(ended.stderr)] or [(0, 0)]
    memory = [int(mb) for mb in re.findall(r"rss: (\d+)Mb", ended.stderr)] or [0]
    if ended.returncode != 0:
        sys.stderr.write(ended.stdout[-4000:] + ended.stderr[-4000:])
    return Figures(
        target=name,
        inputs=stats.get("number_of_executed_units", 0),
        seconds=round(seconds, 1),
        crashes=int(ended.returncode != 0),
        peak_rss_mb=stats.get("peak_rss_mb", 0),
        first_rss_mb=memory[0],
        coverage=reached[-1][0],
        features=reached[-1][1],
    )


def hardware() -> dict[str, object]:
    """Where the figures come from."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _say(figures: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Returns the exit status."""
    if sys.argv[1:2] == ["--in-process"]:
        fuzz(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", default="all", help="a name, several with commas, or all")
    parser.add_argument("--runs", type=int, default=30_000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="JSON file for the figures")
    parser.add_argument("--missing", action="store_true", help="only targets without figures there")
    parser.add_argument(
        "--artifacts", type=Path, default=Path(tempfile.gettempdir()) / "precad-fuzz"
    )
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    known = list(importlib.import_module("tests.fuzz.targets").TARGETS)
    wanted = known if options.target == "all" else options.target.split(",")
    kept = {
        each["target"]: each
        for each in (_read(options.write) if options.write else [])
        if each["target"] in known
    }
    if options.missing:
        wanted = [name for name in wanted if name not in kept]
    crashes = 0
    for name in wanted:
        figures = asdict(run(name, options)) | {"seed": options.seed}
        _say(figures)
        crashes += figures["crashes"]
        kept[name] = figures
        if options.write:
            _write(options.write, [kept[each] for each in known if each in kept])
    return int(crashes > 0)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    document = json.loads(path.read_text(encoding="utf-8"))
    # As files were before each target had a seed of its own.
    return [{"seed": document.get("seed")} | each for each in document["targets"]]


def _write(path: Path, results: list[dict[str, Any]]) -> None:
    total = {
        "inputs": sum(each["inputs"] for each in results),
        "seconds": round(sum(each["seconds"] for each in results), 1),
        "crashes": sum(each["crashes"] for each in results),
        "peak_rss_mb": max(each["peak_rss_mb"] for each in results),
    }
    limits = {"input_bytes": MOST_BYTES, "seconds": TIMEOUT_S, "rss_mb": RSS_LIMIT_MB}
    document = {
        "what": "inputs to each parser of bytes from outside, guided by coverage",
        "tool": "atheris (libFuzzer)",
        "hardware": hardware(),
        "limits_per_input": limits,
        "total": total,
        "targets": results,
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
