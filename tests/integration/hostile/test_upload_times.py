"""Uploads begin at a constant: `precad join` itself, over TLS, by this machine's own clock.

The found model reads a table at 10 where one record's p rounds to 1, and a server
serves the model at which that is so. No upload may begin earlier than it should; how
much later they begin benchmarks/hostile_models.py has, on a quiet machine.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples.demo.local_processes import write_client_data
from tests.integration.hostile.test_neighbours_look_alike import settings
from tests.rig import hostile_pairs, tasks, warm
from tests.rig.fake_server import FakeServer, started

from precad.cli.owner_commands import ENDED_LATE
from precad.client import model_section
from precad.common.identifiers import ClientId, Role
from precad.common.model import to_bytes
from precad.common.task import Task

FEATURES, RECORDS, ROUNDS = 9, 400, 3
FOUND, CLAMPED = "tests.rig.hostile_pairs:found", "tests.rig.hostile_pairs:clamped"

Ended = tuple[int, str, list[float]]
"""The status, what was said, and when uploads began."""


def held_back(data: bytes, held_s: float) -> Iterator[bytes]:
    """A model, its last byte later."""
    yield data[:-1]
    threading.Event().wait(held_s)
    yield data[-1:]


def task_of(**changes: Any) -> Task:
    section = model_section(
        hostile_pairs.found(), architecture="Net", initial="uniform"
    )
    usual = {"model": section, "privacy.record_rate": 0.5, "deadlines.work": 4.0}
    return tasks.task_with(usual | {"enrolment.max_expected_records": 400.0} | changes)


@contextmanager
def joining(
    folder: Path, net: str, task: Task, *, with_it: bool = False, held_s: float = 0.0
) -> Iterator[Callable[[], Ended]]:
    """An owner that has begun, beside whatever else; and what waits for its end."""
    theta = np.zeros(task.dimension)
    theta[0], theta[-2] = 10.0, -50.0
    shared: dict[str, Any] = {"versions": {}, "opened": {}, "rounds": ROUNDS}
    servers: list[FakeServer] = [
        FakeServer(role, task, theta, **shared)
        for role in (Role.SERVER_A, Role.SERVER_B)
    ]
    servers[0].paced = servers[0].says_over = True
    for server in servers:
        server.pieces = partial(held_back, to_bytes(theta), held_s)
    generator = np.random.default_rng(1)
    x = generator.uniform(0.1, 1.0, size=(RECORDS, FEATURES)).astype(np.float32)
    x[:, 0] = 0.0
    x[-1, 0] = 10.0 if with_it else 0.0
    folder.mkdir()
    labels = generator.integers(0, 2, RECORDS)
    data = write_client_data(folder, ClientId("ward-1"), x, labels)
    with started(*servers):
        config = settings(folder, task, servers, data=str(data), model=net)
        process, output = warm.begun(folder, "join", "--config", config)

        def ended() -> Ended:
            status = process.wait()
            came = [each for server in servers for each in server.came_after]
            return status, output.read_text("utf-8"), came

        yield ended


def joined(folder: Path, net: str, task: Task, *, with_it: bool = False) -> Ended:
    with joining(folder, net, task, with_it=with_it) as ended:
        return ended()


def test_the_found_model_is_refused_with_its_line_and_the_remedy(
    tmp_path: Path,
) -> None:
    for with_it in (False, True):
        status, said, came = joined(
            tmp_path / str(with_it), FOUND, task_of(), with_it=with_it
        )
        assert (status, came) == (2, []), said
        assert "hostile_pairs.py line" in said
        assert "TEN[self.bounded(p.detach() * 10)]" in said
        assert "index.clamp(0, rows - 1)" in said


@pytest.mark.parametrize("held_s", [0.0, 1.5])
def test_uploads_begin_at_one_time_after_the_last_byte_with_a_record_and_without(
    tmp_path: Path, held_s: float
) -> None:
    task = task_of()
    # Both at once: neither computes for long, and both wait for their times to come.
    with (
        joining(tmp_path / "without", CLAMPED, task, held_s=held_s) as without,
        joining(tmp_path / "with", CLAMPED, task, with_it=True, held_s=held_s) as with_,
    ):
        ends = [without(), with_()]
    for status, said, came in ends:
        assert status == 0, said
        # The other models are fetched while their rounds end, so here they are held.
        assert min(came) >= task.deadlines.work
        assert sum(each >= task.deadlines.work + held_s for each in came) >= 2


def test_an_owner_whose_work_overruns_leaves_with_a_status_of_its_own(
    tmp_path: Path,
) -> None:
    status, said, came = joined(
        tmp_path / "late", CLAMPED, task_of(**{"deadlines.work": 1e-4})
    )
    assert (status, len(came)) == (ENDED_LATE, 2 * 3), said
    assert "3 of 3 times" in said
