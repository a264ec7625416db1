"""What an owner gets wrong first is found before it enrols, in a sentence each, for real.

Each mistake is made in a copy of good settings, at servers that run; docs/first-mistakes.md has
what `precad doctor` then says, and can't drift. ``PRECAD_WRITE_FIRST_MISTAKES=1`` writes it anew.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.deployment.conftest import TaskMaker
from tests.rig.tasks import logistic
from tests.rig.waiting import until
from tests.rig.warm import SOURCES, forked, said

from precad.aggregator.enrol.admission import ByToken, new_token, token_digest
from precad.cli.local_deployment import LocalDeployment, free_addresses, task_to_toml, to_toml
from precad.client.allowed_code import _digest, allowed_file
from precad.client.check_before_enrolling import look_at_servers
from precad.client.owner_settings import JoinSettings
from precad.common.files import append_line, make_folder
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.task import Task

DOCUMENT = Path(__file__).parents[3] / "docs" / "first-mistakes.md"
FEATURES, CLASSES, RECORDS = 64, 10, 60
WAIT_S = 30.0
SERVERS = (Role.SERVER_A, Role.SERVER_B)
NORMED = """from torch import nn


def Net():
    return nn.Sequential(nn.BatchNorm1d(64, affine=False), nn.Linear(64, 10))
"""


@dataclass(frozen=True, slots=True)
class Ward:
    """A data owner's folder and settings, to be spoilt."""

    folder: Path
    settings: dict[str, Any]
    keys: Path
    """Folder of everybody's keys."""

    def records(self, x: Any = None, y: Any = None) -> None:
        good_x, good_y = good_records()
        path = self.folder / "records.npz"
        np.savez(path, x=good_x if x is None else x, y=good_y if y is None else y)
        self.settings["data"] = str(path)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, encoding="utf-8")
        return str(self.folder / name)


def good_records() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x = rng.random((RECORDS, FEATURES)).astype(np.float32)
    return x, rng.integers(CLASSES, size=RECORDS)


def _swapped(ward: Ward) -> None:
    settings = ward.settings
    settings["server_a"], settings["server_b"] = settings["server_b"], settings["server_a"]


def _foreign_root(ward: Ward) -> None:
    create_local_keys(ward.folder / "others", [ward.settings["client"]])
    ward.settings["identity"] = str(ward.folder / "others" / ward.settings["client"])


def _another_task(ward: Ward) -> None:
    task = Task.load(Path(ward.settings["task"])).model_copy(update={"projections": 60})
    ward.settings["task"] = ward.write("task.toml", task_to_toml(task))


def _nan(ward: Ward) -> None:
    x, _ = good_records()
    x[25, 3] = np.nan
    ward.records(x=x)


def _bad_cell(ward: Ward) -> None:
    x, y = good_records()
    names = [f"p{place}" for place in range(FEATURES)]
    rows = [[f"{v:.3f}" for v in row] + [str(label)] for row, label in zip(x, y, strict=True)]
    rows[7][2] = "n/a"
    text = "\n".join(",".join(row) for row in [[*names, "digit"], *rows])
    ward.settings["data"] = ward.write("ward.csv", text)
    ward.settings["columns"] = {"inputs": names, "target": "digit"}


def _batch_norm(ward: Ward) -> None:
    ward.write("nets_with_norm.py", NORMED)
    # Its owner has looked at it, and said so.
    make_folder(allowed_file().parent)
    append_line(allowed_file(), _digest(ward.folder)[1])
    ward.settings["model"] = "nets_with_norm:Net"


def _unreadable_key(ward: Ward) -> None:
    shutil.copytree(ward.settings["identity"], ward.folder / "keys")
    ward.settings["identity"] = str(ward.folder / "keys")
    path = ward.folder / "keys" / "key.pem"
    path.write_bytes(path.read_bytes()[:40])


def _used_token(ward: Ward) -> None:
    neighbour = tomllib.loads((ward.keys.parent / "ward-1.toml").read_text(encoding="utf-8"))
    ward.settings["token"] = neighbour["token"]


def _another(**values: Callable[[Ward], Any]) -> Callable[[Ward], None]:
    return lambda ward: ward.settings.update({name: of(ward) for name, of in values.items()})


