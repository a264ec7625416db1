"""Experiments where they take long: in processes that are killed, on clusters that lose a node."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from research.study import EXPERIMENTS, Scale
from research.study.kept import Kept
from research.study.run import run
from tests.house.test_document_figures import generator
from tests.rig.commands import printed
from tests.rig.waiting import until
from tests.soak.conftest import cluster

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


WHOLE = "xie-fig9"  # Accounting alone, so that the cells are short
HELD = f"""
import os
import time
from dataclasses import replace
from pathlib import Path

from research.study import EXPERIMENTS

folder = Path(os.environ["HELD"])
whole = EXPERIMENTS["{WHOLE}"]


def measure(settings, around):
    (folder / f"begun-{{os.getpid()}}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return whole.measure(settings, around)


EXPERIMENTS.register("held")(replace(whole, measure=measure))
"""  # The same, where cells are held up until a node is lost
DRIVER = """
import sys
from functools import partial
from pathlib import Path
from research.study import Scale
from research.study.run import run

backend, output, plugin = sys.argv[1:]
told = lambda _result, done, _all: print(f"cell {done}", flush=True)
how = {"workers": 2, "backend": backend, "plugins": (Path(plugin),), "on_cell": told}
run("held", Scale.SMALL, Path(output), **how)
"""
ADDRESS = {
    "ray": "RAY_ADDRESS",
    "dask": "DASK_SCHEDULER_ADDRESS",
}  # Of each backend's cluster


@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ADDRESS)
def test_a_cluster_without_a_node_gives_what_a_process_gives(
    tmp_path: Path, backend: str
) -> None:
    plugin = tmp_path / "held.py"
    plugin.write_text(HELD)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # Workers at the test's own priority: a busy machine would let them wait for
        # minutes.
        "RAY_worker_niceness": "0",
        "HELD": str(tmp_path),
    }
    # Of one processor each, so that two workers are on both.
    with cluster(backend, 1, **environment) as (address, tell):
        environment[ADDRESS[backend]] = address
        command = [sys.executable, "-c", DRIVER, backend, str(tmp_path), str(plugin)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as driver:
            try:
                begun = partial(tmp_path.glob, "begun-*")
                until(
                    lambda: driver.poll() is not None or len(list(begun())) >= 2,
                    "two cells",
                )
                assert driver.poll() is None
                tell("kill")
                (tmp_path / "go").touch()
                said = driver.communicate()[0].splitlines()
            finally:
                driver.kill()
    assert driver.returncode == 0
    alone = run(WHOLE, Scale.SMALL, tmp_path)
    # Ray itself writes lines too.
    told = [line for line in said if line.startswith("cell ")]
    assert told == [f"cell {number}" for number in range(1, len(alone) + 1)]
    together = Kept(tmp_path, "held", Scale.SMALL).of(
        EXPERIMENTS[WHOLE].all_cells(Scale.SMALL)
    )
    assert [(r.settings, r.values) for r in together] == [
        (r.settings, r.values) for r in alone
    ]
