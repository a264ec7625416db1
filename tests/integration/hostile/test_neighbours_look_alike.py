"""Two data sets that differ in one record, a poisonous one: what leaves the machine is
alike.

So it is with held-out records and without, and of the doctor's look before enrolment.
The owners are `precad join` and `precad doctor` over TLS, against servers of the test,
which see every message. What a message holds is a random-looking share; everything else
about it is compared here. Time is simulated: a poisonous record's work takes longer,
and no upload shows it. That processes of their own end and say the same is shown once.
"""

import csv
import logging
import re
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from examples.demo.local_processes import write_client_data
from numpy.typing import NDArray
from tests.conftest import small_task
from tests.rig import commands, tasks, warm
from tests.rig.clock import LeapingClock
from tests.rig.fake_server import FakeServer, started
from tests.rig.keys import identity
from tests.rig.task_files import task_to_toml

from precad.cli.local_deployment import to_toml
from precad.client import data_owner
from precad.client.data_owner import DataOwner
from precad.client.participant import Participant
from precad.client.participation import RoundView
from precad.common import identifiers, ring
from precad.common import process as this_process
from precad.common.clock import CLOCK, Clock
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task

Log = pytest.LogCaptureFixture
FEATURES, RECORDS, ROUNDS = 3, 60, 3
HELD_OUT = 3000
WORK_S = 2.0
TOOK_S = (0.25, 1.5)  # Simulated, for an update with and without a poisonous record
D = 2 * FEATURES + 2
POISON = 3e38
"""Its loss is finite at the task's first model; at any other its gradient is NaN."""


def task_of(**changes: object) -> Task:
    usual = {"privacy.record_rate": 1.0, "deadlines.work": WORK_S}
    return small_task(D, tasks.logistic(FEATURES) | usual | changes)


def servers_of(
    task: Task, *, selected: bool = True, clock: Clock = CLOCK
) -> list[FakeServer]:
    theta = np.linspace(1.0, 2.0, D)  # the poison's outputs are infinite
    versions, opened = dict[int, int](), dict[int, float]()
    a, b = (
        FakeServer(
            role,
            task,
            theta,
            rounds=ROUNDS,
            covers=not selected,
            versions=versions,
            opened=opened,
            clock=clock,
        )
        for role in (identifiers.Role.SERVER_A, identifiers.Role.SERVER_B)
    )
    a.paced = a.says_over = True
    return [a, b]


