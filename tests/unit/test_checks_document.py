"""docs/cheating-server.md says what the committed costs of both checks say."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.unit.test_checks_benchmark import checks

__all__ = ["checks"]
ROOT = Path(__file__).parents[2]
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "checks.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "cheating-server.md").read_text("utf-8")
KEYS = 39_056


def test_the_tables_are_the_result(checks: ModuleType) -> None:
    """``PYTHONPATH=. python benchmarks/checks.py --page`` writes them anew."""
    assert checks.tables(MEASURED) in PAGE


def test_every_size_was_measured_and_the_slow_link_too(checks: ModuleType) -> None:
    sizes = {(each["clients"], each["dimension"], each["link"]) for each in MEASURED["measured"]}
    assert {(n, d, checks.LOOPBACK) for d in checks.DIMENSIONS for n in checks.CLIENTS} <= sizes
    assert {(n, 10**4, checks.SLOW) for n in (1, 10)} <= sizes


def test_over_a_slow_link_the_exchanges_are_saved(checks: ModuleType) -> None:
    for each in MEASURED["measured"]:
        if each["link"] == checks.SLOW and each["clients"] <= 10:
            saved = each["crypten"]["round_s"]["least"] - each["fss"]["round_s"]["least"]
            assert saved > 0


def test_the_bytes_are_the_results() -> None:
    for each in MEASURED["measured"]:
        bytes_by_link = each["fss"]["payload_bytes"]
        for server in ("a", "b"):
            of_one = bytes_by_link[f"dealer to server-{server}"] / each["clients"]
            assert KEYS < of_one <= 48 * 1024
        assert (each["crypten"]["exchanges_to_decide"], each["fss"]["exchanges_to_decide"]) == (
            15,
            1,
        )


def test_a_submission_takes_at_most_64_bytes_between_the_servers_besides_its_body(
    checks: ModuleType,
) -> None:
    assert 0 < checks.between_servers(MEASURED, "fss") <= 64


@pytest.mark.parametrize("check", ["crypten", "fss"])
def test_each_process_was_measured(check: str) -> None:
    for each in MEASURED["measured"]:
        assert set(each[check]["cpu_s"]) == {"server-a", "server-b", "dealer"}
