"""docs/function-secret-sharing.md states the numbers of the code, the vectors and the benchmark."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from precad.common.fss.keys import VERSION, gate_bytes, keys_bytes
from precad.common.fss.tree import LEAST_BITS, MOST_BITS, TERMINATED
from precad.common.norm_check.verdicts import submission_bytes
from precad.common.task import Task

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "function-secret-sharing.md").read_text("utf-8").split())
GATES = Task.model_fields["projections"].default + 1
LEVELS = MOST_BITS - TERMINATED
HIDDEN = 100 * GATES * (LEVELS + 1)
"""Seeds of a batch of 100 submissions that one server doesn't know: on every level, and a root."""
VECTORS: dict[str, Any] = json.loads((ROOT / "tests/vectors/gates.json").read_text("utf-8"))
RESULT: dict[str, Any] = json.loads((ROOT / "benchmarks/results/gates.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"mod 2\^n, n from (\d+) to 64", LEAST_BITS),
        (r"mod 2\^n, n from 8 to (\d+)", MOST_BITS),
        (r"on 64 bits has (\d+) levels", LEVELS),
        (r"takes (\d+) bytes; to the last", gate_bytes()),
        # A root, 64 correction words, a control word and a value bit in a byte.
        (r"it would be ([\d,]+)\.", 16 + 64 * 16 + 8 + 1),
        (r"\| version \| (\d+) \|", VERSION),
        (r"ends early \| (\d+) \|", TERMINATED),
        (r"as expected: (\d+) for each submission", GATES),
        (r"(\d+) bytes and 952 a gate", keys_bytes(0)),
        (r"a gate: ([\d,]+) bytes for a submission alone", keys_bytes(GATES)),
        (r"exchange (\d+) bytes a submission", submission_bytes(GATES)),
        (r"submissions has 2\^([\d.]+) of them", round(math.log2(HIDDEN), 1)),
        (r"of them: 2\^−(\d+) for", round(126 - 80 - math.log2(HIDDEN))),
        (r"batches of (\d) gates on 64", len(VECTORS["good"][0]["gates"])),
        (r"on 64 bits and (\d) on 8,", len(VECTORS["good"][1]["gates"])),
        (r"and (\d+) changes of a key", len(VECTORS["bad"])),
    ],
)
def test_a_number_of_the_page_is_the_codes(pattern: str, value: float) -> None:
    found = re.findall(pattern, PAGE)
    assert [float(text.replace(",", "")) for text in found] == [value]


def test_the_benchmarks_bytes_are_the_codes() -> None:
    assert RESULT["bytes"] == {
        "key of a gate": gate_bytes(),
        "keys of a submission to a server": keys_bytes(GATES),
        "bits of a submission between the servers": submission_bytes(GATES),
    }
