"""Several tasks in one settings file: what is shared, what each has of its own, what is refused."""

import math
import shutil
from pathlib import Path

import pytest

from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.client.owner_settings import JoinSettings
from precad.common.errors import Misconfiguration
from precad.common.process_settings import settings_by_task

DEPLOY = Path(__file__).parents[2] / "deploy"
SHARED = """
identity = "keys"
state = "state"
journal = "elsewhere/journal"
workers = 2
"""
WARDS = """
[tasks.wards]
task = "wards.toml"
listen = "0.0.0.0:7401"
server_b = "b.example:7402"
dealer = "dealer.example:7403"
"""
CLINICS = """
[tasks.clinics]
task = "clinics.toml"
listen = "0.0.0.0:7411"
server_b = "b.example:7412"
dealer = "dealer.example:7413"
workers = 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two task files: of one name each."""
    text = (DEPLOY / "task.toml").read_text(encoding="utf-8")
    for name in ("wards", "clinics"):
        named = text.replace('"digits-logistic"', f'"{name}"')
        assert named != text
        (tmp_path / f"{name}.toml").write_text(named, encoding="utf-8")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "server-a.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> Misconfiguration:
    with pytest.raises(Misconfiguration) as error:
        settings_by_task(ServerASettings, write(folder, text))
    return error.value


def test_a_task_has_what_its_table_says_before_what_all_share(folder: Path) -> None:
    found = settings_by_task(ServerASettings, write(folder, SHARED + WARDS + CLINICS))
    (wards, _), (clinics, _) = found["wards"], found["clinics"]
    assert list(found) == ["wards", "clinics"]
    assert wards.identity == clinics.identity == folder / "keys"
    assert (wards.workers, clinics.workers) == (2, 0)
    assert (wards.task, clinics.task) == (folder / "wards.toml", folder / "clinics.toml")
    assert (wards.listen, clinics.server_b) == ("0.0.0.0:7401", "b.example:7412")


def test_states_and_journals_are_the_tasks_own_and_apart(folder: Path) -> None:
    found = settings_by_task(ServerASettings, write(folder, SHARED + WARDS + CLINICS))
    wards = found["wards"][0]
    assert (wards.state, wards.journal) == (
        folder / "state" / "wards",
        folder / "elsewhere" / "journal" / "wards",
    )
    path = write(folder, SHARED.replace('journal = "elsewhere/journal"', "") + WARDS)
    # A backup of all states brings no journal back.
    assert settings_by_task(ServerASettings, path)["wards"][0].journal == (
        folder / "state-journal" / "wards"
    )


def test_a_finished_model_is_on_offer_until_its_table_goes_unless_the_file_says_less(
    folder: Path,
) -> None:
    path = write(folder, SHARED + WARDS + CLINICS + "linger = 5.0\n")
    found = settings_by_task(ServerASettings, path)
    assert (found["wards"][0].linger, found["clinics"][0].linger) == (math.inf, 5.0)


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [
        ("listen", "0.0.0.0:7411", "0.0.0.0:7401"),
        ("server_b", "b.example:7412", "b.example:7402"),
        ("dealer", "dealer.example:7413", "dealer.example:7403"),
        ("task", "clinics.toml", "wards.toml"),
        ("state", "workers = 0", 'state = "state/wards"'),
        ("journal", "workers = 0", 'journal = "elsewhere/journal/wards"'),
    ],
)
def test_two_tasks_with_one_address_or_place_are_refused(
    field: str, old: str, new: str, folder: Path
) -> None:
    assert old in CLINICS
    error = refused(folder, SHARED + WARDS + CLINICS.replace(old, new))
    assert error.field == f"tasks.clinics.{field}"
    assert "tasks.wards" in str(error)
    assert str(error.value).endswith(new.split('"')[-2] if '"' in new else new)


@pytest.mark.parametrize("shared", ['database = "sqlite:///all.db"', 'metrics = "127.0.0.1:9301"'])
def test_what_one_task_alone_can_have_is_not_shared(shared: str, folder: Path) -> None:
    error = refused(folder, SHARED + shared + WARDS + CLINICS)
    assert error.field == f"tasks.clinics.{shared.split(maxsplit=1)[0]}"
    assert "give each task its own" in error.remedy
    settings_by_task(ServerASettings, write(folder, SHARED + shared + WARDS))


def test_workers_on_free_ports_are_nobodys_alone(folder: Path) -> None:
    free = SHARED + 'worker_listen = "127.0.0.1:0"'
    assert len(settings_by_task(ServerASettings, write(folder, free + WARDS + CLINICS))) == 2
    fixed = SHARED + 'worker_listen = "0.0.0.0:7311"'
    assert refused(folder, fixed + WARDS + CLINICS).field == "tasks.clinics.worker_listen"


def test_one_task_in_two_files_is_refused(folder: Path) -> None:
    shutil.copy(folder / "wards.toml", folder / "clinics.toml")
    error = refused(folder, SHARED + WARDS + CLINICS)
    assert (error.field, error.value) == ("tasks.clinics.task", str(folder / "clinics.toml"))
    assert "another name" in error.remedy


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        (SHARED + "tasks = 3\n", "tasks", "[tasks.NAME]"),
        (SHARED + "[tasks]\n", "tasks", "[tasks.NAME]"),
        (SHARED + "[tasks]\nwards = 3\n", "tasks.wards", "[tasks.NAME]"),
        (SHARED + WARDS.replace("tasks.wards", 'tasks."../wards"'), "tasks", "like wards-2"),
        (SHARED + WARDS.replace("7401", "none"), "tasks.wards.listen", "host:port"),
        (SHARED + WARDS + "worker = 1\n", "tasks.wards.worker", "unknown key"),
        (SHARED + WARDS.replace("server_b", "#"), "tasks.wards.server_b", "is required"),
        (SHARED + WARDS.replace("wards.toml", "no.toml"), "tasks.wards.task", "can't be read"),
    ],
)
def test_a_mistake_is_named_with_its_table(text: str, field: str, words: str, folder: Path) -> None:
    error = refused(folder, text)
    assert error.field == field
    assert words in str(error)


def test_an_owner_takes_part_in_one_task_a_file(folder: Path) -> None:
    for kind in (JoinSettings, ServerBSettings):
        with pytest.raises(Misconfiguration, match="has several tasks; give one task's file"):
            kind.load(write(folder, SHARED + WARDS))
