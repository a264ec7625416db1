"""A million inputs to the parsers of bytes from outside; guided by coverage: tests/fuzz/run.py."""

import os

import pytest
from tests.fuzz.inputs import check, inputs_near
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.filterwarnings("ignore")
SEED = int.from_bytes(os.urandom(4), "little")
"""Another one each time; what fails shows it, and its input."""
INPUTS = 1_000_000 // len(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_comes_is_understood_or_refused_in_few_words(name: str) -> None:
    for data in inputs_near(name, SEED, INPUTS):
        check(name, data, SEED)
