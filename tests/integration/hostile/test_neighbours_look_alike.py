"""Two data sets that differ in one record, a poisonous one: what leaves the machine is alike.

So it is with held-out records and without, and of the doctor's look before enrolment. The owners
are `precad join` and `precad doctor` over TLS, against servers of the test, which see every
message. What a message holds is a random-looking share; everything else about it is compared here.
Time is simulated: a poisonous record's work takes longer, and no upload shows it. That processes
of their own end and say the same is shown once.
"""

import csv
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.clock import LeapingClock
from tests.rig.commands import precad
from tests.rig.fake_server import FakeServer, started
from tests.rig.keys import identity
from tests.rig.tasks import logistic
from tests.rig.warm import forked

from precad.cli.local_deployment import environment_of_parts, task_to_toml, to_toml
from precad.client import data_owner
from precad.client.data_owner import DataOwner
from precad.client.participant import RoundView, take_part
from precad.client.records.read_records import write_client_data
from precad.common import process as this_process
from precad.common.clock import CLOCK, Clock
from precad.common.identifiers import ClientId, Role
from precad.common.identity.party_certificate import Principal
from precad.common.ring import RingVector
from precad.common.task import Task

WARD = ClientId("ward-1")
FEATURES, RECORDS, ROUNDS = 3, 60, 3
HELD_OUT = 3000
WORK_S = 2.0
TOOK_S = (0.25, 1.5)
"""What computing an update takes of simulated time, with and without a poisonous record."""
D = 2 * FEATURES + 2
POISON = 3e38
"""Finite, and so is its loss at the task's first model; at any other its gradient is NaN."""
MakeTask = Callable[..., Task]


@dataclass(frozen=True, slots=True)
class Seen:
    status: int
    log: list[str]
    calls: dict[str, list[Any]]
    came_after: list[float]
    files: dict[str, int]
    tried: bool
    """Whether the history has a loss on held-out records."""


def task_of(make_task: MakeTask, **changes: Any) -> Task:
    usual = {"privacy.record_rate": 1.0, "deadlines.work": WORK_S}
    return make_task(D, logistic(FEATURES) | usual | changes)


def servers_of(task: Task, *, selected: bool = True, clock: Clock = CLOCK) -> list[FakeServer]:
    theta = np.linspace(1.0, 2.0, D)  # the poison's outputs are infinite
    shared: dict[str, Any] = {"versions": {}, "opened": {}, "clock": clock}
    a, b = (
        FakeServer(role, task, theta, rounds=ROUNDS, covers=not selected, **shared)
        for role in (Role.SERVER_A, Role.SERVER_B)
    )
    a.paced = a.says_over = True
    return [a, b]


