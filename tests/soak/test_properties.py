"""The laws of tests/property on other examples than the first tier's, which are always the same."""

import os
from pathlib import Path

from tests.rig.commands import python

ROOT = Path(__file__).parents[2]


def test_laws_hold_for_examples_drawn_at_random() -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    options = ["--hypothesis-profile=soak", f"--hypothesis-seed={seed}"]
    done = python("-m", "pytest", "tests/property", "-q", *options, cwd=ROOT)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}"
