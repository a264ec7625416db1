"""The laws of tests/property on other examples than the first tier's, which are always the same."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_laws_hold_for_examples_drawn_at_random() -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    options = ["--hypothesis-profile=soak", f"--hypothesis-seed={seed}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/property", "-q", *options],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}"
