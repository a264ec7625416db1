"""Code beside an owner's settings, which a kit may have brought, runs once its owner allowed it."""

import importlib.util
import io
import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.rig.tasks import task_with

from precad.cli.local_deployment import task_to_toml, to_toml
from precad.cli.main import app
from precad.client.allowed_code import allowed_file
from precad.client.owner_settings import JoinSettings
from precad.common.errors import Misconfiguration

CODE = """from pathlib import Path
import beside_settings_helper
Path(__file__).with_name("ran").touch()
def loss(outputs, targets):
    return (outputs - targets).sum()
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A settings' folder with code, and a home and a working folder beside it."""
    folder = tmp_path / "kit"
    for each in (folder, tmp_path / "work", tmp_path / "home"):
        each.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    (folder / "beside_settings.py").write_text(CODE)
    (folder / "beside_settings_helper.py").write_text("")
    (folder / "task.toml").write_text(task_to_toml(task_with({})))
    values = {
        "client": "ward-1", "task": "task.toml", "identity": "keys", "server_a": "a.example:1",
        "server_b": "b.example:1", "data": "own.csv", "state": "state",
        "loss": "beside_settings:loss",
    }  # fmt: skip
    (folder / "settings.toml").write_text(to_toml(values))
    yield folder
    for name in ("beside_settings", "beside_settings_helper"):
        sys.modules.pop(name, None)


def own_loss(folder: Path) -> object:
    return JoinSettings.load(folder / "settings.toml").own_loss()


def test_doctor_and_join_run_nothing_that_came_with_the_settings(kit: Path) -> None:
    for command in ("doctor", "join"):
        ended = CliRunner().invoke(app, [command, "--config", str(kit / "settings.toml")])
        assert ended.exit_code != 0
    assert not (kit / "ran").exists()
    with pytest.raises(Misconfiguration, match=r"loss = .*isn't allowed here.*allowed-code"):
        own_loss(kit)
    assert not (kit / "ran").exists()


@pytest.mark.parametrize(("answer", "runs"), [("y\n", True), ("\n", False), ("", False)])
def test_on_a_terminal_it_is_shown_and_asked(
    kit: Path, monkeypatch: pytest.MonkeyPatch, answer: str, *, runs: bool
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", shown)
    if runs:
        assert callable(own_loss(kit))
    else:
        with pytest.raises(Misconfiguration, match="isn't allowed"):
            own_loss(kit)
    assert (kit / "ran").exists() is runs
    assert "beside_settings.py, beside_settings_helper.py" in shown.getvalue()
    assert str(kit) in shown.getvalue()


def test_what_is_allowed_is_what_was_looked_at(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(kit, monkeypatch)
    assert len(allowed_file().read_text().split()) == 1
    assert callable(own_loss(kit))  # and nobody is asked
    (kit / "beside_settings_helper.py").write_text("import this_is_new")
    with pytest.raises(Misconfiguration, match="isn't allowed"):
        own_loss(kit)
    # Compiled code that came along isn't what was looked at either.
    (kit / "beside_settings_helper.py").write_text("")
    (kit / "beside_settings_helper.pyc").write_bytes(b"\0")
    with pytest.raises(Misconfiguration, match="isn't allowed"):
        own_loss(kit)


def test_code_where_the_owner_works_is_its_own(kit: Path) -> None:
    for name in ("beside_settings.py", "beside_settings_helper.py"):
        (kit / name).rename(kit.parent / "work" / name)
    assert callable(own_loss(kit))
    assert not allowed_file().exists()


EVIL = """from pathlib import Path
(Path(__file__).parents[1] / "ran").touch()
def loss(outputs, targets):
    return (outputs - targets).sum()
"""


def write(path: Path, code: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)


def name_loss(kit: Path, place: str) -> None:
    settings = kit / "settings.toml"
    text = settings.read_text().replace("beside_settings:loss", place)
    settings.write_text(text)


def forget(*names: str) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]


def test_code_beside_the_settings_is_no_more_its_owners_by_the_name_of_its_folder(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the folder above, a kit's archive is a package of its owner's by its look."""
    monkeypatch.chdir(kit.parent)
    name_loss(kit, "kit.beside_settings:loss")
    with pytest.raises(Misconfiguration, match="isn't allowed"):
        own_loss(kit)
    assert not (kit / "ran").exists()


def test_a_module_that_is_installed_imports_nothing_beside_the_settings(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings name what Python brings; what it imports in turn came with the kit."""
    monkeypatch.chdir(kit)
    write(kit / "tkinter" / "__init__.py", EVIL)
    name_loss(kit, "turtle:Turtle")
    forget("turtle", "tkinter")
    with pytest.raises(Misconfiguration, match=r"isn't allowed|can't be loaded"):
        own_loss(kit)
    forget("turtle", "tkinter")
    assert not (kit / "ran").exists()


def allow(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as terminal:
        terminal.setattr(sys, "stdin", Terminal("y\n"))
        terminal.setattr(sys, "stderr", Terminal())
        own_loss(kit)


def test_no_folder_is_left_out_of_what_is_looked_at(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(kit, monkeypatch)
    (kit / "ran").unlink()
    write(kit / "__pycache__" / "beside_evil.py", EVIL)
    name_loss(kit, "__pycache__.beside_evil:loss")
    with pytest.raises(Misconfiguration, match="isn't shown"):
        own_loss(kit)
    write(kit.parent / "beside_elsewhere" / "evil.py", EVIL)
    (kit / "beside_linked").symlink_to(kit.parent / "beside_elsewhere")
    settings = kit / "settings.toml"
    settings.write_text(settings.read_text().replace("__pycache__.beside_", "beside_linked."))
    with pytest.raises(Misconfiguration, match="isn't shown"):
        own_loss(kit)
    forget("__pycache__", "beside_linked")
    assert not (kit / "ran").exists()


def test_what_is_imported_later_is_what_was_looked_at_too(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer may import when it is made; compiled code that came along says otherwise."""
    package = kit / "beside_package"
    write(
        package / "__init__.py", "def loss(*_):\n    from .later import found\n    return found\n"
    )
    write(package / "later.py", "found = 'looked at'\n")
    cached = Path(importlib.util.cache_from_source(str(package / "later.py")))
    write(package / "evil.py", "found = 'not looked at'\n")
    cached.parent.mkdir()
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(package / "evil.py"), str(cached), invalidation_mode=mode)
    (package / "evil.py").unlink()
    name_loss(kit, "beside_package:loss")
    allow(kit, monkeypatch)
    loss: Any = own_loss(kit)
    assert loss() == "looked at"
    forget("beside_package")


def test_an_environment_beside_the_settings_is_installed_and_nobody_is_asked(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = kit / "venv" / "site-packages"
    packages.mkdir(parents=True)
    write(packages / "beside_installed.py", "def loss(*_):\n    return 1\n")
    (packages / "beside_library.so").write_bytes(b"")
    os.truncate(packages / "beside_library.so", 2**27)
    monkeypatch.syspath_prepend(packages)
    allow(kit, monkeypatch)  # of the code beside them, however large a library is
    name_loss(kit, "beside_installed:loss")
    assert callable(own_loss(kit))
    forget("beside_installed")
