"""Code beside an owner's settings, which a kit may have brought, runs once its owner allowed it."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

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
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    monkeypatch.setattr(sys, "stderr", Terminal())
    own_loss(kit)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(kit.parent / "home"))
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
