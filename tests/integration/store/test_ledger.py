"""The ledger's chain: sound after anything that a server does, broken by anything else."""

import hashlib
import json
import math
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from tests.conftest import small_task
from tests.rig import stores
from tests.rig.accounts import composed
from tests.rig.commands import document, precad, refused
from tests.rig.stores import (
    NEXT,
    VALID_SET,
    A,
    B,
    C,
    Opener,
    prepared,
    released,
    tamper,
)

from precad.accounting.events import poisson_gaussian, steps_as_chosen
from precad.accounting.exact import ExactAccountant, most_participations
from precad.aggregator.store import (
    Store,
    audit_ledger,
    open_store,
    read_training,
    transaction,
)
from precad.aggregator.store.database import NEWEST
from precad.aggregator.store.schema import AttemptState
from precad.common import errors, identifiers
from precad.common.task import Task


@pytest.fixture(scope="module")
def played_file(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Path:
    file = tmp_path_factory.mktemp("played") / "state.db"
    store = open_store(f"sqlite:///{file}", task, identifiers.Role.SERVER_A, None)
    stores.play(store)
    store.close()
    return file


@pytest.fixture
def played(played_file: Path, tmp_path: Path, url: str) -> str:
    """A copy of such a training in SQLite, which a test may spoil in its own way."""
    shutil.copy(played_file, tmp_path / "state.db")
    return url


def findings(url: str) -> list[str]:
    return [
        f"{finding.where}: {finding.what}" for finding in audit_ledger(url).findings
    ]


def salts(store: Store) -> list[bytes]:
    with store.transaction.read() as connection:
        found = connection.execute(text("SELECT salt FROM ledger ORDER BY sequence"))
        return list(found.scalars())


def test_a_ledger_is_sound_and_a_reader_cannot_change_it(
    durable_url: str, opener: Opener
) -> None:
    """It needs no lock."""
    store = opener(durable_url)
    stores.play(store)
    audit, view = audit_ledger(durable_url), read_training(durable_url)
    # Attempts 0, 1, 3, its loss, 5, 6, its void, 7: attempt 2 left nothing.
    assert (audit.findings, audit.entries) == ((), 8)
    assert (view.role, view.head, view.written_off) == (
        identifiers.Role.SERVER_A,
        audit.head,
        1,
    )
    assert (view.attempts, view.most_participations, view.most_repeats) == (7, 2, 1)
    one, empty = [(v.attempts, v.counted, v.rejected) for v in view.versions]
    assert one == (1, 2, {"absent": 1})
    assert empty == (1, 0, {"absent": 1, "norm-exceeded": 1})
    assert (view.participations_by_version(), view.rounds) == ([1, 1], 3)
    # Absence is not held against a client.
    assert store.attempts.rejected_clients() == {B: 1}
    assert {c.client: c.participations for c in view.clients} == {A: 2, B: 2, C: 1}
    # Version 2 may have left twice with the first two, and once with the third.
    assert {c.client: dict(c.again) for c in view.clients} == {
        A: {1: 1},
        B: {1: 1},
        C: {},
    }
    # A head leaves the server: without a salt it would test a guess of the cohort.
    found = salts(store)
    assert ({len(salt) for salt in found}, len(set(found)), len(found)) == ({32}, 8, 8)
    engine = transaction.reading_engine(transaction.parse_url(durable_url))
    with pytest.raises(DBAPIError, match=r"read-?only"), engine.begin() as connection:
        connection.execute(text("DELETE FROM ledger"))
    engine.dispose()
    store.attempts.finish(7, NEXT)
    prepared(store, 8, 3)
    assert (read_training(durable_url).entries, findings(durable_url)) == (9, [])


def test_an_entrys_hash_is_as_documented(url: str, opener: Opener, task: Task) -> None:
    """From nothing but hashlib, so that it stays the same across versions."""

    def hash_of(purpose: str, *parts: bytes | int) -> bytes:
        whole = [b"precad/v1/" + purpose.encode()]
        whole += [struct.pack("<Q", p) if isinstance(p, int) else p for p in parts]
        return hashlib.sha256(
            b"".join(struct.pack("<I", len(p)) + p for p in whole)
        ).digest()

    store = opener(url)
    prepared(store, 4, 2)
    (salt,) = salts(store)
    start = hash_of("ledger", task.digest.value, b"server-a")
    rate = (0.2).hex().encode()  # not enrolled here: charged at the task's rate
    entry = (start, 1, b"prepared", 4, 2, (2.0).hex().encode(), VALID_SET.value)
    share = hashlib.sha256(bytes(range(64))).digest()
    head = hash_of(
        "ledger-entry", *entry, share, salt, b"ward-a", rate, b"ward-b", rate
    )
    assert read_training(url).head.value == head


CHARGE = "INSERT INTO charge (attempt, client, record_rate, sequence) VALUES"
TWICE = "sums of ward-a: name 9 versions that were released 1 + 0 times, the charges 1"
SHOWN = """
INSERT INTO shown (client, version, model, attempt, charged, opened, known)
SELECT 'ward-a', 2, model, 1, '[1]', 0, 7 FROM attempt WHERE attempt = 0
"""


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        (
            (
                "UPDATE charge SET client = 'ward-c' WHERE attempt = 0 AND client ="
                " 'ward-b'"
            ),
            "entry 1",
        ),
        ("UPDATE charge SET record_rate = 0.01 WHERE client = 'ward-a'", "entry 1"),
        ("DELETE FROM charge WHERE attempt = 0 AND client = 'ward-a'", "entry 1"),
        ("DELETE FROM charge WHERE attempt = 5", "entry 5"),
        (f"{CHARGE} (1, 'ward-a', 0.2, 2)", "entry 2"),
        (
            f"{CHARGE} (8, 'ward-a', 0.2, 77)",
            "charge: has a row that belongs to no row of ledger",
        ),
        (
            "UPDATE charge SET sequence = 6 WHERE attempt = 0 AND client = 'ward-a'",
            "entry 1",
        ),
        ("UPDATE ledger SET noise_multiplier = 4 WHERE sequence = 3", "entry 3"),
        ("UPDATE ledger SET attempt = 2 WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET version = 9 WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET event = 'learned' WHERE sequence = 1", "entry 1"),
        (
            "UPDATE ledger SET event = 'gift' WHERE sequence = 1",
            "entry 1 can't be read",
        ),
        ("UPDATE ledger SET salt = previous WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET salt = NULL WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET event = 'voided' WHERE sequence = 4", "entry 4"),
        ("UPDATE ledger SET valid_set = share_digest WHERE sequence = 1", "entry 1"),
        (
            "UPDATE ledger SET previous = hash WHERE sequence = 3",
            "entry 3: doesn't follow",
        ),
        (
            "UPDATE ledger SET hash = previous WHERE sequence = 3",
            "entry 4: doesn't follow",
        ),
        ("DELETE FROM ledger WHERE sequence = 1", "entry 2: entry 1 is missing"),
        ("DELETE FROM ledger WHERE sequence = 3", "entry 4: entry 3 is missing"),
        (
            "DELETE FROM ledger WHERE sequence = 8",
            "ledger: has 7 entries where 8 were written",
        ),
        ("DELETE FROM ledger", "ledger: has 0 entries"),
        (
            "UPDATE task SET ledger_head = (SELECT hash FROM ledger)",
            "ledger: doesn't end",
        ),
        ("UPDATE attempt SET state = 'abandoned' WHERE attempt = 7", "attempt 7"),
        (
            "UPDATE attempt SET state = 'voided' WHERE attempt = 7",
            "attempt 7: is voided, and",
        ),
        ("UPDATE attempt SET state = 'done' WHERE attempt = 3", "attempt 3"),
        ("UPDATE attempt SET state = 'learned' WHERE attempt = 0", "attempt 0"),
        ("UPDATE attempt SET state = 'written-off' WHERE attempt = 0", "attempt 0"),
        ("UPDATE attempt SET state = 'written-off' WHERE attempt = 2", "attempt 2"),
        ("UPDATE attempt SET state = 'voided' WHERE attempt = 2", "attempt 2"),
        ("UPDATE attempt SET state = 'voided' WHERE attempt = 5", "attempt 5"),
        (
            "UPDATE attempt SET state = 'sent' WHERE attempt = 6",
            "attempt 6: is sent, and",
        ),
        (
            "UPDATE attempt SET state = 'done' WHERE attempt = 6",
            "attempt 6: is done, and",
        ),
        (
            "UPDATE attempt SET version = 8 WHERE attempt = 7",
            "belongs to no row of attempt",
        ),
        ("UPDATE noisy_share SET share = x'00'", "attempt 0: its noisy"),
        ("DELETE FROM noisy_share WHERE attempt = 0", "attempt 0: its noisy"),
        (
            "UPDATE attempt SET valid_set = model WHERE attempt = 0",
            "attempt 0: its valid set",
        ),
        ("DELETE FROM attempt WHERE attempt = 5", "table ledger: has a row that"),
        (
            "INSERT INTO rejection VALUES (8, 'ward-a', 'absent', NULL)",
            "table rejection: has a row that",
        ),
        ("UPDATE attempt SET state = 'odd' WHERE attempt = 2", "what no server writes"),
        (
            "DELETE FROM rejection WHERE attempt = 1 AND client = 'ward-b'",
            "attempt 1: of a cohort",
        ),
        (
            "UPDATE enrolment SET record_rate = 0.15 WHERE client = 'ward-b'",
            "entry 1: charges",
        ),
        (
            "UPDATE task SET role = 'server-b'",
            "entry 1: doesn't follow on the entry before it",
        ),
        # The sums that rounds go by are of the charges, and nothing else.
        ("UPDATE participation SET versions = 9 WHERE re_releases = 0", TWICE),
        (
            "DELETE FROM participation WHERE re_releases = 1",
            "sums of ward-b: name 0 versions",
        ),
        (
            "UPDATE task SET opened = 5",
            "opened attempts: their sum is 5, the versions have 0",
        ),
        (SHOWN, "statement of ward-a: counts 7 charged versions, the ledger 1"),
    ],
)
def test_a_change_shows(played: str, statement: str, found: str) -> None:
    # A second release of one version is refused by an index; a tamperer would drop it.
    tamper(played, "DROP INDEX one_release_of_a_version", statement)
    said = findings(played)
    assert any(found in finding for finding in said), said


