"""Databases of every schema that there was are read as they are, and stay so.

``schemas`` holds one training of each, written by the software of its day: done, empty,
abandoned, written off, learned, voided and unfinished attempts. 0004, which no commit
wrote, is 0005 without its index; 0007 is 0006 brought up to date, with ids. Nothing in
them is secret.
"""

import json
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.rig.commands import document, precad, refused
from tests.rig.stores import A, B, C, Opener, prepared, tamper

from precad.aggregator.store import audit_ledger, read_training
from precad.aggregator.store.database import MIGRATIONS, NEWEST
from precad.aggregator.store.summary import read_task
from precad.cli.local_deployment import to_toml
from precad.cli.report_sources import gather
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest

SCHEMAS = Path(__file__).parent / "schemas"
REVISIONS = sorted(path.stem for path in SCHEMAS.glob("*.sql"))
OLDER = [each for each in REVISIONS if each != NEWEST]
ENTRIES = {"0001": 6, "0002": 6}
"""Of the others 8: they note a void, and what was learned, as entries of their own."""
Snapshot = dict[str, tuple[bytes, int]]


def restore(database: Path, revision: str) -> None:
    """As its server left it: in WAL mode, closed."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript((SCHEMAS / f"{revision}.sql").read_text())
        connection.execute("PRAGMA journal_mode=WAL")


def contents(folder: Path) -> Snapshot:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
    }


def to_postgres(source: Path, url: str) -> None:
    """Tables and rows with PostgreSQL's own types."""
    tables = sa.MetaData()
    engine, target = sa.create_engine(f"sqlite:///{source}"), sa.create_engine(url)
    tables.reflect(engine)
    with engine.connect() as old, target.begin() as new:
        for table in tables.sorted_tables:
            rows = [dict(row) for row in old.execute(table.select()).mappings()]
            for column in table.columns:
                column.type = column.type.as_generic()
            for index in table.indexes:
                condition = index.dialect_kwargs.get("sqlite_where")
                index.kwargs["postgresql_where"] = condition
            table.create(new)
            if rows:
                new.execute(table.insert(), rows)
    engine.dispose()
    target.dispose()


def everything(url: str) -> list[tuple[str, list[tuple[object, ...]]]]:
    """All tables of a database with all their rows."""
    tables = sa.MetaData()
    engine = sa.create_engine(url)
    tables.reflect(engine)
    with engine.connect() as connection:
        found = [
            (
                table.name,
                [tuple(row) for row in connection.execute(table.select())],
            )
            for table in tables.sorted_tables
        ]
    engine.dispose()
    return found


