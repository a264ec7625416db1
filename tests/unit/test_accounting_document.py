"""docs/privacy-accounting.md names code that exists."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "docs" / "privacy-accounting.md").read_text().split())
ALL_NAMES = re.compile(r"`(common/account/\w+)\.py` ·((?:,? `\w+`)+)")


def test_every_function_that_the_document_names_exists() -> None:
    found = [
        (path, name)
        for path, names in ALL_NAMES.findall(TEXT)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert len(found) > 20
    for path, name in found:
        module = importlib.import_module("precad." + path.replace("/", "."))
        assert hasattr(module, name), (path, name)


def test_the_document_names_every_module_with_a_bound() -> None:
    modules = {p.stem for p in (ROOT / "src" / "precad" / "common" / "account").glob("*.py")}
    without_bounds = {"__init__"}
    assert all(f"common/account/{m}.py" in TEXT for m in modules - without_bounds)


def test_what_it_calls_by_name_alone_exists() -> None:
    for module, names in {
        "algorithms": ("userdp_fedavg", "insdp_fedsgd", "dopamine", "ParallelAccount"),
        "reproduction": ("Reproduction",),
        "printed_privacy": (
            "precad_theorem_1_case_2",
            "precad_case_2_by_pld",
            "xie_table",
            "xie_proposition_1",
        ),
    }.items():
        loaded = importlib.import_module(f"published.{module}")
        for name in names:
            assert f"`{name}`" in TEXT
            assert hasattr(loaded, name)
