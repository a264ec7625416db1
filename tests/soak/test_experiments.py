"""Experiments where they take long: in processes of their own, and the papers' own scale."""

import json
from pathlib import Path

import torch
from research.study import Scale
from tests.house.test_document_numbers import generator
from tests.rig.commands import printed

MEASURES = """
import os, sys
from pathlib import Path
from research.study import Scale
from research.study.run import run
def measure(rounds, workers):
    only = {"users_per_round": 10, "rounds": rounds}
    run("xie-fig9", Scale.SMALL, Path(sys.argv[1]), workers=workers, only=only)
measure(1, 1)
os.environ["ATEN_CPU_CAPABILITY"] = "default"
measure(50, 2)
"""


def test_a_result_says_what_its_own_process_computed_with(tmp_path: Path) -> None:
    """Which may be another machine's of the cluster; torch is told here to use narrower vectors."""
    printed("-c", MEASURES, tmp_path)
    document = json.loads((tmp_path / "xie-fig9-small.json").read_text())
    used = [document["environments"][cell["environment"]] for cell in document["cells"]]
    here = torch.backends.cpu.get_cpu_capability()
    assert [each["instructions"] for each in used] == [here, "DEFAULT"]


def test_the_tables_of_the_papers_own_scale_are_the_results() -> None:
    assert generator()["wrong"](Scale.PAPER) == []
