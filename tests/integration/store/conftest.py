"""The databases that a server's state may live in, each empty.

PostgreSQL is a real server of the tests' own, on a socket in a temporary folder. Where
its programs are missing the tests for it are skipped, but under CI they fail.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import make_url
from tests.conftest import small_task
from tests.rig import memory, stores

from precad.aggregator.store import Store, open_store
from precad.common.identifiers import Role
from precad.common.task import Task

_MISSING = (
    "PostgreSQL's initdb and pg_ctl aren't here: install Debian's package postgresql"
)
_NUMBERS = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a running PostgreSQL server's maintenance database."""
    debians = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path())
    names = ("initdb", "pg_ctl")
    initdb, control = (
        shutil.which(debians / name) or shutil.which(name) for name in names
    )
    if initdb is None or control is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(_MISSING)
    # Short: a socket's path may have 107 characters. PostgreSQL refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="precad-pg-", dir="/tmp"))
    user: str | None = None
    if os.geteuid() == 0:
        user = (
            "postgres"
            if "postgres" in {entry.pw_name for entry in pwd.getpwall()}
            else "nobody"
        )
        shutil.chown(folder, user)

    def call(*command: str) -> None:
        subprocess.run(
            command, user=user, cwd=folder, stderr=subprocess.STDOUT, check=True
        )

    data = str(folder / "data")
    call(initdb, "-D", data, "-A", "trust", "-U", "precad", "-E", "UTF8", "--no-sync")
    how = (
        "-c listen_addresses= -c autovacuum=off -c fsync=off -c"
        f" unix_socket_directories={folder}"
    )
    call(control, "-D", data, "-w", "-l", str(folder / "log"), "-o", how, "start")
    yield f"postgresql+psycopg://precad@/postgres?host={folder}"
    call(control, "-D", data, "-m", "immediate", "stop")
    shutil.rmtree(folder)


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """URL of a new, empty schema; a database of its own would take ten times as long."""
    name = f"state{next(_NUMBERS)}"
    stores.tamper(postgres, f"CREATE SCHEMA {name}")
    own = make_url(postgres).update_query_dict({"options": f"-csearch_path={name}"})
    return own.render_as_string(hide_password=False)


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
