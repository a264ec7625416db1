"""Two data sets that differ in one record, a poisonous one: what leaves the machine is alike.

So it is with held-out records and without.

Both owners are processes of `precad join`, over TLS, against servers of the test, which see every
message. What a message holds is a random-looking share; everything else about it is compared here.
"""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.fake_server import FakeServer, started
from tests.rig.keys import identity

import precad
from precad.client.record_file import write_client_data
from precad.common.identifiers import ClientId, Role
from precad.common.identity.principal import Principal
from precad.common.task import Task
from precad.experiments.local.files import task_to_toml, to_toml

WARD = ClientId("ward-1")
FEATURES, RECORDS, ROUNDS, WORK_S = 3, 60, 3, 2.0
HELD_OUT = 30_000
GRID_S = 1.9
"""Machines of tests are busy; what counts is that no upload comes before the public time."""
D = 2 * FEATURES + 2
POISON = 3e38
"""Finite, and so is its loss at the task's first model; at any other its gradient is NaN."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is visible outside."""

    status: int
    log: list[str]
    calls: dict[str, list[Any]]
    came_after: list[float]
    files: dict[str, int]
    tried: list[bool]
    """Whether the history has a loss on held-out records, where there are any."""


def owner(
    folder: Path,
    task: Task,
    x: Any,
    y: Any,
    *,
    selected: bool,
    table: str | None = None,
    held_out: Any = None,
) -> Seen:
    """A whole training of one process, with records in arrays or in a table."""
    theta = np.linspace(1.0, 2.0, D)  # the poison's outputs are infinite
    shared: dict[str, Any] = {"versions": {}, "opened": {}}
    a, b = (
        FakeServer(role, task, theta, rounds=ROUNDS, covers=not selected, **shared)
        for role in (Role.SERVER_A, Role.SERVER_B)
    )
    a.paced = a.says_over = True
    keys = folder / "keys"
    keys.mkdir(parents=True)
    mine = identity(Principal.client(WARD.name))
    for name, data in (("ca", mine.ca), ("cert", mine.cert), ("key", mine.key.reveal())):
        (keys / f"{name}.pem").write_bytes(data)
        (keys / f"{name}.pem").chmod(0o600)
    (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    records = f"{WARD}.npz"
    if table is None:
        write_client_data(folder, WARD, x, y)
    else:
        records = f"{WARD}.csv"
        (folder / records).write_text(table, encoding="utf-8")
    with started(a, b):
        settings = {
            "client": WARD.name,
            "task": "task.toml",
            "identity": "keys",
            "server_a": a.address,
            "server_b": b.address,
            "data": records,
            "state": "state",
            "record_rate": 1.0,
        }
        if held_out is not None:
            settings["held_out"] = write_client_data(folder, ClientId("held-out"), *held_out).name
        (folder / "join.toml").write_text(to_toml(settings), encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-m", "precad", "join", "--config", str(folder / "join.toml")],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONPATH": str(Path(precad.__file__).parents[1])},
        )
    # Without the time of day, which no two runs share.
    log = [re.sub(r"^[\d-]+ [\d:,]+ ", "", line) for line in ended.stderr.splitlines()]
    state = folder / "state"
    rows = csv.DictReader((state / "history.csv").read_text("utf-8").splitlines())
    return Seen(
        ended.returncode,
        [*log, ended.stdout],
        {fake.role.value: fake.calls for fake in (a, b)},
        a.came_after + b.came_after,
        {path.name: path.stat().st_size for path in state.iterdir() if path.suffix == ".log"},
        sorted({True for row in rows if row["validation_loss"]}),
    )


RECIPE = {
    "target": {"name": "y", "kind": "categorical", "levels": ["no", "yes"]},
    "columns": [
        {"name": "a", "fill": 0.5},
        {"name": "unit", "kind": "categorical", "levels": ["icu"], "fill_level": "icu"},
    ],
}
"""Of a table whose rows have the arrays' number of inputs."""


def tables(x: Any, y: Any) -> tuple[str, str]:
    """A clean one, and one where a record's value is poison and its level is nowhere listed."""
    rows = [f"{row[0]:.4f},icu,{'yes' if label else 'no'}" for row, label in zip(x, y, strict=True)]
    bad = [f"{POISON},elsewhere,no" if place == 7 else row for place, row in enumerate(rows)]
    clean, poisoned = ("\n".join(["a,unit,y", *each]) for each in (rows, bad))
    return clean, poisoned


