"""30,000 inputs to each parser of bytes from outside, guided by coverage: over 10^6 in all."""

import argparse
from pathlib import Path

import pytest
from tests.fuzz.run import run
from tests.fuzz.targets import TARGETS

RUNS = 30_000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TARGETS)
def test_every_input_ends_in_its_value_or_in_an_error_of_ours(name: str, tmp_path: Path) -> None:
    figures = run(name, argparse.Namespace(artifacts=tmp_path, runs=RUNS, seed=1))
    # What it wrote, and the input that it kept, are above and in tmp_path.
    assert figures.crashes == 0
    assert figures.inputs >= RUNS
    assert RUNS * len(TARGETS) > 10**6
