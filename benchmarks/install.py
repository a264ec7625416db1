"""What each extra installs, in MB and seconds; writes results/install.json.

    PYTHONPATH=. python benchmarks/install.py [--python python3.13 …] [--extras client
    …]

A wheel is built from git's newest commit; each extra is installed from it in a fresh
environment, with pip as this machine has it set up, then the command that it is for is
started. `client beside torch` comes into an environment that has torch, NumPy and SciPy
already.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "install.json"
ROOT = Path(__file__).parents[1]
BESIDE = "client beside torch"
WANTED = {
    "": (("--help",), ("keys", "init", "keys", "--clients", "1")),
    "dealer": (("serve", "dealer", "--config", "absent.toml"),),
    "client": (("join", "--config", "absent.toml"),),
    "server": (("serve", "a", "--config", "absent.toml"),),
    "plan": (("account", "--record-rate", ".2", "--client-rate", "1", "--noise-multiplier", "2",
              "--rounds", "6", "--delta", "1e-5"),),
    "simulation": (("simulate", "absent.toml"),),
    "demo": (),
}  # fmt: skip
"""Commands that an install must carry out, or refuse for the file that isn't there.

With `demo` the repository's demo must train."""
SOURCE = "source"
"""The folder that a wheel is built from, beside it."""
DEMO = ("-m", "examples.demo", "--clients", "2", "--rounds", "2", "--json")
LOADS = {
    "client": "from precad.client import DataOwner",
    "server": "import precad.server_a.process, precad.server_b.process",
    "simulation": "import precad; precad.simulate",
}
"""What the refused commands above may not have come to load."""
SIZES = """
import importlib.metadata as m, json, os
sizes = {}
for d in m.distributions():
    files = [str(d.locate_file(f)) for f in d.files or ()]
    files = [f for f in files if os.path.isfile(f)]
    compiled = sum(os.path.getsize(f) for f in files if f.endswith(".pyc"))
    sizes[d.metadata["Name"]] = sum(map(os.path.getsize, files)), compiled
print(json.dumps(sizes))
"""


def call(
    *command: object, cwd: Path, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run without this checkout on the path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if check and ended.returncode:
        raise RuntimeError(f"{command}: {ended.stdout[-1500:]}{ended.stderr[-1500:]}")
    return ended


def built(folder: Path, interpreter: str) -> Path:
    """The wheel; with a kernel in it, it is for one version of Python."""
    source = folder / SOURCE
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    call(
        interpreter, "-m", "pip", "wheel", "--no-deps", "-w", folder, source, cwd=folder
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def sizes(python: Path, cwd: Path) -> dict[str, tuple[int, int]]:
    """Bytes of each distribution's files, and those of them that are compiled modules."""
    found = json.loads(call(python, "-c", SIZES, cwd=cwd).stdout)
    return {
        n: (whole, pyc)
        for n, (whole, pyc) in found.items()
        if n not in {"pip", "setuptools"}
    }


def installed(extra: str, wheel: str, interpreter: str, folder: Path) -> dict[str, Any]:
    """One environment, and what was said in it."""
    environment = folder / "environment"
    call(interpreter, "-m", "venv", environment, cwd=folder)
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--no-cache-dir")
    name, before = extra, dict[str, tuple[int, int]]()
    if extra == BESIDE:
        name = "client"
        call(*pip, "torch>=2.6,<2.14", "scipy>=1.13", "numpy>=2", cwd=folder)
        before = sizes(python, folder)
    load = os.getloadavg()[0]
    began = time.monotonic()
    call(*pip, f"precad[{name}] @ file://{wheel}" if name else wheel, cwd=folder)
    spent = time.monotonic() - began
    found = {n: s for n, s in sizes(python, folder).items() if n not in before}
    for command in WANTED[name]:
        said = call(environment / "bin" / "precad", *command, cwd=folder, check=False)
        refused = "absent.toml" in said.stderr and "needs" not in said.stderr
        if said.returncode and not refused:
            raise RuntimeError(f"{extra}: {command}: {said.stderr}")
    call(python, "-c", LOADS.get(name, "import precad"), cwd=folder)
    if name == "demo":
        # The package that lies there too isn't on the path.
        source = Path(wheel).with_name(SOURCE)
        call(python, *DEMO, "--output", folder / "run", cwd=source)
    largest = sorted(found.items(), key=lambda item: -item[1][0])

    def megabytes(*numbers: int) -> float:
        return round(sum(numbers) / 1e6, 1)

    return {
        "mb": megabytes(*(whole for whole, _ in found.values())),
        "of_it_compiled_by_pip": megabytes(*(pyc for _, pyc in found.values())),
        "seconds": round(spent),
        "load_average_before": round(load, 2),
        "distributions": len(found),
        "largest_mb": {n: megabytes(s) for n, (s, _) in largest[:14]},
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--extras", nargs="+", default=[*WANTED, BESIDE])
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    results = {
        "what": (
            "MB (10^6 bytes) on disk of what pip installs, and seconds, downloads"
            " included"
        ),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "pythons": kept.get("pythons", {}),
    }
    for interpreter in given.python:
        said = call(
            interpreter,
            "-c",
            "import platform; print(platform.python_version())",
            cwd=ROOT,
        )
        rows = results["pythons"].setdefault(said.stdout.strip(), {})
        with tempfile.TemporaryDirectory() as place:
            wheel = built(Path(place), interpreter)
            for extra in given.extras:
                folder = Path(tempfile.mkdtemp(dir=place))
                rows[extra or "precad"] = found = installed(
                    extra, str(wheel), interpreter, folder
                )
                print(
                    said.stdout.strip(),
                    extra or "precad",
                    json.dumps(found),
                    flush=True,
                )
                given.out.write_text(
                    json.dumps(results, indent=2) + "\n", encoding="utf-8"
                )


if __name__ == "__main__":
    main()
