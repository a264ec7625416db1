"""benchmarks/utility.py: what it takes for made already."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def utility() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "utility.py"
    spec = spec_from_file_location("utility", path)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_run_with_other_settings_is_another_one(utility: ModuleType, tmp_path: Path) -> None:
    named = {"arm": "precad", "owners": 10, "seed": 1, "settings": utility.settings()}
    utility.Kept(tmp_path / "found.json").add(named | {"accuracy": 0.9})
    kept = utility.Kept(tmp_path / "found.json")
    assert kept.has(named)
    assert not kept.has(named | {"seed": 2})
    assert not kept.has(named | {"settings": named["settings"] | {"rounds": 200}})
