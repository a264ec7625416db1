"""`precad setup` as a person runs it; that what it makes trains, tests/soak shows."""

import re
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.rig import commands

from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.cli.local_deployment import task_to_toml
from precad.client.owner_settings import JoinSettings
from precad.common.identity.credentials import Identity


@pytest.fixture
def place(tmp_path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task and two tables; the current one."""
    task = make_task(8, {"enrolment.clients": 2, "enrolment.min_clients": 2})
    (tmp_path / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    for name in ("Ward_1.csv", "ward-2.csv"):
        (tmp_path / name).write_text("a,y\n1,0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SETUP = ("setup", "run", "--task", "task.toml")
BOTH = ("--data", "Ward_1.csv", "--data", "ward-2.csv")


def test_every_party_gets_settings_that_load_and_keys_of_its_own(place: Path) -> None:
    made = commands.precad(*SETUP, *BOTH, "--model", "nets:Net")
    assert made.exit_code == 0, made.stderr
    a = ServerASettings.load(place / "run" / "server-a.toml")
    b = ServerBSettings.load(place / "run" / "server-b.toml")
    assert a.server_b == b.listen
    for name, file in (("ward-1", "Ward_1.csv"), ("ward-2", "ward-2.csv")):
        owner = JoinSettings.load(place / "run" / f"{name}.toml")
        assert (owner.client, owner.model, owner.data.resolve()) == (name, "nets:Net", place / file)
        assert (owner.server_a, owner.server_b) == (a.listen, b.listen)
        assert Identity.load(owner.identity).principal.name == name
        # A token goes into the settings.
        for private in (owner.identity / "key.pem", place / "run" / f"{name}.toml"):
            assert stat.S_IMODE(private.stat().st_mode) == 0o600
    # What it says to run next is there.
    named = re.findall(r"--config (\S+)", made.stdout)
    assert len(named) == 6
    assert all((place / each).is_file() for each in named)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--data", "ward-2.csv"], "the task takes 2 to 2 owners"),
        (["--data", "ward-2.csv", "--data", "ward-2.csv"], "a name of its own"),
        (["--data", "ward-2.csv", "--data", "ward-3.csv"], "there is no such file"),
    ],
)
def test_a_mistake_makes_nothing(arguments: list[str], remedy: str, place: Path) -> None:
    assert remedy in commands.refused(*SETUP, *arguments)
    assert not (place / "run").exists()
    # Nor is a folder written to that is there.
    (place / "run").mkdir()
    assert "exists already" in commands.refused(*SETUP, *BOTH)
