"""docs/certificates.md names code that exists, and every module with a bound."""

import importlib
import re
from pathlib import Path
from typing import get_origin

from published import printed_certificates
from published.reproduction import Reproduction

from precad.experiments.defences import ensembles

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "docs" / "certificates.md").read_text(encoding="utf-8").split())
NAMED = re.compile(
    r"`((?:common/certify|published|experiments/defences)/\w+)\.py` ·((?:,? `\w+`)+)"
)
ALONE = re.compile(r"`(\w+(?:\.\w+)?)`")
MODULES = {
    f"{folder}/{path.stem}": importlib.import_module(f"{package}.{path.stem}")
    for folder, package, place in (
        ("common/certify", "precad.common.certify", ROOT / "src" / "precad" / "common" / "certify"),
        ("published", "published", ROOT / "published"),
    )
    for path in place.glob("*.py")
    if path.stem != "__init__"
} | {"experiments/defences/ensembles": ensembles}


def test_every_function_that_the_document_names_exists() -> None:
    found = [
        (path, name)
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
            assert owner is not None or head == "certificate_inputs", name


def test_every_module_with_a_bound_is_named() -> None:
    without_bounds = {"common/certify/inputs", "common/certify/plot"}
    elsewhere = {f"published/{m}" for m in ("algorithms", "attained", "printed_privacy")}
    assert all(f"{m}.py" in TEXT for m in set(MODULES) - without_bounds - elsewhere)


def test_every_reproduction_is_in_the_table_of_corrections() -> None:
    names = [
        name
        for name, value in vars(printed_certificates).items()
        if get_origin(getattr(value, "__annotations__", {}).get("return")) is Reproduction
    ]
    assert len(names) == 7
    assert all(f"`{name}`" in TEXT for name in names)
