"""What an owner gets wrong first is found before it enrols, in a sentence each, for
real.

Each mistake is made in a copy of good settings, at servers that run;
docs/first-mistakes.md has what `precad doctor` then says, and can't drift.
``PRECAD_WRITE_FIRST_MISTAKES=1`` writes it anew.
"""

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from examples.demo.local_processes import LocalDeployment
from numpy.typing import NDArray
from tests.conftest import small_task
from tests.rig.documents import Document
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import logistic
from tests.rig.waiting import until
from tests.rig.warm import forked, said

from precad.aggregator.enrol.admission import ByToken, new_token, token_digest
from precad.cli.local_deployment import free_addresses, to_toml
from precad.client import allowed_code, check_before_enrolling, owner_settings
from precad.client.account_file import ACCOUNT_FILE
from precad.client.own_account import OwnAccount
from precad.common.files import append_line, make_folder
from precad.common.identifiers import ClientId, Role
from precad.common.identity import credentials, deployment_keys
from precad.common.task import Task

DOCUMENT = Path(__file__).parents[3] / "docs" / "first-mistakes.md"
FEATURES, CLASSES, RECORDS = 64, 10, 60
WAIT_S = 30.0
SERVERS = (Role.SERVER_A, Role.SERVER_B)
PRIVACY = {"client_clip": 10.0, "noise_multiplier": 8.0, "record_rate": 0.1}
LONG = {
    "name": "mistakes",
    **logistic(FEATURES, CLASSES),
    "training.rounds": 400,
    **{f"privacy.{name}": value for name, value in PRIVACY.items()},
    "deadlines": {"enrol": 3600.0, "work": 2.0, "outage": 3600.0},
}  # Of a small task that goes on for longer than all this takes
RNG = np.random.default_rng(1)
X = RNG.random((RECORDS, FEATURES)).astype(np.float32)
Y = RNG.integers(CLASSES, size=RECORDS)
WITH_NAN = X.copy()
WITH_NAN[25, 3] = np.nan
Settings = Document


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def records(
    folder: Path, x: NDArray[np.float32] = X, y: NDArray[np.generic] = Y
) -> Settings:
    np.savez(folder / "records.npz", x=x, y=y)
    return {"data": str(folder / "records.npz")}


def settings_of(path: Path) -> Settings:
    return tomllib.loads(path.read_text("utf-8"))


def keys_of(name: str, good: Settings) -> str:
    return str(Path(good["identity"]).with_name(name))


def _another_task(folder: Path, good: Settings) -> Settings:
    task = Task.load(Path(good["task"])).model_copy(update={"projections": 60})
    return {"task": written(folder / "task.toml", task_to_toml(task))}


def _bad_cell(folder: Path, _good: Settings) -> Settings:
    names = [f"p{place}" for place in range(FEATURES)]
    rows = [
        [f"{v:.3f}" for v in row] + [str(label)]
        for row, label in zip(X, Y, strict=True)
    ]
    rows[7][2] = "n/a"
    text = "\n".join(",".join(row) for row in [[*names, "digit"], *rows])
    columns = {"inputs": names, "target": "digit"}
    return {"data": written(folder / "ward.csv", text), "columns": columns}


def _batch_norm(folder: Path, _good: Settings) -> Settings:
    net = "nn.Sequential(nn.BatchNorm1d(64, affine=False), nn.Linear(64, 10))"
    written(
        folder / "nets_with_norm.py", f"from torch import nn\n\nNet = lambda: {net}\n"
    )
    # Its owner has looked at it, and said so.
    make_folder(allowed_code.allowed_file().parent)
    append_line(allowed_code.allowed_file(), allowed_code._names_and_digest(folder)[1])
    return {"model": "nets_with_norm:Net"}


def _unreadable_key(folder: Path, good: Settings) -> Settings:
    keys = Path(shutil.copytree(good["identity"], folder / "keys"))
    (keys / "key.pem").write_bytes((keys / "key.pem").read_bytes()[:40])
    return {"identity": str(keys)}


def _foreign_root(folder: Path, good: Settings) -> Settings:
    deployment_keys.create_local_keys(folder / "others", [good["client"]])
    return {"identity": str(folder / "others" / good["client"])}


