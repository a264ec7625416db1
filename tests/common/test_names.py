"""``from precad.common import Task`` is the task of ``precad.common.task``."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.rig.commands import printed

import precad.common

STUB = Path(precad.common.__file__).with_suffix(".pyi")
HOMES = [
    (name.name, imported.module)
    for imported in ast.parse(STUB.read_text(encoding="utf-8")).body
    if isinstance(imported, ast.ImportFrom)
    for name in imported.names
]


@pytest.mark.parametrize(("name", "home"), HOMES)
def test_a_name_is_what_it_is_at_home(name: str, home: str) -> None:
    assert getattr(precad.common, name) is getattr(import_module(home), name)


def test_a_name_has_one_home() -> None:
    names = [name for name, _ in HOMES]
    assert len(names) == len(set(names))
    # A module's own name is the module.
    assert not {*names} & {path.stem for path in STUB.parent.iterdir()}


def test_a_name_that_is_nowhere_is_named() -> None:
    with pytest.raises(ImportError, match="Taks"):
        exec("from precad.common import Taks", {})
    assert sys.modules["precad.common.task"].Task is precad.common.Task


def test_a_name_loads_its_own_module_alone() -> None:
    loaded = printed(
        "-c",
        "from precad.common import Misconfiguration; import sys; print(*sys.modules)",
    ).split()
    assert "precad.common.errors" in loaded
    assert not {"precad.common.task", "precad.common.ring", "numpy"} & {*loaded}