def test_a_noisy_share_may_be_gone_once_both_hold_the_model(
    url: str, opener: Opener
) -> None:
    store = opener(url)
    for number in range(3):
        released(store, number, number)
    store.versions.confirm(2)
    store.close()
    assert findings(url) == []
    gone = "its noisy share isn't the one that was released"
    tamper(url, "DELETE FROM noisy_share")
    assert findings(url) == [f"attempt 2: {gone}"]
    # One that is there is looked at, whatever its age.
    tamper(
        url,
        "INSERT INTO noisy_share (attempt, share) SELECT 0, model FROM attempt LIMIT 1",
    )
    assert f"attempt 0: {gone}" in findings(url)


def test_an_attempt_that_the_ledger_does_not_name_shows(played: str) -> None:
    states = (
        "prepared",
        "countersigned",
        "sent",
        "done",
        "written-off",
        "learned",
        "voided",
    )
    columns, expected = (
        "INSERT INTO attempt (attempt, version, state, cohort_size, model)",
        [],
    )
    for n, state in enumerate(states, 8):
        tamper(
            played,
            f"{columns} SELECT {n}, {n}, '{state}', 3, model FROM attempt LIMIT 1",
        )
        expected.append(f"attempt {n}: is {state}, and the ledger doesn't name it")
    assert findings(played) == expected


