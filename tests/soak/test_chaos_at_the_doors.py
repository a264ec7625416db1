"""A small piece of the chaos run at real processes' doors, and what its long results say."""

import json
from pathlib import Path

import pytest
from tests.faults.chaos import piece
from tests.faults.processes import Forks
from tests.soak.doors import CONNECTIONS, DEATHS, besieged

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize(("seed", "validation"), [(5, "crypten"), (6, "proof")])
def test_whatever_goes_wrong_at_once_a_longer_training_reaches_its_end(
    tmp_path: Path, seed: int, validation: str
) -> None:
    piece(seed, 20, tmp_path, faults=40, validation=validation)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_flood_at_the_doors_of_dying_servers_costs_nobody_else_a_version(
    tmp_path: Path, forks: Forks, seed: int
) -> None:
    found = besieged(seed, tmp_path, forks, versions=4)
    assert found["codes"]["INVALID_ARGUMENT"] > 0


@pytest.mark.parametrize(
    ("results", "dealers"), [("chaos.json", {"dealer"}), ("chaos_proof.json", set())]
)
def test_the_long_run_did_three_hundred_versions_with_all_that_may_go_wrong(
    results: str, dealers: set[str]
) -> None:
    pieces = json.loads((RESULTS / results).read_text(encoding="utf-8"))["pieces"]
    assert sum(each["versions"] for each in pieces) >= 300
    restored = {tuple(sorted(each["restored"])) for each in pieces}
    a, b = "server-a", "server-b"
    assert restored >= {(), (a,), (b,), (a, b)}
    kinds = {kind for each in pieces for kind in each["faults"]}
    assert ("dealer restarts" in kinds) == bool(dealers)
    assert kinds >= {
        *("crash before", "crash after", "cut", "silence", "delay", "clock jump"),
        "disk fails",
    }
    assert all(sum(each["disks"][role] for each in pieces) > 0 for role in (a, b))
    # On both sides of the door: what strangers tried, and hundreds of connections of one of them.
    misdeeds = {kind for each in pieces for kind in each["misdeeds"]}
    assert misdeeds == {"claim", "upload", "frame", "flood"}
    for each in pieces:
        assert each["besieged"]["connections"] == CONNECTIONS
        assert len(each["besieged"]["deaths"]) <= DEATHS
    codes = {code for each in pieces for code in each["besieged"]["codes"]}
    assert codes >= {"INVALID_ARGUMENT", "PERMISSION_DENIED", "NOT_FOUND", "UNAVAILABLE"}
    dead = {name for each in pieces for name in each["besieged"]["deaths"]}
    assert dead >= {a, b, *dealers, "ward-0"}
    # Versions that no fault touched, in each of which every honest owner counted.
    assert sum(each["quiet_versions"] for each in pieces) >= 100