def settings(folder: Path, task: Task, servers: list[FakeServer], **more: Any) -> Path:
    keys = folder / "keys"
    keys.mkdir(parents=True, exist_ok=True)
    mine = identity(Principal.client(WARD.name))
    for name, data in (("ca", mine.ca), ("cert", mine.cert), ("key", mine.key.reveal())):
        (keys / f"{name}.pem").write_bytes(data)
        (keys / f"{name}.pem").chmod(0o600)
    (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    values = {
        "client": WARD.name,
        "task": "task.toml",
        "identity": "keys",
        "server_a": servers[0].address,
        "server_b": servers[1].address,
        "state": "state",
        **more,
    }
    (folder / "owner.toml").write_text(to_toml(values), encoding="utf-8")
    return folder / "owner.toml"


class Lines(logging.Handler):
    """What `precad join` would write, but for the time of day."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    @contextmanager
    def kept(self) -> Iterator[None]:
        root = logging.getLogger()
        before = root.level
        root.addHandler(self)
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(self)
            root.setLevel(before)


def joined(
    folder: Path, task: Task, *, selected: bool = True, took_s: float = 0.0, **data: Any
) -> Seen:
    clock, lines = LeapingClock(), Lines()
    compute = DataOwner.update

    def update(self: DataOwner, view: RoundView) -> RingVector:
        clock.sleep(took_s)
        return compute(self, view)

    servers = servers_of(task, selected=selected, clock=clock)
    with started(*servers), pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_owner, "take_part", partial(take_part, clock=clock))
        patch.setattr(DataOwner, "update", update)
        patch.setattr(this_process, "_print_no_stops", lambda: None)
        config = settings(folder, task, servers, record_rate=1.0, **data)
        with lines.kept():
            ended = precad("join", "--config", config)
    state = folder / "state"
    rows = csv.DictReader((state / "history.csv").read_text("utf-8").splitlines())
    return Seen(
        ended.exit_code,
        [*lines.lines, ended.output],
        {fake.role.value: fake.calls for fake in servers},
        [after for fake in servers for after in fake.came_after],
        {path.name: path.stat().st_size for path in state.iterdir() if path.suffix == ".log"},
        any(row["validation_loss"] for row in rows),
    )


def records() -> tuple[Any, Any, Any]:
    """Inputs, the same with a poisonous record, and labels."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    bad = x.copy()
    bad[7] = POISON
    return x, bad, (x.sum(axis=1) > 0).astype(np.int64)


RECIPE = {
    "target": {"name": "y", "kind": "categorical", "levels": ["no", "yes"]},
    "columns": [
        {"name": "a", "fill": 0.5},
        {"name": "unit", "kind": "categorical", "levels": ["icu"], "fill_level": "icu"},
    ],
}
"""Of a table whose rows have the arrays' number of inputs."""


def tables(folder: Path) -> list[str]:
    """A clean one, and one where a record's value is poison and its level is nowhere listed."""
    x, _, y = records()
    rows = [f"{row[0]:.4f},icu,{'yes' if label else 'no'}" for row, label in zip(x, y, strict=True)]
    bad = [f"{POISON},elsewhere,no" if place == 7 else row for place, row in enumerate(rows)]
    for name, each in (("clean", rows), ("bad", bad)):
        (folder / f"{name}.csv").write_text("\n".join(["a,unit,y", *each]), encoding="utf-8")
    return [str(folder / "clean.csv"), str(folder / "bad.csv")]


def pair(kind: str, folder: Path, make_task: MakeTask) -> tuple[Seen, Seen]:
    x, bad, y = records()
    if kind == "held out":
        many = np.repeat(x, HELD_OUT // RECORDS, axis=0)
        many[7] = POISON
        labels = np.repeat(y, HELD_OUT // RECORDS)
        mine: dict[str, Any] = {"data": str(write_client_data(folder, WARD, x, y))}
        beside: dict[str, Any] = {
            "held_out": str(write_client_data(folder, ClientId("held-out"), many, labels))
        }
        task = task_of(make_task)
        return joined(folder / "a", task, **mine), joined(folder / "b", task, **mine, **beside)
    if kind == "from a table":
        task, data = task_of(make_task, data=RECIPE), tables(folder)
    else:
        task = task_of(make_task, **{"privacy.cover_uploads": kind != "without cover"})
        of_a, of_b = ClientId("clean"), ClientId("bad")
        data = [str(write_client_data(folder, *each)) for each in ((of_a, x, y), (of_b, bad, y))]
    a, b = (
        joined(folder / name, task, selected=kind != "undrawn", took_s=took_s, data=path)
        for name, took_s, path in zip("ab", TOOK_S, data, strict=True)
    )
    return a, b


@pytest.mark.parametrize(
    "kind", ["without cover", "drawn under cover", "undrawn", "from a table", "held out"]
)
def test_one_record_changes_nothing_that_leaves(
    kind: str, tmp_path: Path, make_task: MakeTask
) -> None:
    """Not the messages, their order and sizes, when uploads begin, the log, or how it ends."""
    one, other = pair(kind, tmp_path, make_task)
    assert one.status == other.status == 0, other.log
    assert (one.calls, one.log) == (other.calls, other.log)
    for seen in (one, other):
        assert seen.came_after == pytest.approx([WORK_S] * 2 * ROUNDS)
    # What was compared isn't empty.
    asked = {rpc for calls in one.calls.values() for rpc, _ in calls}
    assert asked >= {"Describe", "Enrol", "Watch", "FetchModel", "Opening", "Statement", "Submit"}
    for calls in one.calls.values():
        assert sum(rpc == "Submit" for rpc, _ in calls) == ROUNDS
    assert any("final model" in line for line in one.log)
    assert any(f"round {ROUNDS} of 10: counted" in line for line in one.log)
    assert not any("WARNING" in line or "ERROR" in line for line in one.log)
    assert (one.tried, other.tried) == (False, kind == "held out")
    # The private log alone tells the two apart; otherwise the poison would have been none.
    told = one.files.pop("failed-records.log", 0) != other.files.pop("failed-records.log", 0)
    assert told is (kind not in ("undrawn", "held out"))
    assert one.files == other.files


def process(folder: Path, task: Task, data: str) -> tuple[int, list[str], list[Any]]:
    servers = servers_of(task)
    with started(*servers):
        config = settings(folder, task, servers, record_rate=1.0, data=data)
        with (folder / "log").open("wb") as log:
            ended = forked(
                [sys.executable, "-m", "precad", "join", "--config", str(config)],
                env=environment_of_parts(),
                stdout=log,
                stderr=subprocess.STDOUT,
            ).wait(120)
    lines = (folder / "log").read_text("utf-8").splitlines()
    # Without the time of day, which no two runs share.
    said = [re.sub(r"^[\d-]+ [\d:,]+ ", "", line) for line in lines]
    return ended, said, [server.calls for server in servers]


def test_two_processes_end_alike_and_write_the_same(tmp_path: Path, make_task: MakeTask) -> None:
    task = task_of(make_task, data=RECIPE, **{"deadlines.work": 0.1})
    clean, poisoned = (
        process(tmp_path / name, task, data)
        for name, data in zip("ab", tables(tmp_path), strict=True)
    )
    assert clean[0] == 0
    assert any("final model" in line for line in clean[1])
    assert clean == poisoned


GOOD = "a,y\n1,0\n2,1\n"
BAD = {
    "a cell that is no number": GOOD.replace("2", "two"),
    "a missing value": GOOD.replace("2", ""),
    "a label that is no class": GOOD.replace("2,1", "2,7"),
    "no records": "a,y\n",
    "no file": None,
}


def looked_at(folder: Path, task: Task, text: str | None) -> tuple[int, list[list[Any]]]:
    folder.mkdir()
    if text is not None:
        (folder / "ward.csv").write_text(text, encoding="utf-8")
    servers = servers_of(task)
    with started(*servers):
        columns = {"inputs": ["a"], "target": "y"}
        config = settings(folder, task, servers, data="ward.csv", columns=columns)
        ended = precad("doctor", "--config", config)
    assert ended.output
    assert not (folder / "state").exists()
    return ended.exit_code, [server.calls for server in servers]


def test_bad_records_show_in_nothing_that_the_doctor_asks(
    tmp_path: Path, make_task: MakeTask
) -> None:
    task = make_task(4, logistic(1))
    status, calls = looked_at(tmp_path / "good", task, GOOD)
    assert status == 0
    assert [[rpc for rpc, _ in seen] for seen in calls] == [["Describe"], ["Describe"]]
    for kind, text in BAD.items():
        assert looked_at(tmp_path / kind, task, text) == (1, calls), kind
