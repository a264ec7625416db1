"""What each release left on disks is opened for ever (``record.py`` made it).

Each of this version's commands and readers must say of a release's files what that
release said itself. It may say more.
"""

import base64
import json
import re
import shutil
import sqlite3
import tomllib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.releases import trees
from tests.rig.commands import document, said
from tests.rig.task_files import task_to_toml

from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.aggregator.store.journal_file import JournalFile
from precad.client.owner_settings import JoinSettings
from precad.common.model import load_model
from precad.common.process_settings import ProcessSettings
from precad.common.task import Task
from precad.dealer.process import DealerSettings

HERE = Path(__file__).parent
TRAININGS = sorted(each.parent for each in HERE.glob("*/*/said.json"))
SERVERS = ("server-a", "server-b")
OWNERS = ("ward-0", "ward-1")
CHECKS = ("crypten", "proof")
ROUNDS = 3
REPORTED = ("rounds", "ledgers", "differences", "taken")
# A report's words may become better, its numbers stay.
STATED = ("protects", "epsilon", "delta")
SETTINGS: Mapping[str, type[ProcessSettings]] = {
    "server-a": ServerASettings,
    "server-b": ServerBSettings,
    "dealer": DealerSettings,
    **dict.fromkeys(OWNERS, JoinSettings),
}


@pytest.fixture(params=TRAININGS, ids=lambda each: f"{each.parent.name}-{each.name}")
def training(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture
def states(training: Path, tmp_path: Path) -> list[Path]:
    """Both servers' state folders, as the release left them, without certificates."""
    restored = []
    for server in SERVERS:
        state = tmp_path / server
        state.mkdir()
        with closing(sqlite3.connect(state / "state.db")) as connection:
            connection.executescript((training / f"{server}.sql").read_text())
        model = base64.b64decode((training / f"{server}-model.txt").read_text())
        (state / "model.safetensors").write_bytes(model)
        restored.append(state)
    return restored


def whole(training: Path) -> Any:
    return json.loads((training / "said.json").read_text())


def check_holds(now: object, then: object, where: str = "") -> None:
    """``now`` says what ``then`` did; of tables it may have more columns."""
    if isinstance(then, dict):
        assert isinstance(now, dict), where
        for key, value in then.items():
            assert key in now, f"{where}.{key}"
            check_holds(now[key], value, f"{where}.{key}")
    elif isinstance(then, list):
        assert isinstance(now, list), where
        assert len(now) == len(then), where
        for number, (mine, theirs) in enumerate(zip(now, then, strict=True)):
            check_holds(mine, theirs, f"{where}[{number}]")
    elif isinstance(then, float):
        assert now == pytest.approx(then, rel=1e-6), where
    else:
        assert now == then, where


def test_every_release_is_recorded_under_both_checks_of_norms() -> None:
    """Whoever lists one records it (CONTRIBUTING.md, "How to make a release")."""
    recorded = {(each.parent.name, each.name) for each in TRAININGS}
    listed = trees.listed_versions()
    assert recorded == {(each, check) for each in listed for check in CHECKS}


def test_a_task_has_its_digest(training: Path) -> None:
    (digest,) = re.findall(r"[0-9a-f]{64}", whole(training)["task"])
    assert str(Task.load(training / "task.toml").digest) == digest
    assert digest in said("task", "check", training / "task.toml")


def test_a_task_that_asks_for_nothing_new_is_written_as_a_release_reads_it(
    training: Path,
) -> None:
    """A release refuses unknown keys: one with a default that stood in each file kept
    it from every task of a later build. What a digest is of was known to the release."""
    task = Task.load(training / "task.toml")
    known = keys_of(json.loads(task.canonical))
    # These two stood in files of 0.1.0.
    known |= {"model.buffers", "training.any_operations"}
    assert keys_of(tomllib.loads(task_to_toml(task))) <= known


def keys_of(table: Mapping[str, Any], within: str = "") -> set[str]:
    found = set()
    for key, value in table.items():
        found.add(f"{within}{key}")
        if isinstance(value, Mapping):
            found |= keys_of(value, f"{within}{key}.")
    return found


def test_ledgers_say_what_they_said_and_agree(
    training: Path, states: list[Path]
) -> None:
    for server, other, state in zip(SERVERS, SERVERS[::-1], states, strict=True):
        then = whole(training)
        check_holds(document("ledger", "verify", state), then["verify"][server])
        check_holds(document("ledger", "show", state), then["show"][server])
        assert then["show"][server]["totals"]["rounds_released"] == ROUNDS
        against = state.with_name(other)
        assert "sound" in said("ledger", "verify", state, "--against", against)


def test_a_report_says_what_it_said(
    training: Path, states: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "report.json"
    said("report", *states, "--format", "json", "--out", out)
    now = json.loads(out.read_text())
    then = json.loads((training / "report.json").read_text())
    check_holds(now, {key: then[key] for key in REPORTED})
    assert now["training"]["task_digest"] == then["training"]["task_digest"]
    numbers = [{key: each[key] for key in STATED} for each in then["guarantees"]]
    check_holds(now["guarantees"], numbers)


def test_an_owner_s_account_says_what_it_said(training: Path, tmp_path: Path) -> None:
    for owner in OWNERS:
        account = tmp_path / "participations.log"
        shutil.copy(training / f"{owner}.log", account)
        check_holds(
            document("ledger", "mine", tmp_path), whole(training)["mine"][owner]
        )
        assert account.read_bytes() == (training / f"{owner}.log").read_bytes()


def test_models_and_journals_are_read(training: Path, states: list[Path]) -> None:
    task = Task.load(training / "task.toml")
    digests = set()
    for server, state in zip(SERVERS, states, strict=True):
        model = load_model(state / "model.safetensors", task)
        assert model.version == ROUNDS
        digests.add(model.digest)
        journal = state / "journal.jsonl"
        shutil.copy(training / f"{server}-journal.txt", journal)
        entries = JournalFile(journal, task.digest).read()
        assert {fact.version for fact in entries.facts} == set(range(ROUNDS))
    assert len(digests) == 1


def test_settings_and_kits_are_read(training: Path) -> None:
    for party, settings in SETTINGS.items():
        path = training / f"{party}.toml"
        if path.exists():
            settings.load(path)
    kits = sorted((training / "kits").iterdir())
    assert {"server-a", "server-b", "ward-0", "operator"} <= {k.name for k in kits}
    digest = Task.load(training / "task.toml").digest
    for kit in kits:
        # An operator's says what to type, and has nothing to run.
        if kit.name in SETTINGS:
            assert Task.load(kit / "task.toml").digest == digest
            SETTINGS[kit.name].load(kit / "settings.toml")


def test_no_key_and_no_certificate_is_kept(training: Path) -> None:
    for path in training.rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8")
            assert "-----BEGIN" not in text, path
            for written in re.findall(r"X'([0-9A-F]+)'", text):
                blob = bytes.fromhex(written)
                assert b"-----BEGIN" not in blob, path
                signed = re.findall(rb'"certificates": ?\[(.*?)\]', blob)
                assert set(signed) <= {b'"00"'}, path
