"""One target, guided by coverage (atheris, libFuzzer), in a process of its own.

    pip install '.[fuzz]'
    python tests/fuzz/run.py submit-a -runs=30000 -seed=1

Nothing else than the errors of ours may come out of a target; what is behind its name
are options of libFuzzer. All targets: tests/soak/test_fuzz.py.
"""

import importlib
import logging
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[2]


def fuzz(name: str, arguments: list[str]) -> None:
    atheris = importlib.import_module("atheris")
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


if __name__ == "__main__":
    fuzz(sys.argv[1], sys.argv[2:])
