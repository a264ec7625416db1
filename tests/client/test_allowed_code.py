"""Code beside an owner's settings, which a kit may have brought, runs once its owner allowed it."""

import importlib.util
import os
import py_compile
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.rig.commands import precad
from tests.rig.tasks import task_with
from tests.rig.terminal import Terminal

from precad.cli.local_deployment import task_to_toml
from precad.client.allowed_code import allowed_file
from precad.client.owner_settings import JoinSettings
from precad.common.errors import Misconfiguration

RAN = "from pathlib import Path\nPath({!r}).touch()\ndef loss(outputs, targets):\n    return 1\n"
SETTINGS = """client = "ward-1"
task = "task.toml"
identity = "keys"
server_a = "a.example:1"
server_b = "b.example:1"
data = "own.csv"
state = "state"
"""
CAME = ("beside_", "kit", "__pycache__", "turtle", "tkinter")
"""How modules that tests write, or load anew, begin."""


@dataclass(frozen=True, slots=True)
class Kit:
    """A settings' folder with code, and a home and a working folder beside it."""

    folder: Path
    patch: pytest.MonkeyPatch

    def write(self, name: str, code: str = "") -> Path:
        """With the mark that it ran, unless there is code."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code or RAN.format(str(self.folder / "ran")))
        return path

    @property
    def ran(self) -> bool:
        return (self.folder / "ran").exists()

    def loss(self, place: str = "beside_settings:loss") -> Any:
        """As the settings name it."""
        settings = self.folder / "settings.toml"
        settings.write_text(SETTINGS + f'loss = "{place}"\n')
        return JoinSettings.load(settings).own_loss()

    def refuses(self, place: str = "beside_settings:loss", said: str = "isn't allowed") -> None:
        """And runs nothing."""
        (self.folder / "ran").unlink(missing_ok=True)
        with pytest.raises(Misconfiguration, match=said):
            self.loss(place)
        assert not self.ran

    def answered(self, answer: str, place: str = "beside_settings:loss") -> tuple[Any, str]:
        """The loss, or why there is none, and what was shown at a terminal where this is typed."""
        shown = Terminal()
        with self.patch.context() as terminal:
            terminal.setattr(sys, "stdin", Terminal(answer))
            terminal.setattr(sys, "stderr", shown)
            try:
                return self.loss(place), shown.getvalue()
            except Misconfiguration as refused:
                return str(refused), shown.getvalue()


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    for each in ("kit", "work", "home"):
        (tmp_path / each).mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    made = Kit(tmp_path / "kit", monkeypatch)
    made.write(
        "beside_settings.py",
        "import beside_settings_helper\n" + RAN.format(str(made.folder / "ran")),
    )
    made.write("beside_settings_helper.py", "\n")
    made.write("task.toml", task_to_toml(task_with({})))
    yield made
    for name in [each for each in sys.modules if each.startswith(CAME)]:
        del sys.modules[name]


def test_doctor_and_join_run_nothing_that_came_with_the_settings(kit: Kit) -> None:
    kit.refuses(said=r"loss = .*isn't allowed here.*allowed-code")
    for command in ("doctor", "join"):
        assert precad(command, "--config", kit.folder / "settings.toml").exit_code != 0
    assert not kit.ran


@pytest.mark.parametrize(("answer", "runs"), [("y\n", True), ("\n", False), ("", False)])
def test_on_a_terminal_it_is_shown_and_asked(kit: Kit, answer: str, *, runs: bool) -> None:
    found, shown = kit.answered(answer)
    assert (callable(found), kit.ran) == (runs, runs)
    assert runs or "isn't allowed" in found
    assert "beside_settings.py, beside_settings_helper.py" in shown
    assert str(kit.folder) in shown


def test_what_is_allowed_is_what_was_looked_at(kit: Kit) -> None:
    kit.answered("y\n")
    assert len(allowed_file().read_text().split()) == 1
    assert callable(kit.loss())  # and nobody is asked
    kit.write("beside_settings_helper.py", "import this_is_new")
    kit.refuses()
    # Compiled code that came along isn't what was looked at either.
    kit.write("beside_settings_helper.py", "\n")
    (kit.folder / "beside_settings_helper.pyc").write_bytes(b"\0")
    kit.refuses()


def test_code_where_the_owner_works_is_its_own(kit: Kit) -> None:
    for path in kit.folder.glob("*.py"):
        path.rename(kit.folder.parent / "work" / path.name)
    assert callable(kit.loss())
    assert not allowed_file().exists()


def test_code_beside_the_settings_is_no_more_its_owners_by_the_name_of_its_folder(kit: Kit) -> None:
    """From the folder above, a kit's archive is a package of its owner's by its look."""
    kit.patch.chdir(kit.folder.parent)
    kit.refuses("kit.beside_settings:loss")


def test_a_module_that_is_installed_imports_nothing_beside_the_settings(kit: Kit) -> None:
    """The settings name what Python brings; what it imports in turn came with the kit."""
    kit.patch.chdir(kit.folder)
    kit.write("tkinter/__init__.py")
    for name in [each for each in sys.modules if each.partition(".")[0] in ("turtle", "tkinter")]:
        kit.patch.delitem(sys.modules, name)
    kit.refuses("turtle:Turtle", r"isn't allowed|can't be loaded")


def test_no_folder_is_left_out_of_what_is_looked_at(kit: Kit) -> None:
    kit.answered("y\n")
    kit.write("__pycache__/beside_evil.py")
    kit.refuses("__pycache__.beside_evil:loss", "isn't shown")
    kit.write("../beside_elsewhere/evil.py")
    (kit.folder / "beside_linked").symlink_to(kit.folder.parent / "beside_elsewhere")
    kit.refuses("beside_linked.evil:loss", "isn't shown")


def test_what_is_imported_later_is_what_was_looked_at_too(kit: Kit) -> None:
    """A layer may import when it is made; compiled code that came along says otherwise."""
    later = "def loss(*_):\n    from .later import found\n    return found\n"
    kit.write("beside_package/__init__.py", later)
    source = kit.write("beside_package/later.py", "found = 'looked at'\n")
    evil = kit.write("beside_package/evil.py", "found = 'not looked at'\n")
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir()
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), str(cached), invalidation_mode=mode)
    evil.unlink()
    loss, _ = kit.answered("y\n", "beside_package:loss")
    assert loss() == "looked at"
    assert kit.loss("beside_package:loss")() == "looked at"


def test_an_environment_beside_the_settings_is_installed_and_nobody_is_asked(kit: Kit) -> None:
    packages = kit.folder / "venv" / "site-packages"
    packages.parent.mkdir()
    kit.write("venv/site-packages/beside_installed.py")
    (packages / "beside_library.so").write_bytes(b"")
    os.truncate(packages / "beside_library.so", 2**27)
    kit.patch.syspath_prepend(packages)
    assert callable(kit.answered("y\n")[0])  # the code beside them, however large a library is
    assert callable(kit.loss("beside_installed:loss"))
