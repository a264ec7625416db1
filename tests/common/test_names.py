"""``from precad.common import Task`` is the task of ``precad.common.task``."""

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from tests.rig.commands import printed

import precad.accounting
import precad.certify
import precad.client
import precad.common.identity
import precad.common.wire
import precad.norm_check

PACKAGES = (
    precad.accounting,
    precad.certify,
    precad.client,
    precad.common,
    precad.common.identity,
    precad.common.wire,
    precad.norm_check,
)


def homes(package: ModuleType) -> list[tuple[str, str]]:
    assert package.__file__ is not None
    stub = Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return [
        (name.name, str(imported.module))
        for imported in ast.parse(stub).body
        if isinstance(imported, ast.ImportFrom)
        for name in imported.names
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_name_is_what_it_is_at_home(package: ModuleType) -> None:
    for name, home in homes(package):
        assert home.startswith(f"{package.__name__}.")
        assert getattr(package, name) is getattr(import_module(home), name), name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_name_has_one_home_and_is_no_module(package: ModuleType) -> None:
    names = [name for name, _ in homes(package)]
    assert names == package.__all__
    assert len(names) == len(set(names))
    modules = {
        path.stem for folder in package.__path__ for path in Path(folder).iterdir()
    }
    assert not modules & {*names}


def test_a_name_that_is_nowhere_is_named() -> None:
    with pytest.raises(ImportError, match="Taks"):
        exec("from precad.common import Taks", {})
    with pytest.raises(AttributeError, match="shows no Taks"):
        precad.common.Taks  # type: ignore[attr-defined]  # noqa: B018


def test_a_name_loads_its_own_module_alone() -> None:
    take = "from precad.common import Misconfiguration"
    loaded = printed("-c", f"{take}; import sys; print(*sys.modules)").split()
    assert "precad.common.errors" in loaded
    assert not {"precad.common.task", "precad.common.ring", "numpy"} & {*loaded}
