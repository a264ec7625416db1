"""The likely first mistakes of a data owner, each made in a copy of good settings.

`python -m tests.rig.first_mistakes > docs/first-mistakes.md` makes them all against servers that
run, and writes what `precad doctor` prints. The test of the same table checks every sentence;
seconds are of the machine that wrote the document.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.rig.waiting import until
from tests.rig.warm import SOURCES, forked, said

from precad.aggregator.enrol.tokens import TokenBook, new_token, token_digest
from precad.cli.local_deployment import LocalDeployment, free_addresses, task_to_toml, to_toml
from precad.client.check_before_enrolling import look_at_servers
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.task import Task

FEATURES, CLASSES, RECORDS = 64, 10, 60
WAIT_S = 30.0
SERVERS = (Role.SERVER_A, Role.SERVER_B)
NORMED = """from torch import nn


def Net():
    return nn.Sequential(nn.BatchNorm1d(64, affine=False), nn.Linear(64, 10))
"""
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ward:
    """A data owner's folder and settings, to be spoilt."""

    folder: Path
    settings: Settings
    addresses: dict[str, str]
    keys: Path
    """Folder of everybody's keys."""

    def records(self, x: Any = None, y: Any = None) -> None:
        """Other records."""
        good_x, good_y = good_records()
        path = self.folder / "records.npz"
        np.savez(path, x=good_x if x is None else x, y=good_y if y is None else y)
        self.settings["data"] = str(path)

    def own_keys(self) -> Path:
        """A copy of the keys."""
        shutil.copytree(self.settings["identity"], self.folder / "keys")
        self.settings["identity"] = str(self.folder / "keys")
        return self.folder / "keys"


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, how to do it, and what must be said."""

    name: str
    spoil: Callable[[Ward], object]
    said: str
    """A regular expression."""
    late: bool = False
    """Whether at servers that train already."""
    program: str = "precad"
    """Module that is the command."""
    small_disk: bool = False


def good_records() -> tuple[Any, Any]:
    """What anybody may hold."""
    rng = np.random.default_rng(1)
    x = rng.random((RECORDS, FEATURES)).astype(np.float32)
    return x, rng.integers(CLASSES, size=RECORDS)


def _wrong_port(ward: Ward) -> None:
    (ward.settings["server_a"],) = free_addresses(1)


def _swapped(ward: Ward) -> None:
    settings = ward.settings
    settings["server_a"], settings["server_b"] = settings["server_b"], settings["server_a"]


def _foreign_root(ward: Ward) -> None:
    create_local_keys(ward.folder / "others", [ward.settings["client"]])
    ward.settings["identity"] = str(ward.folder / "others" / ward.settings["client"])


def _anothers_certificate(ward: Ward) -> None:
    ward.settings["identity"] = str(ward.keys / "ward-3")


def _another_task(ward: Ward) -> None:
    task = Task.load(Path(ward.settings["task"])).model_copy(update={"projections": 60})
    (ward.folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    ward.settings["task"] = str(ward.folder / "task.toml")


def _nan(ward: Ward) -> None:
    x, _ = good_records()
    x[25, 3] = np.nan
    ward.records(x=x)


def _bad_cell(ward: Ward) -> None:
    x, y = good_records()
    names = [f"p{place}" for place in range(FEATURES)]
    rows = [
        [f"{value:.3f}" for value in row] + [str(label)] for row, label in zip(x, y, strict=True)
    ]
    rows[7][2] = "n/a"
    text = "\n".join(",".join(row) for row in [[*names, "digit"], *rows])
    (ward.folder / "ward.csv").write_text(text, encoding="utf-8")
    ward.settings.update(
        {
            "data": str(ward.folder / "ward.csv"),
            "columns": {"inputs": names, "target": "digit"},
        }
    )


def _batch_norm(ward: Ward) -> None:
    (ward.folder / "nets_with_norm.py").write_text(NORMED, encoding="utf-8")
    ward.settings["model"] = "nets_with_norm:Net"


def _unreadable_key(ward: Ward) -> None:
    path = ward.own_keys() / "key.pem"
    path.write_bytes(path.read_bytes()[:40])


def _taken_name(ward: Ward) -> None:
    ward.settings.update(client="ward-1", identity=str(ward.keys / "ward-1"))


def _wrong_token(ward: Ward) -> None:
    ward.settings["token"] = new_token()


def _used_token(ward: Ward) -> None:
    neighbour = tomllib.loads((ward.keys.parent / "ward-1.toml").read_text(encoding="utf-8"))
    ward.settings["token"] = neighbour["token"]


MISTAKES = (
    Mistake("wrong port", _wrong_port, r"server A at \S+ refuses connections: nothing listens"),
    Mistake("another authority's certificate", _foreign_root, "certificate of another authority"),
    Mistake(
        "another owner's certificate",
        _anothers_certificate,
        "is ward-3.client.precad's: mend the name",
    ),
    Mistake("swapped servers", _swapped, "server_a and server_b seem to be swapped"),
    Mistake("another task", _another_task, "projections is 60, not 40"),
    Mistake("NaN among the inputs", _nan, r"data, input\[3\] of record 25 = nan: must be finite"),
    Mistake(
        "a cell that is no number",
        _bad_cell,
        r"column p2, record 7 \(line 9\) = 'n/a': isn't a num",
    ),
    Mistake(
        "labels of the wrong type",
        lambda ward: ward.records(y=good_records()[1].astype(np.float32)),
        "data, targets = 'float32': this loss takes labels",
    ),
    Mistake(
        "a label out of range",
        lambda ward: ward.records(y=np.where(np.arange(RECORDS) == 4, 10, 0)),
        "target of record 4 = 10: the model has 10 classes",
    ),
    Mistake("batch norm", _batch_norm, "batch norm mixes records; use nn.GroupNorm"),
    Mistake(
        "records of the wrong shape",
        lambda ward: ward.records(x=good_records()[0][:, :63]),
        r"don't go together: a record's input is float32\[63\]",
    ),
    Mistake(
        "too small a limit",
        lambda ward: ward.settings.update(epsilon_limit=0.01),
        "epsilon_limit = 0.01: a single round of this task costs",
    ),
    Mistake(
        "a clock two hours behind",
        lambda ward: ward,
        "this machine's clock is (1:59:5|2:00:0). h behind the servers'",
        program="tests.rig.behind",
    ),
    Mistake("an unreadable key", _unreadable_key, r"key.pem'?.*(can't be read|no key|key)"),
    Mistake("a name that is taken", _taken_name, "another process takes part as client ward-1 now"),
    Mistake(
        "no enrolment token",
        lambda ward: ward.settings.pop("token"),
        r"client ward-2 brings no token; ask the operator for one and put token = \"…\"",
    ),
    Mistake(
        "half an enrolment token",
        lambda ward: ward.settings.update(token=ward.settings["token"][:26]),
        "a token has 52 characters of base32: copy the whole",
    ),
    Mistake(
        "a wrong enrolment token", _wrong_token, "knows no such token; ask the operator for another"
    ),
    Mistake(
        "another owner's enrolment token",
        _used_token,
        "this token is another client's; ask the operator for one",
    ),
    Mistake("a full disk", lambda ward: ward, "make room for 1 MB", small_disk=True),
    Mistake(
        "a late start", lambda ward: ward, "is over and client ward-2 isn't enrolled", late=True
    ),
)


@dataclass(frozen=True, slots=True)
class Told:
    """What the doctor said."""

    status: int
    findings: list[dict[str, str]]
    processor_s: float
    places: dict[str, str] = field(repr=False)
    """What stands for paths and ports of this run."""

    @property
    def wrong(self) -> list[str]:
        """What is to be mended, without what differs from run to run."""
        return [self._plain(each["said"]) for each in self.findings if each["kind"] == "bad"]

    def _plain(self, text: str) -> str:
        for found, shown in self.places.items():
            text = text.replace(found, shown)
        text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text)
        return re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1…", text)


class Clinic:
    """Servers that run, an owner that is there already, and settings to spoil.

    Args:
        folder: for all of it.
        warm: whether commands are forked; else they are started as people do it.
    """

    def __init__(self, folder: Path, *, warm: bool = True) -> None:
        self._folder = folder
        self._warm = warm
        names = [ClientId(f"ward-{number}") for number in (1, 2, 3)]
        data = dict.fromkeys(names, good_records())
        self._open = LocalDeployment(folder / "open", a_task(3), data, popen=forked)
        self._training = LocalDeployment(folder / "training", a_task(1), data, popen=forked)
        _ask_for_tokens(self._open)

    @contextmanager
    def running(self) -> Iterator["Clinic"]:
        """Both deployments, the first waiting for its owners, the second in its first rounds."""
        with self._open, self._training:
            for deployment in (self._open, self._training):
                deployment.start_servers()
                deployment.start_client(deployment.clients[0])
            until(self._ready, lambda: self._open.log_tail("ward-1"), poll_s=0.2)
            yield self

    def _ready(self) -> bool:
        """Whether ward-1 is there in the one, and enrolment is over in the other."""
        expected = (
            (self._open, "ward-1", "another process"),
            (self._training, "ward-2", "is over"),
        )
        for deployment, name, words in expected:
            deployment.check_alive()
            keys = Identity.load(deployment.folder / "keys" / name)
            addresses = {role: deployment.addresses[role.value] for role in SERVERS}
            found = look_at_servers(None, ClientId(name), keys, addresses)()
            if not any(words in each.text for each in found):
                return False
        return True

    @property
    def good_settings(self) -> Path:
        """Of an owner who hasn't come yet, with nothing wrong in them."""
        return self._open.folder / "ward-2.toml"

    def tell(self, mistake: Mistake) -> Told:
        """Make the mistake, and ask."""
        deployment = self._training if mistake.late else self._open
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        good = tomllib.loads((deployment.folder / "ward-2.toml").read_text(encoding="utf-8"))
        for name in ("task", "identity", "data"):
            good[name] = str(deployment.folder / good[name])
        good |= {"state": str(folder / "state"), "epsilon_limit": 4.0}
        ward = Ward(folder, good, dict(deployment.addresses), deployment.folder / "keys")
        mistake.spoil(ward)
        (folder / "ward.toml").write_text(to_toml(ward.settings), encoding="utf-8")
        return self._told(deployment, folder / "ward.toml", mistake)

    def _told(self, deployment: LocalDeployment, config: Path, mistake: Mistake) -> Told:
        # Machines of tests are busy.
        command = ["doctor", "--json", "--wait", str(WAIT_S), "--config", str(config)]
        used = _used_s()
        if self._warm and not mistake.small_disk:
            status, printed = said(config.parent, *command, program=mistake.program)
        else:
            status, printed = _started(config, mistake, command)
        found = [line for line in printed.splitlines() if line.startswith('{"')]
        if not found:
            raise RuntimeError(printed)
        places = {str(config.parent): "OWNER", str(deployment.folder): "SHARED"}
        return Told(status, json.loads(found[-1])["findings"], _used_s() - used, places)