@pytest.fixture(
    scope="module", params=["without cover", "drawn under cover", "undrawn", "from a table"]
)
def neighbours(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, make_task: Any
) -> tuple[Seen, Seen]:
    weight, bias = {"name": "1.weight", "shape": [2, FEATURES]}, {"name": "1.bias", "shape": [2]}
    task = make_task(
        D,
        {
            "model.architecture": "logistic",
            "model.parameters": [weight, bias],
            "privacy.record_rate": 1.0,
            "privacy.cover_uploads": request.param not in ("without cover", "from a table"),
            "deadlines.work": WORK_S,
        }
        | ({"data": RECIPE} if request.param == "from a table" else {}),
    )
    rng = np.random.default_rng(3)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    bad = x.copy()
    bad[7] = POISON
    folder = tmp_path_factory.mktemp("neighbours")
    selected = request.param != "undrawn"
    texts = tables(x, y) if request.param == "from a table" else (None, None)
    return (
        owner(folder / "clean", task, x, y, selected=selected, table=texts[0]),
        owner(folder / "poisoned", task, bad, y, selected=selected, table=texts[1]),
    )


@pytest.fixture(scope="module")
def with_held_out(tmp_path_factory: pytest.TempPathFactory, make_task: Any) -> tuple[Seen, Seen]:
    """The same owner twice, once with held-out records, among them the poison: many of them, so
    that trying them takes longer than a round."""
    weight, bias = {"name": "1.weight", "shape": [2, FEATURES]}, {"name": "1.bias", "shape": [2]}
    task = make_task(
        D,
        {
            "model.architecture": "logistic",
            "model.parameters": [weight, bias],
            "privacy.record_rate": 1.0,
            "deadlines.work": WORK_S,
        },
    )
    rng = np.random.default_rng(3)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    many = np.repeat(x, HELD_OUT // RECORDS, axis=0)
    many[7] = POISON
    held_out = many, np.repeat(y, HELD_OUT // RECORDS)
    folder = tmp_path_factory.mktemp("held-out")
    return (
        owner(folder / "without", task, x, y, selected=True),
        owner(folder / "with", task, x, y, selected=True, held_out=held_out),
    )


def at_the_public_time(came_after: list[float]) -> bool:
    """None before, and most within a step of the grid: a machine that is busy delays some."""
    middle = sorted(came_after)[len(came_after) // 2]
    return min(came_after) >= WORK_S and middle < WORK_S + GRID_S


def test_held_out_records_change_nothing_that_leaves(with_held_out: tuple[Seen, Seen]) -> None:
    """Not the messages, their order and sizes, when uploads begin, the log, or how it ends."""
    without, beside = with_held_out
    assert without.status == beside.status == 0, beside.log
    assert without.calls == beside.calls
    assert without.log == beside.log
    assert any("round 3 of 10: counted" in line for line in beside.log)
    for seen in with_held_out:
        assert len(seen.came_after) == 2 * ROUNDS
        assert at_the_public_time(seen.came_after), seen.came_after
    # They were tried all the same.
    assert (without.tried, beside.tried) == ([], [True])


def test_both_take_part_to_the_end(neighbours: tuple[Seen, Seen]) -> None:
    clean, poisoned = neighbours
    assert clean.status == poisoned.status == 0, poisoned.log
    for role in ("server-a", "server-b"):
        assert sum(rpc == "Submit" for rpc, _ in clean.calls[role]) == ROUNDS


def test_messages_have_the_same_kinds_order_and_sizes(neighbours: tuple[Seen, Seen]) -> None:
    clean, poisoned = neighbours
    assert clean.calls == poisoned.calls


def test_uploads_begin_at_the_public_time(neighbours: tuple[Seen, Seen]) -> None:
    for seen in neighbours:
        assert len(seen.came_after) == 2 * ROUNDS
        assert at_the_public_time(seen.came_after), seen.came_after


def test_the_process_says_the_same_and_ends_alike(neighbours: tuple[Seen, Seen]) -> None:
    clean, poisoned = neighbours
    assert clean.log == poisoned.log
    assert any("final model" in line for line in clean.log)
    assert not any("WARNING" in line or "ERROR" in line for line in clean.log)


def test_the_poison_was_one(neighbours: tuple[Seen, Seen], request: Any) -> None:
    """The private log alone tells the two apart; otherwise this module would show nothing."""
    clean, poisoned = neighbours
    told = clean.files["failed-records.log"] != poisoned.files["failed-records.log"]
    assert told is ("undrawn" not in request.node.name)
    assert {**clean.files, "failed-records.log": 0} == {**poisoned.files, "failed-records.log": 0}


def test_what_was_compared_is_not_empty(neighbours: tuple[Seen, Seen]) -> None:
    text = json.dumps(neighbours[0].calls)
    for rpc in ("Describe", "Enrol", "Watch", "FetchModel", "Opening", "Statement", "Submit"):
        assert rpc in text
