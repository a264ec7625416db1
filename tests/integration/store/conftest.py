"""The databases that a server's state may live in, each empty, and what most tests write there.

PostgreSQL is a real server of the tests' own, on a socket in a temporary folder. Where its
programs are missing the tests for it are skipped, but under CI they fail.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from tests.conftest import TaskMaker
from tests.rig.aggregators import head_of
from tests.rig.keys import signatures
from tests.rig.memory import in_memory

from precad.aggregator.server_messages import Fact
from precad.aggregator.store import Store, open_store
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.signatures import SignedKind
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task

MODEL, NEXT, VALID_SET = Digest(b"\1" * 32), Digest(b"\2" * 32), Digest(b"\3" * 32)
WARDS = A, B, C = tuple(ClientId(f"ward-{letter}") for letter in "abc")
RATES = (0.2, 0.1, 1 / 30)
SHARE = bytes(range(64))
Opener = Callable[..., Store]
Prepare = Callable[..., None]
Bind = Callable[..., None]
_MISSING = "PostgreSQL's initdb and pg_ctl aren't here: install Debian's package postgresql"


def charge(attempt: int, version: int, *clients: ClientId) -> Fact:
    names = tuple(client.name for client in clients)
    return Fact(version=version, attempt=attempt, voided=False, clients=names)


def voided(attempt: int, version: int) -> Fact:
    return Fact(version=version, attempt=attempt, voided=True)


def tamper(url: str, *statements: str) -> None:
    """As whoever may write to the database."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a running PostgreSQL server's maintenance database."""
    initdb, control = _program("initdb"), _program("pg_ctl")
    if initdb is None or control is None:
        if os.environ.get("CI"):
            pytest.fail(_MISSING)
        pytest.skip(_MISSING)
    # Short: a socket's path may have 107 characters. PostgreSQL refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="precad-pg-", dir="/tmp"))
    user: str | None = None
    if os.geteuid() == 0:
        user = "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"
        shutil.chown(folder, user)

    def call(*command: str) -> None:
        done = subprocess.run(
            command, user=user, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    data = str(folder / "data")
    call(initdb, "-D", data, "-A", "trust", "-U", "precad", "-E", "UTF8", "--no-sync")
    options = (
        f"-c listen_addresses= -c autovacuum=off -c unix_socket_directories={folder} -c fsync=off"
    )
    call(control, "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    yield f"postgresql+psycopg://precad@/postgres?host={folder}"
    call(control, "-D", data, "-m", "immediate", "stop")
    shutil.rmtree(folder)


_NUMBERS = count()


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """URL of a new, empty schema; a database of its own would take ten times as long."""
    name = f"state{next(_NUMBERS)}"
    engine = create_engine(postgres, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    engine.dispose()
    own = make_url(postgres).update_query_dict({"options": f"-csearch_path={name}"})
    return own.render_as_string(hide_password=False)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: what these tests lose by a kill -9 is the process, never the machine."""
    with in_memory() as folder:
        yield Path(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database that outlives its process."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(scope="session")
def task(make_task: TaskMaker) -> Task:
    return make_task()


@pytest.fixture
def opener(task: Task) -> Iterator[Opener]:
    """Open a store; all that are open at the test's end are closed."""
    opened: list[Store] = []

    def open_one(
        url: str, *, task: Task = task, role: Role = Role.SERVER_A, outside: Path | None = None
    ) -> Store:
        opened.append(open_store(url, task, role, outside))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(opener: Opener) -> Store:
    """In memory. That the others answer alike: ``test_versions``."""
    return opener("sqlite://")


@pytest.fixture
def each_store(durable_url: str, opener: Opener) -> Store:
    """For what the database itself refuses, takes back or keeps."""
    return opener(durable_url)


@pytest.fixture(scope="session")
def roster() -> Roster:
    """Three wards; the third samples at a rate that no decimal writes exactly."""
    return Roster({w: Enrolment(w, 100, rate) for w, rate in zip(WARDS, RATES, strict=True)})


@pytest.fixture(scope="session")
def enrolled(roster: Roster) -> Callable[[Store], Store]:
    def enrol(store: Store) -> Store:
        for enrolment in roster.values():
            store.enrolment.claim(enrolment)
        store.enrolment.freeze(roster)
        return store

    return enrol


@pytest.fixture(scope="session")
def prepared() -> Callable[..., None]:
    """Play one attempt until it is prepared: two wards valid, the third absent."""

    def play(store: Store, number: int = 0, version: int = 0, share: bytes = SHARE) -> None:
        store.attempts.begin(number, version, 3, MODEL)
        store.attempts.prepare(number, WARDS[:2], VALID_SET, {WARDS[2]: Rejection.ABSENT}, share)

    return play


@pytest.fixture(scope="session")
def bind() -> Callable[..., None]:
    def countersign(store: Store, number: int = 0, version: int = 0, *, sent: bool = True) -> None:
        head = head_of(store.task.digest, version, number, valid_set=str(VALID_SET))
        other = signatures(store.task.digest, Role.SERVER_B)
        store.attempts.countersign(number, head, other.sign(SignedKind.HEAD, head))
        if sent:
            store.attempts.sent(number, other.sign(SignedKind.COUNTERSIGNATURE, head))

    return countersign