def _started(config: Path, mistake: Mistake, arguments: list[str]) -> tuple[int, str]:
    """The command's status and what it printed, in a process as people start it."""
    command, limit = [sys.executable, "-m", mistake.program, *arguments], None
    if mistake.small_disk:
        if can_mount():
            (config.parent / "state").mkdir()
            command = [*_ON_A_SMALL_DISK, str(config.parent / "state"), *command]
        else:
            limit = _small_files
    ended = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=limit,
        env=os.environ | {"PYTHONPATH": SOURCES},
    )
    return ended.returncode, ended.stdout + ended.stderr


def _ask_for_tokens(deployment: LocalDeployment) -> None:
    """As operators do it: servers that ask, and a token for each owner in its settings."""
    tokens = {client.name: new_token() for client in deployment.clients}
    for role in SERVERS:
        _append(deployment.folder / f"{role.value}.toml", 'enrolment = "token"')
        book = TokenBook(deployment.folder / "state" / role.value)
        for token in tokens.values():
            book.add(token_digest(token))
    for name, token in tokens.items():
        _append(deployment.folder / f"{name}.toml", f'token = "{token}"')


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _used_s() -> float:
    """Processor seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_ON_A_SMALL_DISK = (
    *("unshare", "-rm", "sh", "-c"),
    'mount -t tmpfs -o size=64k none "$0" && exec "$@"',
)
"""A command in a name space of its own, where the first argument is a disk of 64 KiB."""


@cache
def can_mount() -> bool:
    """Whether this system lets anybody have a small disk."""
    if shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            [*_ON_A_SMALL_DISK, folder, "true"], check=False, capture_output=True
        )
    return tried.returncode == 0


def _small_files() -> None:
    """No file longer than this: what a full disk, or a quota, does to a program."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