def _second_name(folder: Path, good: Settings) -> Settings:
    task = Task.load(Path(good["task"]))
    make_folder(folder / "account")
    log = folder / "account" / ACCOUNT_FILE
    OwnAccount(task, 0.1, None, log, ClientId("ward-1")).charge(0)
    return {"account": str(log.parent)}


MISTAKES: dict[str, Callable[[Path, Settings], Settings]] = {
    "wrong port": lambda *_: {"server_a": free_addresses(1)[0]},
    "no such port": lambda *_: {"server_a": "127.0.0.1:99999"},
    "another authority's certificate": _foreign_root,
    "another owner's certificate": lambda _, good: {
        "identity": keys_of("ward-3", good)
    },
    "swapped servers": lambda _, good: {
        "server_a": good["server_b"],
        "server_b": good["server_a"],
    },
    "another task": _another_task,
    "NaN among the inputs": lambda at, _: records(at, WITH_NAN),
    "a cell that is no number": _bad_cell,
    "labels of the wrong type": lambda at, _: records(at, y=Y.astype(np.float32)),
    "a label out of range": lambda at, _: records(
        at, y=np.where(np.arange(RECORDS) == 4, 10, 0)
    ),
    "batch norm": _batch_norm,
    "records of the wrong shape": lambda at, _: records(at, X[:, :63]),
    "too small a limit": lambda *_: {"epsilon_limit": 0.01},
    "a clock two hours behind": lambda *_: {},
    "an unreadable key": _unreadable_key,
    "a name that is taken": lambda _, good: {
        "client": "ward-1",
        "identity": keys_of("ward-1", good),
    },
    "a second name for one data set": _second_name,
    "no enrolment token": lambda *_: {"token": None},  # Left out
    "half an enrolment token": lambda _, good: {"token": good["token"][:26]},
    "a wrong enrolment token": lambda *_: {"token": new_token()},
    "another owner's enrolment token": lambda _, good: {
        "token": settings_of(Path(good["identity"]).parents[1] / "ward-1.toml")["token"]
    },
    "a full disk": lambda *_: {},
    "a late start": lambda *_: {},
}
PROGRAMS = {
    "a clock two hours behind": "tests.rig.behind",
    "a full disk": "tests.rig.full_disk",
}


