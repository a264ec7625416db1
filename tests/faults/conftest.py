"""Faults: trainings in simulated time, and processes forked from one warm parent."""

import functools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import small_task as task_with
from tests.faults.invariants import checked
from tests.faults.turns import Hang
from tests.faults.world import World
from tests.rig.documents import Document
from tests.rig.memory import in_memory

from precad.common.identifiers import Role
from precad.common.task import Task

BOTH = (Role.SERVER_A, Role.SERVER_B)
Play = Callable[..., World]


def small_task(
    rounds: int,
    validation: str = "crypten",
    changes: Document | None = None,
    dimension: int = 4,
) -> Task:
    """Three clients, of which four fifths are drawn: q is below one."""
    deadlines = {
        "enrol": 500.0,
        "collect": 10.0,
        "rejoin": 2.0,
        "peer": 5.0,
        "outage": 300.0,
    }
    usual = {
        "training.rounds": rounds,
        "validation": validation,
        "deadlines": deadlines,
        "training.compact_release": True,
        "enrolment.planned_units": 30,
    }
    drawn = {"privacy.client_rate": 0.8, "enrolment.clients": 3}
    return task_with(dimension, usual | drawn | (changes or {}))


_AWAITED = re.compile(r"waits for an owner to give model (\d+) back")


def play_in(
    folder: Path,
    seed: int,
    *,
    rounds: int = 4,
    faults: int | None = None,
    restores: tuple[Role, ...] = (),
    validation: str = "crypten",
    orders: Sequence[str] = (),
    bad: int = 0,
    workers: int = 0,
    changes: Document | None = None,
) -> World:
    """Run a training and check all invariants; faults come by chance, or by orders.

    ``rounds`` is T without orders, ``workers`` counts pairs, servers of ``restores``
    are put back.
    """
    # Some schedules have their faults all at once, others throughout. Lines of orders
    # take about half a version each; an owner's two, because the others go on.
    servers = not any(line.startswith("ward") for line in orders)
    rounds += len(orders) * 2 // 3 if servers else len(orders) * 2
    own = Path(tempfile.mkdtemp(dir=folder, prefix=f"{seed}-"))
    faults = (0 if orders else 8) if faults is None else faults
    world = World(
        small_task(rounds, validation, changes),
        own,
        seed,
        orders=orders,
        faults=faults,
        chance=(0.005, 0.01, 0.02, 0.04)[seed % 4],
        restores=restores,
        bad=bad,
        slowest_start_s=1.0 if orders else 8.0,
    )
    world.turns.limit_s = 250.0 + 60.0 * len(orders)
    if workers:
        # It imports gRPC, which few of these need.
        from tests.faults.workers import ByPairs  # noqa: PLC0415

        world.validation = ByPairs(world, workers)
    try:
        checked(world)
        assert not world.orders.open, f"nobody came to {world.orders.open}"
    except Hang:
        # Both servers lost a model that owners had heard of, and nobody is there who
        # has it: every owner was gone with the final one, or none had fetched it yet.
        errors = [server.session.progress.error for server in world.servers.values()]
        awaited = [found for error in errors if (found := _AWAITED.search(error))]
        assert awaited, errors
        assert len(world.put_back_roles) == len(BOTH)
        gone = len(world.seen.results) == len(world.clients)
        assert gone or not any(
            int(found[1]) in world.seen.fetched for found in awaited
        ), errors
    return world


@contextmanager
def quick_folder() -> Iterator[Path]:
    with in_memory() as path:
        yield Path(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


@pytest.fixture
def play() -> Iterator[Play]:
    with quick_folder() as path:
        yield functools.partial(play_in, path)


@pytest.fixture(scope="session")
def calm() -> World:
    with quick_folder() as folder:
        return play_in(folder, 0, faults=0)