def test_cutting_the_end_off_everywhere_shows_against_a_noted_head(played: str) -> None:
    """Whoever may write to the database can make a shorter ledger sound; not one noted before."""
    noted = audit_ledger(played).head
    tables = ("charge", "ledger", "rejection", "noisy_share", "attempt")
    tamper(
        played,
        *(f"DELETE FROM {each} WHERE attempt = 7" for each in tables),
        "DELETE FROM participation WHERE re_releases = 1",
        "UPDATE participation SET versions = 2 WHERE client != 'ward-c'",
        "UPDATE task SET ledger_length = 7, "
        "ledger_head = (SELECT hash FROM ledger WHERE sequence = 7)",
    )
    assert findings(played) == []
    (finding,) = audit_ledger(played, noted).findings
    assert str(noted) in finding.what


def test_a_head_noted_earlier_stays_in_a_ledger_that_grew(
    url: str, opener: Opener
) -> None:
    store = stores.enrolled(opener(url))
    # Nothing was released yet, and cost nobody anything.
    assert [c["epsilon"] for c in document("ledger", "show", url)["clients"]] == [
        0.0
    ] * 3
    heads = [audit_ledger(url).head]
    for number in range(3):
        released(store, number, number)
        heads.append(audit_ledger(url).head)
    assert len(set(heads)) == 4
    assert all(audit_ledger(url, head).findings == () for head in heads)
    # A sound chain over another noise shows.
    store.ledger._task = small_task(8, {"privacy.noise_multiplier": 4.0})
    prepared(store, 3, 3)
    assert findings(url) == ["entry 4: has noise multiplier 4.0, the task 2.0"]


