"""A real PostgreSQL of the tests' own, on a socket in a temporary folder.

Where its programs are missing the tests for it are skipped, but under CI they fail.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import make_url
from tests.rig import stores

_MISSING = (
    "PostgreSQL's initdb and pg_ctl aren't here: install Debian's package postgresql"
)


@dataclass(kw_only=True)
class Postgres:
    folder: Path
    control: str
    user: str | None
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def url(self) -> str:
        """Of the maintenance database."""
        return f"postgresql+psycopg://precad@/postgres?host={self.folder}"

    def schema(self) -> str:
        """URL of a new, empty schema; a database of its own would take ten times as
        long."""
        name = f"state{next(self._numbers)}"
        stores.tamper(self.url, f"CREATE SCHEMA {name}")
        own = make_url(self.url).update_query_dict({"options": f"-csearch_path={name}"})
        return own.render_as_string(hide_password=False)

    def call(self, *command: str) -> None:
        subprocess.run(
            command,
            user=self.user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            check=True,
        )

    def start(self) -> None:
        how = (
            "-c listen_addresses= -c autovacuum=off -c fsync=off -c"
            f" unix_socket_directories={self.folder}"
        )
        log = str(self.folder / "log")
        self.call(self.control, "-D", self.data, "-w", "-l", log, "-o", how, "start")

    def stop(self) -> None:
        """At once, as a power cut: sessions break in the middle of what they do."""
        self.call(self.control, "-D", self.data, "-m", "immediate", "stop")

    @property
    def data(self) -> str:
        return str(self.folder / "data")


@contextmanager
def running() -> Iterator[Postgres]:
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
    server = Postgres(folder=folder, control=control, user=user)
    how = ("-A", "trust", "-U", "precad", "-E", "UTF8", "--no-sync")
    server.call(initdb, "-D", server.data, *how)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
