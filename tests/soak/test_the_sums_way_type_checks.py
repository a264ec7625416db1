"""The sum's way in types: what skips a step doesn't type-check (mypy on a program)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.together
WAYS = """
import numpy as np
from numpy.typing import NDArray
from precad.common.aggregator.release.aggregate import aggregate
from precad.common.aggregator.release.reconstruct import reconstruct
from precad.common.aggregator.release.release import add_noise, countersign, prepare
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.journal import Journal
from precad.common.aggregator.round.states import Matched, Noised, Prepared, Sent, Summed
from precad.common.noise import NoiseSource

Theta = NDArray[np.float64]

def the_way(matched: Matched, noise: NoiseSource, j: Journal, server: Aggregator,
            theta: Theta) -> None:
    noised = add_noise(aggregate(server, matched), noise)
    reconstruct(server, countersign(server, prepare(j, noised)), theta)

def noises_what_nobody_validated(matched: Matched, noise: NoiseSource) -> None:
    add_noise(matched, noise)

def prepares_without_noise(summed: Summed, j: Journal) -> None:
    prepare(j, summed)

def countersigns_what_nobody_charged(server: Aggregator, noised: Noised) -> None:
    countersign(server, noised)

def sends_what_nobody_charged(server: Aggregator, noised: Noised, theta: Theta) -> None:
    reconstruct(server, noised, theta)

def sends_what_nobody_countersigned(server: Aggregator, ready: Prepared, theta: Theta) -> None:
    reconstruct(server, ready, theta)

def noises_twice(noised: Noised, noise: NoiseSource) -> None:
    add_noise(noised, noise)

def noises_what_was_sent(sent: Sent, noise: NoiseSource) -> None:
    add_noise(sent, noise)
"""
REFUSED = {
    "noises_what_nobody_validated": ("Matched", "Summed"),
    "prepares_without_noise": ("Summed", "Noised"),
    "countersigns_what_nobody_charged": ("Noised", "Prepared"),
    "sends_what_nobody_charged": ("Noised", "Sent"),
    "sends_what_nobody_countersigned": ("Prepared", "Sent"),
    "noises_twice": ("Noised", "Summed"),
    "noises_what_was_sent": ("Sent", "Summed"),
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """mypy's error in each function."""
    path = tmp_path_factory.mktemp("types") / "ways.py"
    path.write_text(WAYS, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    run = subprocess.run(
        [*command, "--config-file=", "--ignore-missing-imports", str(path)],
        check=False,
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "", "MYPY_CACHE_DIR": str(path.parent)},
    )
    functions = {}
    name = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("def "):
            name = line.removeprefix("def ").split("(")[0]
        functions[number] = name
    found: dict[str, str] = {}
    for line in run.stdout.splitlines():
        if line.startswith(str(path)):
            number = int(line.removeprefix(f"{path}:").split(":")[0])
            found.setdefault(functions[number], line)
    assert found, run.stdout + run.stderr
    return found


def test_the_way_itself_type_checks(complaints: dict[str, str]) -> None:
    assert "the_way" not in complaints, complaints.get("the_way")


@pytest.mark.parametrize("name", REFUSED)
def test_what_skips_a_step_is_refused(complaints: dict[str, str], name: str) -> None:
    given, wanted = REFUSED[name]
    assert f'incompatible type "{given}"; expected "{wanted}"' in complaints[name]