def a_task(clients: int) -> Task:
    """A small task that goes on for longer than all this takes."""
    return Task.parse(
        {
            "name": "mistakes",
            "model": {
                "architecture": "logistic",
                "parameters": [
                    {"name": "1.weight", "shape": [CLASSES, FEATURES]},
                    {"name": "1.bias", "shape": [CLASSES]},
                ],
            },
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 10.0,
                "noise_multiplier": 8.0,
                "record_rate": 0.1,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 1.0, "rounds": 400},
            "enrolment": {"clients": clients, "max_expected_records": 100.0},
            "deadlines": {"enrol": 3600.0, "work": 2.0, "outage": 3600.0},
        }
    )


HEAD = """# First mistakes

What `precad doctor --config owner.toml` says when a data owner makes one of these mistakes, before
it enrols. Written by `python -m tests.rig.first_mistakes` against servers that run on the same
machine ({machine}); `tests/integration/deployment/test_first_mistakes.py` makes them all and checks
the sentences. Seconds are of that machine's processor, for the whole command; most go into loading
torch. `OWNER` and `SHARED` stand for folders, `HOST:PORT` for addresses.

| mistake | what is printed | processor s |
| --- | --- | --- |
"""


def document() -> str:
    """The document, as Markdown."""
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Clinic(Path(folder), warm=False).running() as clinic,
    ):
        for mistake in MISTAKES:
            told = clinic.tell(mistake)
            # Both servers may say the same.
            said = " <br> ".join(dict.fromkeys(told.wrong)).replace("|", "\\|")
            rows.append(f"| {mistake.name} | {said} | {told.processor_s:.0f} |\n")
    return HEAD.format(machine=f"{os.cpu_count()} cores") + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(document())