def test_every_schema_has_its_database() -> None:
    known = sorted(path.name[1:5] for path in MIGRATIONS.glob("versions/r*.py"))
    assert known == REVISIONS


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_an_old_ledger_is_read_and_stays_as_it_was(
    revision: str, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    restore(state / "state.db", revision)
    url = f"sqlite:///{state}/state.db"

    def look() -> object:
        return contents(state) if database == "sqlite" else everything(url)

    if database == "postgresql":
        url = request.getfixturevalue("postgres_url")
        to_postgres(state / "state.db", url)
    before = look()
    training = read_training(url)
    audit = audit_ledger(url)
    assert (audit.findings, audit.entries) == ((), ENTRIES.get(revision, 8))
    assert training.head == audit.head
    charged = {each.client: each.participations for each in training.clients}
    repeats = {each.client: dict(each.again) for each in training.clients}
    assert charged == {A: 2, B: 2, C: 1}
    assert repeats == {A: {1: 1}, B: {1: 1}, C: {}}
    # The task's digest is of the bytes that were written, whatever came since.
    canonical = next(
        dict(zip(("digest", "role", "canonical"), row, strict=False))
        for name, rows in everything(url)
        if name == "task"
        for row in rows
    )
    assert str(training.task.digest) == canonical["digest"]
    shown = document("ledger", "show", url, "--json")
    assert [each["participations"] for each in shown["clients"]] == [2, 2, 1]
    verified = precad("ledger", "verify", url, "--head", str(audit.head))
    assert (verified.exit_code, verified.output[:7]) == (0, "sound: ")
    if database == "sqlite":
        report = gather([url])
        training_of = report.training.task_digest
        assert (training_of, report.ledgers[0].findings) == (canonical["digest"], [])
    assert look() == before


@pytest.mark.parametrize("revision", OLDER)
def test_a_change_of_an_old_ledger_shows(revision: str, tmp_path: Path) -> None:
    restore(tmp_path / "state.db", revision)
    url = f"sqlite:///{tmp_path}/state.db"
    tamper(url, "UPDATE charge SET client = 'ward-x' WHERE client = 'ward-b'")
    changed = [finding.what for finding in audit_ledger(url).findings]
    assert any("its content or its charges were changed" in each for each in changed)


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_old_state_is_backed_up_as_it_is_and_its_copy_checked(
    revision: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    restore(state / "state.db", revision)
    before = contents(state)
    done = precad("backup", str(state), str(tmp_path / "copy"))
    assert (done.exit_code, done.output[:7]) == (0, "sound: ")
    assert contents(state) == before
    copied = f"sqlite:///{tmp_path}/copy/state.db"
    held = contents(tmp_path / "copy")
    for named in ("copy", "copy/state.db"):
        checked = precad("backup", "check", str(tmp_path / named))
        first, second, last = checked.output.splitlines()
        assert first.startswith("server-a of task small, digest ")
        assert first.endswith(f"; schema {revision}")
        assert second.startswith("3 owners, 2 of 10 rounds released, ")
        assert (checked.exit_code, last + "\n") == (0, done.output)
    assert contents(tmp_path / "copy") == held
    tamper(copied, "UPDATE charge SET record_rate = 0.01 WHERE client = 'ward-b'")
    broken = precad("backup", "check", str(tmp_path / "copy"))
    assert (broken.exit_code, "BROKEN: " in broken.output) == (1, True)
    assert everything(copied)[0] == ("alembic_version", [(revision,)])


@pytest.mark.parametrize("revision", ["0001", NEWEST])
def test_a_folder_that_nobody_may_write_to_is_read(
    revision: str, tmp_path: Path
) -> None:
    """SQLite would make files beside the database. Root may write anywhere: a process
    of another user's asks."""
    state = tmp_path / "state"
    state.mkdir()
    restore(state / "state.db", revision)
    (state / "state.db").chmod(0o444)
    state.chmod(0o555)
    tmp_path.chmod(0o755)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            found = audit_ledger(f"sqlite:///{state}/state.db")
            answer: list[object] = [found.entries, len(found.findings)]
        except BaseException as error:  # noqa: BLE001 - told to the test
            answer = [repr(error)]
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answered:
        assert json.load(answered) == [ENTRIES.get(revision, 8), 0]
    assert [path.name for path in state.iterdir()] == ["state.db"]
    state.chmod(0o700)


def test_what_a_killed_server_left_in_its_log_is_read_and_left_there(
    tmp_path: Path, opener: Opener
) -> None:
    store = opener(f"sqlite:///{tmp_path}/running.db")
    prepared(store)
    for suffix in ("", "-wal"):
        copy = tmp_path / f"state.db{suffix}"
        copy.write_bytes((tmp_path / f"running.db{suffix}").read_bytes())
    before = contents(tmp_path)
    assert read_training(f"sqlite:///{tmp_path}/state.db").entries == 1
    after = contents(tmp_path)
    assert [after[f"state.db{each}"][0] for each in ("", "-wal")] == [
        before[f"state.db{each}"][0] for each in ("", "-wal")
    ]


def test_an_upgrade_is_one_line_of_the_log(
    tmp_path: Path, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """Alembic would say seven things of its own, and never which schema became which."""
    restore(tmp_path / "state.db", "0005")
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        (canonical,) = connection.execute("SELECT canonical FROM task").fetchone()
    caplog.set_level(logging.INFO)
    opener(f"sqlite:///{tmp_path}/state.db", task=read_task(canonical))
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"schema 0005 is now {NEWEST}" in line
    assert "keep the backup" in line


def test_a_ledger_of_a_check_that_was_removed_is_read_and_not_served(
    tmp_path: Path,
) -> None:
    """`fss_ledger.sql` was written by the last software that had it."""
    script = SCHEMAS.with_name("fss_ledger.sql").read_text()
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.executescript(script)
        ((digest, canonical),) = connection.execute(
            "SELECT digest, canonical FROM task"
        )
    before = contents(tmp_path)
    state = str(tmp_path)
    shown = document("ledger", "show", state)
    assert shown["task_digest"] == digest
    assert [each["participations"] for each in shown["clients"]] == [2, 2, 0]
    assert precad("ledger", "verify", state).output.startswith("sound: 2 entries")
    assert [each["verdict"] for each in document("ledger", "submissions", state)] == [
        *("counted", "counted", "absent"),
        *("counted", "counted", "norm-exceeded"),
    ]
    report = gather([state])
    checked = {rule.what: rule.value for rule in report.enforced}[
        "norms were checked by"
    ]
    assert checked == "function secret sharing, in an older version of precad"
    assert "this check of norms is no more" in " ".join(report.not_guaranteed)
    assert "a dealer with one of them" in " ".join(report.not_guaranteed)
    assert contents(tmp_path) == before
    # Whoever would serve it has a task file that says so.
    values = read_task(canonical).model_dump(mode="json", exclude_none=True)
    (tmp_path / "task.toml").write_text(to_toml(values), "utf-8")
    (tmp_path / "a.toml").write_text(
        'task = "task.toml"\nlisten = "127.0.0.1:0"\nserver_b = "127.0.0.1:1"\n'
        'identity = "keys"\nstate = "."\n',
        "utf-8",
    )
    refusal = refused("serve", "a", "--config", tmp_path / "a.toml")
    assert "validation = 'fss': is no more" in refusal
    assert "read by precad ledger and report" in refusal


def test_a_database_of_a_newer_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    restore(tmp_path / "state.db", NEWEST)
    url = f"sqlite:///{tmp_path}/state.db"
    tamper(url, "UPDATE alembic_version SET version_num = '0099'")
    with pytest.raises(Misconfiguration, match=r"newer precad wrote this database"):
        read_training(url)


def test_a_task_of_fewer_fields_keeps_its_digest() -> None:
    written = {
        revision: next(
            line
            for line in (SCHEMAS / f"{revision}.sql").read_text().splitlines()
            if line.startswith('INSERT INTO "task"')
        )
        for revision in REVISIONS
    }
    for line in written.values():
        digest, _, canonical, *_ = line.split("VALUES(")[1].split(",")
        task = read_task(bytes.fromhex(canonical[2:-1]))
        assert task.digest == Digest(bytes.fromhex(digest[1:-1]))
