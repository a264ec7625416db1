"""The databases that a server's state may live in, each empty."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import small_task
from tests.rig import memory, stores
from tests.rig.postgres import Postgres, running

from precad.aggregator.store import Store, open_store
from precad.common.identifiers import Role
from precad.common.task import Task


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> str:
    """URL of a running PostgreSQL server's maintenance database."""
    return postgres_server.url


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    return postgres_server.schema()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: what these tests lose by a kill -9 is the process, never the machine."""
    with memory.in_memory() as folder:
        yield Path(folder)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def durable_url(request: pytest.FixtureRequest) -> str:
    """An empty database that outlives its process."""
    return str(
        request.getfixturevalue("url" if request.param == "sqlite" else "postgres_url")
    )


@pytest.fixture(scope="session")
def task() -> Task:
    return small_task()


@pytest.fixture
def opener(task: Task) -> Iterator[stores.Opener]:
    """Open a store; all that are open at the test's end are closed."""
    opened: list[Store] = []

    def open_one(
        url: str,
        *,
        task: Task = task,
        role: Role = Role.SERVER_A,
        outside: Path | None = None,
    ) -> Store:
        opened.append(open_store(url, task, role, outside))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(opener: stores.Opener) -> Store:
    """In memory. That the others answer alike: ``test_versions``."""
    return opener("sqlite://")


@pytest.fixture
def each_store(durable_url: str, opener: stores.Opener) -> Store:
    """For what the database itself refuses, takes back or keeps."""
    return opener(durable_url)
