"""An experiment on two Ray nodes gives what one process gives, also where a node is lost."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precad.experiments.study import Scale
from precad.experiments.study.run import run

NAME = "xie-fig9"
"""Accounting alone, so that the cells are short."""
DRIVER = """
import sys
from pathlib import Path
from precad.experiments.study import Scale
from precad.experiments.study.run import run

def told(result, done, of):
    print(f"cell {done}", flush=True)
    sys.stdin.readline()

run(sys.argv[1], Scale.SMALL, Path(sys.argv[2]), workers=2, backend="ray", on_cell=told)
print("over", flush=True)
"""


@pytest.fixture
def cluster() -> Iterator["subprocess.Popen[str]"]:
    """Two nodes of one processor each, so that two workers are on both."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # Workers at the test's own priority: a busy machine would let them wait for minutes.
        "RAY_worker_niceness": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.rig.ray_cluster", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        yield process


@pytest.mark.timeout(900)
def test_a_cluster_gives_what_one_process_gives_also_when_a_node_is_lost(
    tmp_path: Path, cluster: "subprocess.Popen[str]"
) -> None:
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RAY_ADDRESS": cluster.stdout.readline().strip(),
    }
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, NAME, str(tmp_path / "ray")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        said: list[str] = []
        # Ray itself writes lines too.
        for line in driver.stdout:
            if line.startswith("cell "):
                said.append(line.strip())
                if len(said) == 1:
                    cluster.stdin.write("kill\n")
                    cluster.stdin.flush()
                    assert cluster.stdout.readline() == "killed\n"
                driver.stdin.write("on\n")
                driver.stdin.flush()
            if line == "over\n":
                break
        assert said == [f"cell {number}" for number in range(1, len(said) + 1)]
        driver.stdin.close()
    assert driver.returncode == 0
    alone = run(NAME, Scale.SMALL, tmp_path / "alone")
    assert len(said) == len(alone)
    together = run(NAME, Scale.SMALL, tmp_path / "ray")
    assert [r.values for r in together] == [r.values for r in alone]
    assert [r.settings for r in together] == [r.settings for r in alone]