MISTAKES: dict[str, Callable[[Ward], object]] = {
    "wrong port": _another(server_a=lambda _: free_addresses(1)[0]),
    "no such port": _another(server_a=lambda _: "127.0.0.1:99999"),
    "another authority's certificate": _foreign_root,
    "another owner's certificate": _another(identity=lambda ward: str(ward.keys / "ward-3")),
    "swapped servers": _swapped,
    "another task": _another_task,
    "NaN among the inputs": _nan,
    "a cell that is no number": _bad_cell,
    "labels of the wrong type": lambda w: w.records(y=good_records()[1].astype(np.float32)),
    "a label out of range": lambda w: w.records(y=np.where(np.arange(RECORDS) == 4, 10, 0)),
    "batch norm": _batch_norm,
    "records of the wrong shape": lambda ward: ward.records(x=good_records()[0][:, :63]),
    "too small a limit": _another(epsilon_limit=lambda _: 0.01),
    "a clock two hours behind": lambda _: None,
    "an unreadable key": _unreadable_key,
    "a name that is taken": _another(
        client=lambda _: "ward-1", identity=lambda ward: str(ward.keys / "ward-1")
    ),
    "no enrolment token": lambda ward: ward.settings.pop("token"),
    "half an enrolment token": _another(token=lambda ward: ward.settings["token"][:26]),
    "a wrong enrolment token": _another(token=lambda _: new_token()),
    "another owner's enrolment token": _used_token,
    "a full disk": lambda _: None,
    "a late start": lambda _: None,
}
LATE, FULL_DISK = "a late start", "a full disk"
PROGRAMS = {"a clock two hours behind": "tests.rig.behind"}


class Clinic:
    """Servers that wait for owners, and ask for tokens, and others that train already."""

    def __init__(self, folder: Path, make_task: TaskMaker) -> None:
        self._folder = folder
        names = [ClientId(f"ward-{number}") for number in (1, 2, 3)]
        data = dict.fromkeys(names, good_records())
        tasks = (make_task(8, LONG | {"enrolment.clients": clients}) for clients in (3, 1))
        self.open, self.training = (
            LocalDeployment(folder / name, task, data, popen=forked)
            for name, task in zip(("open", "training"), tasks, strict=True)
        )
        tokens = {name: new_token() for name in names}
        for role in SERVERS:
            append_line(self.open.folder / f"{role.value}.toml", 'enrolment = "token"')
            book = ByToken(self.open.folder / "state" / role.value)
            for token in tokens.values():
                book.add(token_digest(token))
        for name, token in tokens.items():
            append_line(self.open.folder / f"{name}.toml", f'token = "{token}"')

    def ready(self) -> bool:
        """Whether ward-1 is there in the one, and enrolment is over in the other."""
        expected = ((self.open, "ward-1", "another process"), (self.training, "ward-2", "is over"))
        for deployment, name, words in expected:
            deployment.check_alive()
            keys = Identity.load(deployment.folder / "keys" / name)
            addresses = {role: deployment.addresses[role.value] for role in SERVERS}
            found = look_at_servers(None, ClientId(name), keys, addresses)()
            if not any(words in each.text for each in found):
                return False
        return True

    def tell(self, mistake: str) -> tuple[int, list[dict[str, str]], list[str]]:
        """Status, findings, and what is to be mended, without what differs from run to run."""
        deployment = self.training if mistake == LATE else self.open
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        good = tomllib.loads((deployment.folder / "ward-2.toml").read_text(encoding="utf-8"))
        for name in ("task", "identity", "data"):
            good[name] = str(deployment.folder / good[name])
        good |= {"state": str(folder / "state"), "epsilon_limit": 4.0}
        ward = Ward(folder, good, deployment.folder / "keys")
        if mistake in MISTAKES:
            MISTAKES[mistake](ward)
        config = ward.write("ward.toml", to_toml(ward.settings))
        # Machines of tests are busy.
        command = ("doctor", "--json", "--wait", WAIT_S, "--config", config)
        if mistake == FULL_DISK:
            status, printed = on_a_small_disk(folder, *map(str, command))
        else:
            status, printed = said(folder, *command, program=PROGRAMS.get(mistake, "precad"))
        found = [line for line in printed.splitlines() if line.startswith('{"')]
        assert found, printed
        findings = json.loads(found[-1])["findings"]
        bad = (each["said"] for each in findings if each["kind"] == "bad")
        places = {str(folder): "OWNER", str(deployment.folder): "SHARED"}
        return status, findings, [plain(text, places) for text in bad]


def plain(text: str, places: dict[str, str]) -> str:
    for found, shown in places.items():
        text = text.replace(found, shown)
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text)
    return re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1…", text)


