"""benchmarks/checks.py: what it counts, and that it goes on where it was broken off."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from precad.cli.bench.ours.system import PHASES, SERVERS
from precad.cli.bench.sample import Sample


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "checks.py"
    spec = spec_from_file_location("checks", path)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class Facts:
    """A system that has nothing to say."""

    def facts(self) -> dict[str, Any]:
        return {}


def test_a_rounds_processor_time_is_that_of_its_phases_alone(checks: ModuleType) -> None:
    """``validate`` and ``release`` are of another round, in which they are apart."""
    cpu = {phase: dict.fromkeys(SERVERS, 1.0) for phase in (*PHASES, "validate", "release")}
    found = checks.summary([Sample({"round_s": 5.0}, cpu)], Facts(), "fss", 3)
    assert found["cpu_s"]["dealer"]["least"] == len(PHASES)
    assert found["round_s"]["median"] == 5.0


def test_a_run_that_was_broken_off_goes_on_there(checks: ModuleType, tmp_path: Path) -> None:
    output, sizes = tmp_path / "checks.json", [(1, 10, "l"), (2, 10, "l"), (1, 10, checks.SLOW)]
    asked: list[tuple[int, int, str]] = []

    def measure(clients: int, dimension: int, link: str, rounds: int) -> dict[str, Any]:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append((clients, dimension, link))
        return {"clients": clients, "dimension": dimension, "link": link, "rounds": rounds}

    with pytest.raises(KeyboardInterrupt):
        checks.measure_all(sizes, 5, output, measure)
    assert not output.exists()
    # The first two aren't asked for again.
    assert asked == sizes[:2]
    asked.clear()
    checks.measure_all(sizes, 5, output, measure)
    assert asked == sizes[2:]
    measured = json.loads(output.read_text(encoding="utf-8"))["measured"]
    assert [(each["clients"], each["dimension"], each["link"]) for each in measured] == sizes
    assert [each["rounds"] for each in measured] == [5, 5, checks.SLOW_ROUNDS]
    # A whole result is measured anew.
    asked.clear()
    checks.measure_all(sizes[:1], 5, output, measure)
    assert asked == sizes[:1]
