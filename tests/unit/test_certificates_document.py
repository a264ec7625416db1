"""docs/certificates.md names code that exists, and every module with a bound."""

import importlib
import re
from pathlib import Path

from precad.common.certify import Reproduction, reproduction

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "docs" / "certificates.md").read_text(encoding="utf-8").split())
NAMED = re.compile(r"`(common/certify/\w+)\.py` ·((?:,? `\w+`)+)")
ALONE = re.compile(r"`(\w+(?:\.\w+)?)`")
MODULES = {
    path.stem: importlib.import_module(f"precad.common.certify.{path.stem}")
    for path in (ROOT / "src" / "precad" / "common" / "certify").glob("*.py")
    if path.stem != "__init__"
}


def test_every_function_that_the_document_names_exists() -> None:
    found = [
        (path.rsplit("/", 1)[1], name)
        for path, names in NAMED.findall(TEXT)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert len(found) > 25
    for module, name in found:
        assert hasattr(MODULES[module], name), (module, name)


def test_functions_named_alone_exist_somewhere() -> None:
    for name in (
        "simuem",
        "score_intervals",
        "certified_accuracy",
        "renyi_reach_poisoned_over_clean",
    ):
        assert f"`{name}`" in TEXT
    for name in ALONE.findall(TEXT):
        head, _, attribute = name.partition(".")
        owner = next((vars(m)[head] for m in MODULES.values() if head in vars(m)), None)
        if attribute and head[0].isupper():
            assert hasattr(owner, attribute), name
        elif "_" in head and not head.endswith("_"):
            assert owner is not None or head in ("certificate_inputs", "xie_table"), name


def test_every_module_with_a_bound_is_named() -> None:
    without_bounds = {"inputs", "plot"}
    assert all(f"common/certify/{m}.py" in TEXT for m in set(MODULES) - without_bounds)


def test_every_reproduction_is_in_the_table_of_corrections() -> None:
    for name, value in vars(reproduction).items():
        returned = getattr(value, "__annotations__", {}).get("return")
        if returned is Reproduction and not name.startswith("_"):
            assert f"`{name}`" in TEXT, name