def test_show_gives_exact_epsilon_by_client(played: str, task: Task) -> None:
    shown = document("ledger", "show", played)
    by_client = {row["client"]: row for row in shown["clients"]}
    sigma = task.privacy.noise_multiplier
    for name, rate, again in (
        ("ward-a", 0.2, 1),
        ("ward-b", 0.1, 1),
        ("ward-c", 1 / 30, 0),
    ):
        # A version that may have left twice is one step with σ/√2, not two steps with
        # σ.
        accountant, row = ExactAccountant(), by_client[name]
        for noise, count in ((sigma, 1), (sigma / math.sqrt(2), again)):
            if count:
                accountant.compose(
                    poisson_gaussian(rate=rate, noise_multiplier=noise, count=count)
                )
        exact = accountant.epsilon(task.privacy.delta)
        assert row["epsilon"] == pytest.approx(exact, rel=1e-12)
        names = ("participations", "record_rate", "released_again", "cap", "remaining")
        repeats = {"1": 1} if again else {}
        assert [row[each] for each in names] == [1 + again, rate, repeats, None, None]
    totals = {
        "clients": 3,
        "participations": 5,
        "rounds_released": 2,
        "attempts_written_off": 1,
    }
    totals |= {"rounds": 10, "epsilon_max": by_client["ward-a"]["epsilon"]}
    assert shown["totals"] == totals
    assert shown["head"] == str(audit_ledger(played).head)
    said = precad("ledger", "show", played).stdout
    words = (
        "no limit",
        "ward-c",
        "3 clients, 5 participations",
        "1 written off",
        shown["head"],
    )
    assert all(each in said for each in words), said
    assert precad("ledger", "verify", played).stdout.startswith("sound: ")
    # A ledger is compared with the other server's.
    assert "--against" in refused("ledger", "verify", played, "--against", played)


def test_show_tells_what_remains_below_the_limit(
    tmp_path: Path, url: str, opener: Opener
) -> None:
    task = small_task(8, {"privacy.epsilon_limit": 1.5})
    store = opener(url, task=task)
    prepared(store)
    step = poisson_gaussian(rate=0.2, noise_multiplier=2.0)
    cap = most_participations(step, delta=1e-5, epsilon_limit=1.5, ceiling=10)
    assert 1 < cap < 10
    (row,) = document("ledger", "show", tmp_path, "--client", "ward-b")["clients"]
    assert (row["client"], row["cap"], row["remaining"]) == ("ward-b", cap, cap - 1)
    # The same version may have left twice, and for that the limit has no room: whoever
    # chose the version saw what came before.
    store.attempts.end(0, AttemptState.WRITTEN_OFF)
    prepared(store, 1)
    (row,) = document("ledger", "show", tmp_path, "--client", "ward-b")["clients"]
    assert (row["participations"], row["released_again"]) == (1, {"1": 1})
    assert row["remaining"] == 0


