"""Two data sets that differ in one record, a poisonous one: what leaves the machine is alike.

Both owners are processes of `precad join`, over TLS, against servers of the test, which see every
message. What a message holds is a random-looking share; everything else about it is compared here.
"""

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
GRID_S = 0.9
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


def owner(folder: Path, task: Task, x: Any, y: Any, *, selected: bool) -> Seen:
    """A whole training of one process."""
    theta = np.linspace(1.0, 2.0, D)  # the poison's outputs are infinite
    shared: dict[str, Any] = {"versions": {}, "opened": {}}
    a, b = (
        FakeServer(role, task, theta, rounds=ROUNDS, covers=not selected, **shared)
        for role in (Role.SERVER_A, Role.SERVER_B)
    )
    a.paced = True
    keys = folder / "keys"
    keys.mkdir(parents=True)
    mine = identity(Principal.client(WARD.name))
    for name, data in (("ca", mine.ca), ("cert", mine.cert), ("key", mine.key.reveal())):
        (keys / f"{name}.pem").write_bytes(data)
        (keys / f"{name}.pem").chmod(0o600)
    (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    write_client_data(folder, WARD, x, y)
    with started(a, b):
        settings = {
            "client": WARD.name,
            "task": "task.toml",
            "identity": "keys",
            "server_a": a.address,
            "server_b": b.address,
            "data": f"{WARD}.npz",
            "state": "state",
            "record_rate": 1.0,
        }
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
    return Seen(
        ended.returncode,
        [*log, ended.stdout],
        {fake.role.value: fake.calls for fake in (a, b)},
        a.came_after + b.came_after,
        {path.name: path.stat().st_size for path in state.iterdir() if path.suffix == ".log"},
    )


@pytest.fixture(scope="module", params=["without cover", "drawn under cover", "undrawn"])
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
            "privacy.cover_uploads": request.param != "without cover",
            "deadlines.work": WORK_S,
        },
    )
    rng = np.random.default_rng(3)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    bad = x.copy()
    bad[7] = POISON
    folder = tmp_path_factory.mktemp("neighbours")
    selected = request.param != "undrawn"
    return (
        owner(folder / "clean", task, x, y, selected=selected),
        owner(folder / "poisoned", task, bad, y, selected=selected),
    )


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
        assert all(WORK_S <= after < WORK_S + GRID_S for after in seen.came_after), seen.came_after


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