LONG = {
    "name": "mistakes",
    **logistic(FEATURES, CLASSES),
    "privacy.client_clip": 10.0,
    "privacy.noise_multiplier": 8.0,
    "privacy.record_rate": 0.1,
    "training.rounds": 400,
    "deadlines": {"enrol": 3600.0, "work": 2.0, "outage": 3600.0},
}
"""Of a small task that goes on for longer than all this takes."""


MOUNTED = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=64k none "$0" && exec "$@"')
"""A command in a name space of its own, where the first argument is a disk of 64 KiB."""


@cache
def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([*MOUNTED, folder, "true"], check=False).returncode == 0


def on_a_small_disk(folder: Path, *arguments: str) -> tuple[int, str]:
    """The command's status and what it printed; else no file may grow, which is what it sees."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))

    (folder / "state").mkdir()
    before = [*MOUNTED, str(folder / "state")] if can_mount() else []
    ended = subprocess.run(
        [*before, sys.executable, "-m", "precad", *arguments],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=None if can_mount() else small_files,
        env=os.environ | {"PYTHONPATH": SOURCES},
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory, make_task: TaskMaker) -> Iterator[Clinic]:
    made = Clinic(tmp_path_factory.mktemp("clinic"), make_task)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("home")))
        for deployment in (made.open, made.training):
            stack.enter_context(deployment)
            deployment.start_servers()
            deployment.start_client(deployment.clients[0])
        until(made.ready, lambda: made.open.log_tail("ward-1"), poll_s=0.2)
        yield made


def test_nothing_is_wrong_with_good_settings(clinic: Clinic) -> None:
    status, findings, wrong = clinic.tell("none")
    assert (status, wrong) == (0, [])
    about = {each["about"] for each in findings}
    assert about >= {"task", "identity", "data", "model and loss", "limit", "state", "clock"}
    assert about >= {"server A", "server B"}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.replace(" ", "-"))
def test_each_mistake_is_said_as_the_document_has_it(mistake: str, clinic: Clinic) -> None:
    status, _, wrong = clinic.tell(mistake)
    assert status == 1
    # One mistake, and what follows from it: not a screen of them.
    assert 1 <= len(wrong) <= 2
    assert all("Traceback" not in text and len(text) < 600 for text in wrong)
    text = DOCUMENT.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith(f"| {mistake} |"))
    if os.environ.get("PRECAD_WRITE_FIRST_MISTAKES"):
        # Both servers may say the same.
        shown = " <br> ".join(dict.fromkeys(wrong)).replace("|", "\\|")
        DOCUMENT.write_text(text.replace(row, f"| {mistake} | {shown} |"), encoding="utf-8")
    elif mistake != FULL_DISK or can_mount():
        assert [each for each in wrong if shape(each) not in shape(row)] == []


def shape(text: str) -> str:
    """Without numbers, which differ from run to run and from one version of torch to the next."""
    return re.sub(r"[0-9a-f]{8}…|[\d.:…]+", "#", text.replace("\\|", "|"))


def test_the_sdk_finds_what_the_doctor_finds(clinic: Clinic) -> None:
    settings = JoinSettings.load(clinic.open.folder / "ward-2.toml")
    assert settings.data_owner().check(WAIT_S).wrong == ()
    swapped = settings.model_copy(
        update={"server_a": settings.server_b, "server_b": settings.server_a}
    )
    x, y = good_records()
    wrong = swapped.data_owner((x[:, :63], y)).check(WAIT_S).wrong
    assert {each.about for each in wrong} == {"model and loss", "server A", "server B"}


def test_no_log_of_any_part_holds_a_token_or_a_key(clinic: Clinic) -> None:
    for deployment in (clinic.open, clinic.training):
        secrets = [
            path.read_text("utf-8").splitlines()[1] for path in deployment.folder.rglob("key.pem")
        ]
        settings = "".join(path.read_text("utf-8") for path in deployment.folder.glob("*.toml"))
        secrets += re.findall(r'token = "(.+)"', settings)
        assert len(secrets) >= 7
        for path in deployment.folder.glob("logs/*"):
            text = path.read_text("utf-8")
            assert text
            assert not [each for each in secrets if each in text], path
        # What a token goes into is its owner's alone.
        assert {each.stat().st_mode & 0o77 for each in deployment.folder.glob("ward*.toml")} == {0}