def settings(
    folder: Path, task: Task, servers: list[FakeServer], **more: object
) -> Path:
    keys = folder / "keys"
    keys.mkdir(parents=True)
    mine = identity(Principal.client("ward-1"))
    for name, data in (
        ("ca", mine.ca),
        ("cert", mine.cert),
        ("key", mine.key.reveal()),
    ):
        (keys / f"{name}.pem").write_bytes(data)
        (keys / f"{name}.pem").chmod(0o600)
    (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    values = {
        "client": "ward-1",
        "task": "task.toml",
        "identity": "keys",
        "state": "state",
        **more,
    }
    values |= {fake.role.value.replace("-", "_"): fake.address for fake in servers}
    (folder / "owner.toml").write_text(to_toml(values), encoding="utf-8")
    return folder / "owner.toml"


Calls = list[tuple[str, tuple[int, ...]]]  # With sizes


SUBMISSION = re.compile(r"(?<=submission )[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Seen:
    status: int
    log: list[str]
    calls: dict[str, Calls]
    came_after: list[float]
    files: dict[str, int]
    tried: bool


def joined(
    at: Path, caplog: Log, task: Task, took_s: float, *, selected: bool, **data: str
) -> Seen:
    clock, compute = LeapingClock(), DataOwner.update

    def update(self: DataOwner, view: RoundView) -> ring.RingVector:
        clock.sleep(took_s)
        return compute(self, view)

    servers = servers_of(task, selected=selected, clock=clock)
    with (
        started(*servers),
        pytest.MonkeyPatch.context() as patch,
        caplog.at_level(logging.INFO),
    ):
        patch.setattr(data_owner, "Participant", partial(Participant, clock=clock))
        patch.setattr(DataOwner, "update", update)
        patch.setattr(this_process, "_print_no_cancellations", lambda: None)
        config = settings(at, task, servers, record_rate=1.0, **data)
        caplog.clear()
        ended = commands.precad("join", "--config", config)
    state = at / "state"
    rows = csv.DictReader((state / "history.csv").read_text("utf-8").splitlines())
    return Seen(
        status=ended.exit_code,
        log=[
            # A submission's id is a hash of its own randomness.
            *(
                f"{each.levelname} {SUBMISSION.sub('', each.getMessage())}"
                for each in caplog.records
            ),
            SUBMISSION.sub("", ended.output),
        ],
        calls={fake.role.value: fake.calls for fake in servers},
        came_after=[after for fake in servers for after in fake.came_after],
        files={path.name: path.stat().st_size for path in state.glob("*.log")},
        tried=any(row["validation_loss"] for row in rows),  # On held-out records
    )


def records() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
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
}  # Of a table whose rows have the arrays' number of inputs


def tables(folder: Path) -> list[str]:
    """A clean one, and one where a record's value is poison and its level is nowhere
    listed."""
    x, _, y = records()
    rows = [
        f"{row[0]:.4f},icu,{'yes' if label else 'no'}"
        for row, label in zip(x, y, strict=True)
    ]
    bad = [
        f"{POISON},elsewhere,no" if place == 7 else row
        for place, row in enumerate(rows)
    ]
    for name, each in (("clean", rows), ("bad", bad)):
        (folder / f"{name}.csv").write_text(
            "\n".join(["a,unit,y", *each]), encoding="utf-8"
        )
    return [str(folder / "clean.csv"), str(folder / "bad.csv")]


def pair(kind: str, folder: Path, caplog: Log) -> list[Seen]:
    def written(name: str, x: NDArray[np.float32], y: NDArray[np.int64]) -> str:
        return str(write_client_data(folder, identifiers.ClientId(name), x, y))

    (x, bad, y), covered = records(), kind in ("drawn under cover", "undrawn")
    task, took_s = task_of(**{"privacy.cover_uploads": covered}), TOOK_S
    data, more = (
        [written("clean", x, y), written("bad", bad, y)],
        [dict[str, str](), {}],
    )
    if kind == "held out":
        many = np.repeat(x, HELD_OUT // RECORDS, axis=0)
        many[7] = POISON
        held_out = written("held-out", many, np.repeat(y, HELD_OUT // RECORDS))
        data, more, took_s = [data[0]] * 2, [{}, {"held_out": held_out}], (0.0, 0.0)
    if kind == "from a table":
        task, data = task_of(data=RECIPE), tables(folder)
    drawn, each = kind != "undrawn", zip("ab", data, took_s, more, strict=True)
    return [
        joined(folder / name, caplog, task, s, selected=drawn, data=d, **m)
        for name, d, s, m in each
    ]


@pytest.mark.parametrize(
    "kind",
    ["without cover", "drawn under cover", "undrawn", "from a table", "held out"],
)
def test_one_record_changes_nothing_that_leaves(
    kind: str, tmp_path: Path, caplog: Log
) -> None:
    """Not the messages, their order and sizes, when uploads begin, the log, or how it
    ends."""
    one, other = pair(kind, tmp_path, caplog)
    assert one.status == other.status == 0, other.log
    assert (one.calls, one.log) == (other.calls, other.log)
    for seen in (one, other):
        assert seen.came_after == pytest.approx([WORK_S] * 2 * ROUNDS)
    # What was compared isn't empty.
    asked = [[rpc for rpc, _ in calls] for calls in one.calls.values()]
    needed = {
        "Describe",
        "Enrol",
        "Watch",
        "FetchModel",
        "Opening",
        "Statement",
        "Submit",
    }
    assert needed <= {rpc for calls in asked for rpc in calls}
    assert [calls.count("Submit") for calls in asked] == [ROUNDS] * 2
    log = "\n".join(one.log)
    assert "final model" in log
    assert f"round {ROUNDS} of 10: counted" in log
    # The scripted servers end before the task does.
    assert not re.search("WARNING (?!this owner was missing)|ERROR", log)
    assert (one.tried, other.tried) == (False, kind == "held out")
    # The private log alone tells the two apart; otherwise the poison would have been
    # none.
    told = one.files.pop("failed-records.log", 0) != other.files.pop(
        "failed-records.log", 0
    )
    assert told is (kind not in ("undrawn", "held out"))
    assert one.files == other.files


def test_two_processes_end_alike_and_write_the_same(tmp_path: Path) -> None:
    task, ends = task_of(data=RECIPE, **{"deadlines.work": 4.0}), []
    # Both at once: they wait for their times to come.
    with ExitStack() as running:
        begun = []
        for name, data in zip("ab", tables(tmp_path), strict=True):
            servers = servers_of(task)
            running.enter_context(started(*servers))
            config = settings(
                tmp_path / name, task, servers, record_rate=1.0, data=data
            )
            process, output = warm.begun(tmp_path / name, "join", "--config", config)
            begun.append((process, output, servers))
        statuses = [process.wait() for process, _, _ in begun]
    for status, (_, output, servers) in zip(statuses, begun, strict=True):
        # Without the time of day, which no two runs share.
        said = output.read_text("utf-8")
        said = re.sub(r"^[\d-]+ [\d:,]+ ", "", said, flags=re.MULTILINE)
        said = SUBMISSION.sub("", said)
        ends.append((status, said, [server.calls for server in servers]))
    assert (ends[0][0], "final model" in ends[0][1]) == (0, True)
    assert ends[0] == ends[1]


def test_bad_records_show_in_nothing_that_the_doctor_asks(tmp_path: Path) -> None:
    task, good = small_task(4, tasks.logistic(1)), "a,y\n1,0\n2,1\n"

    def looked_at(kind: str, text: str | None) -> tuple[int, list[Calls]]:
        servers, folder = servers_of(task), tmp_path / kind
        with started(*servers):
            columns = {"inputs": ["a"], "target": "y"}
            config = settings(folder, task, servers, data="ward.csv", columns=columns)
            if text is not None:
                (folder / "ward.csv").write_text(text, encoding="utf-8")
            ended = commands.precad("doctor", "--config", config)
        assert (ended.output != "", (folder / "state").exists()) == (True, False)
        return ended.exit_code, [server.calls for server in servers]

    status, calls = looked_at("good", good)
    assert status == 0
    assert [[rpc for rpc, _ in seen] for seen in calls] == [["Describe"], ["Describe"]]
    bad = {"no number": "two,1", "a missing value": ",1", "no class": "2,7"}
    texts = {kind: good.replace("2,1", row) for kind, row in bad.items()}
    for kind, text in (texts | {"no records": "a,y\n", "no file": None}).items():
        assert looked_at(kind, text) == (1, calls), kind