def test_show_tells_what_remains_where_a_version_may_have_left_twice(
    tmp_path: Path, url: str, opener: Opener
) -> None:
    limit = 3.0
    store = opener(url, task=small_task(8, {"privacy.epsilon_limit": limit}))
    prepared(store)
    store.attempts.end(0, AttemptState.WRITTEN_OFF)
    prepared(store, 1)
    step = poisson_gaussian(rate=0.2, noise_multiplier=2.0)
    every = composed(*steps_as_chosen(step, versions=10, further=1))
    assert every.epsilon(1e-5) <= limit
    (row,) = document("ledger", "show", tmp_path, "--client", "ward-b")["clients"]
    assert (row["released_again"], row["remaining"]) == ({"1": 1}, 9)


def test_show_has_the_declared_number_of_owners_and_one(
    tmp_path: Path, url: str, opener: Opener
) -> None:
    store = opener(url, task=small_task(8, {"privacy.owners_per_unit": 2}))
    prepared(store)
    (row,) = document("ledger", "show", tmp_path, "--client", "ward-b")["clients"]
    step = poisson_gaussian(rate=0.2, noise_multiplier=2.0)
    assert row["epsilon_at_one"] == pytest.approx(composed(step).epsilon(1e-5))
    at_two = composed(replace(step, owners=2)).epsilon(1e-5)
    assert row["epsilon"] == pytest.approx(at_two)
    shown = " ".join(precad("ledger", "show", tmp_path).stdout.split())
    assert "exact ε of one record at up to 2 owners against" in shown
    assert "ε at one owner" in shown


def test_a_wrong_value_is_explained(tmp_path: Path, url: str, opener: Opener) -> None:
    with pytest.raises(errors.Misconfiguration, match="no such file"):
        read_training(url)
    assert list(tmp_path.iterdir()) == []
    opener(url).close()
    for command in ("show", "verify"):
        assert "isn't a server's state folder" in refused(
            "ledger", command, tmp_path / "nowhere"
        )
        # Of a whole run's folder, as `precad setup` makes it, its servers' are named.
        run = tmp_path / "run"
        for server in ("server-a", "server-b"):
            (run / "state" / server).mkdir(parents=True, exist_ok=True)
            (run / "state" / server / "state.db").touch()
        told = refused("ledger", command, run)
        assert f"give {run / 'state' / 'server-a'} or {run / 'state'}" in told
        assert "state/server-a or " in refused("ledger", command, run / "state")
    asked = refused("ledger", "show", tmp_path, "--client", "ward-z")
    assert "neither enrolled nor charged" in asked
    assert "64 hexadecimal digits" in refused(
        "ledger", "verify", tmp_path, "--head", "f00"
    )
    tamper(url, "UPDATE task SET digest = 'f00'")
    with pytest.raises(
        errors.StorageFailure, match="isn't the one that its digest names"
    ):
        audit_ledger(url)


def test_verify_says_sound_or_what_broke_and_where(played: str) -> None:
    head = str(audit_ledger(played).head)
    done = precad("ledger", "verify", played, "--head", head)
    assert (done.exit_code, done.output) == (0, f"sound: 8 entries, head {head}\n")
    sound = {"sound": True, "entries": 8, "head": head, "findings": []}
    sound["schema"] = NEWEST
    assert document("ledger", "verify", played) == sound
    tamper(played, "DELETE FROM charge WHERE attempt = 0 AND client = 'ward-a'")
    done, listed = (
        precad("ledger", "verify", played, *how) for how in ((), ("--json",))
    )
    assert (done.exit_code, listed.exit_code) == (1, 1)
    assert "BROKEN: 8 entries" in done.output
    assert "entry 1: its content or its charges were changed\n" in done.output
    found = json.loads(listed.output)
    assert (found["sound"], found["findings"][0]["where"]) == (False, "entry 1")