@dataclass(frozen=True, slots=True)
class Clinic:
    """Servers that wait for owners, and ask for tokens, and others that train
    already."""

    folder: Path
    open: LocalDeployment
    training: LocalDeployment

    def ready(self) -> bool:
        """Whether ward-1 is there in the one, and enrolment is over in the other."""
        expected = (
            (self.open, "ward-1", "another process"),
            (self.training, "ward-2", "is over"),
        )
        for deployment, name, words in expected:
            deployment.check_alive()
            keys = credentials.Identity.load(deployment.folder / "keys" / name)
            addresses = {role: deployment.addresses[role.value] for role in SERVERS}
            found = check_before_enrolling.look_at_servers(
                None, ClientId(name), keys, addresses
            )()
            if not any(words in each.text for each in found):
                return False
        return True

    def tell(self, mistake: str) -> tuple[int, set[str], list[str]]:
        """Status, what was looked at, and what is to be mended, without what differs by
        run."""
        deployment = self.training if mistake == "a late start" else self.open
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        good = settings_of(deployment.folder / "ward-2.toml")
        good |= {
            name: str(deployment.folder / good[name])
            for name in ("task", "identity", "data")
        }
        good |= {"state": str(folder / "state"), "epsilon_limit": 4.0}
        settings = good | (MISTAKES[mistake](folder, good) if mistake else {})
        kept = {name: value for name, value in settings.items() if value is not None}
        # Machines of tests are busy.
        command = ("doctor", "--json", "--wait", WAIT_S, "--config")
        config = written(folder / "ward.toml", to_toml(kept))
        program = PROGRAMS.get(mistake, "precad")
        status, printed = said(folder, *command, config, program=program)
        found = [line for line in printed.splitlines() if line.startswith('{"')]
        assert found, printed
        findings = json.loads(found[-1])["findings"]
        bad = [each["said"] for each in findings if each["kind"] == "bad"]
        for pattern, shown in (
            (re.escape(str(folder)), "OWNER"),
            (re.escape(str(deployment.folder)), "SHARED"),
            (r"127\.0\.0\.1:\d+", "HOST:PORT"),
            (r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1…"),
        ):
            bad = [re.sub(pattern, shown, text) for text in bad]
        return status, {each["about"] for each in findings}, bad


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    folder = tmp_path_factory.mktemp("clinic")
    tokens = {ClientId(f"ward-{number}"): new_token() for number in (1, 2, 3)}
    waiting, training = (
        LocalDeployment(
            folder / name, task, dict.fromkeys(tokens, (X, Y)), popen=forked
        )
        for name, task in (
            ("open", small_task(8, LONG | {"enrolment.clients": 3})),
            ("training", small_task(8, LONG | {"enrolment.clients": 1})),
        )
    )
    for role in SERVERS:
        append_line(waiting.folder / f"{role.value}.toml", 'enrolment = "token"')
        book = ByToken(waiting.folder / "state" / role.value)
        for token in tokens.values():
            book.add(token_digest(token))
    for name, token in tokens.items():
        append_line(waiting.folder / f"{name}.toml", f'token = "{token}"')
    made = Clinic(folder, waiting, training)
    with waiting, training, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("home")))
        for deployment in (waiting, training):
            deployment.start_servers()
            deployment.start_client(deployment.clients[0])
        until(made.ready, lambda: waiting.log_tail("ward-1"), poll_s=0.2)
        yield made


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=lambda mistake: mistake.replace(" ", "-")
)
def test_each_mistake_is_said_as_the_document_has_it(
    mistake: str, clinic: Clinic
) -> None:
    status, _, wrong = clinic.tell(mistake)
    # One mistake, and what follows from it: not a screen of them.
    assert (status, len(wrong) in (1, 2)) == (1, True)
    assert all("Traceback" not in text and len(text) < 600 for text in wrong)
    text = DOCUMENT.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith(f"| {mistake} |"))
    if os.environ.get("PRECAD_WRITE_FIRST_MISTAKES"):
        # Both servers may say the same.
        shown = " <br> ".join(dict.fromkeys(wrong)).replace("|", "\\|")
        DOCUMENT.write_text(
            text.replace(row, f"| {mistake} | {shown} |"), encoding="utf-8"
        )
    else:
        assert [each for each in wrong if shape(each) not in shape(row)] == []


def shape(text: str) -> str:
    """Without numbers, which differ from run to run and from one version of torch to
    the next."""
    return re.sub(r"[0-9a-f]{8}…|[\d.:…]+", "#", text.replace("\\|", "|"))


def test_nothing_is_wrong_with_good_settings_and_the_sdk_finds_the_same(
    clinic: Clinic,
) -> None:
    status, about, found = clinic.tell("")
    assert (status, found) == (0, [])
    assert about >= {
        "task",
        "identity",
        "data",
        "model and loss",
        "limit",
        "state",
        "clock",
    }
    assert about >= {"server A", "server B"}
    settings = owner_settings.JoinSettings.load(clinic.open.folder / "ward-2.toml")
    assert settings.data_owner().check(WAIT_S).wrong == ()
    swap = {"server_a": settings.server_b, "server_b": settings.server_a}
    wrong = (
        settings.model_copy(update=swap)
        .data_owner(data=(X[:, :63], Y))
        .check(WAIT_S)
        .wrong
    )
    assert {each.about for each in wrong} == {"model and loss", "server A", "server B"}


def test_no_log_of_any_part_holds_a_token_or_a_key(clinic: Clinic) -> None:
    for folder in (clinic.open.folder, clinic.training.folder):
        secrets = [
            path.read_text("utf-8").splitlines()[1] for path in folder.rglob("key.pem")
        ]
        settings = "".join(path.read_text("utf-8") for path in folder.glob("*.toml"))
        secrets += re.findall(r'token = "(.+)"', settings)
        assert len(secrets) >= 7
        for path in folder.glob("logs/*"):
            text = path.read_text("utf-8")
            assert text
            assert not [each for each in secrets if each in text], path
        # What a token goes into is its owner's alone.
        assert {each.stat().st_mode & 0o77 for each in folder.glob("ward*.toml")} == {0}
