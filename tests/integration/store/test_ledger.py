"""The ledger's chain: sound after anything that a server does, broken by anything else."""

import hashlib
import json
import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from tests.integration.store.conftest import (
    NEXT,
    VALID_SET,
    A,
    B,
    Bind,
    C,
    Opener,
    Prepare,
    charge,
    tamper,
)
from tests.rig.commands import precad

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant, most_participations
from precad.aggregator.rounds.privacy_cap import epsilon_spent
from precad.aggregator.store import Store, audit_ledger, open_store, read_training
from precad.aggregator.store.transaction import parse_url, reading_engine
from precad.common.errors import Misconfiguration, Rejection, StorageFailure
from precad.common.identifiers import Role
from precad.common.task import Task

CHARGE = "INSERT INTO charge (attempt, client, record_rate, sequence) VALUES"


@pytest.fixture(scope="module")
def play(
    task: Task, enrolled: Callable[[Store], Store], prepared: Prepare, bind: Bind
) -> Callable[[str], str]:
    """A training with everything in it: done, empty, abandoned, voided, lost, learned, sent."""

    def run(url: str) -> str:
        store = enrolled(open_store(url, task, Role.SERVER_A, None))
        prepared(store, 0, version=0)
        bind(store, 0)
        store.attempts.finish(0, NEXT)
        store.attempts.begin(1, 1, 2, NEXT)
        reasons = {A: Rejection.ABSENT, B: Rejection.NORM_EXCEEDED}
        store.attempts.prepare(1, [], VALID_SET, reasons, bytes(64))
        store.attempts.finish(1, NEXT)
        store.attempts.begin(2, 2, 3, NEXT)
        store.attempts.abandon_open()
        prepared(store, 3, version=2)
        bind(store, 3, 2)
        store.attempts.write_off(3)
        store.attempts.learn([charge(5, 2, C)])
        prepared(store, 6, version=2)
        store.attempts.void(2, 6)
        prepared(store, 7, version=2)
        bind(store, 7, 2)
        store.close()
        return url

    return run


@pytest.fixture(scope="module")
def played_file(tmp_path_factory: pytest.TempPathFactory, play: Callable[[str], str]) -> Path:
    file = tmp_path_factory.mktemp("played") / "state.db"
    play(f"sqlite:///{file}")
    return file


@pytest.fixture
def played_url(played_file: Path, tmp_path: Path) -> str:
    """A copy of such a training in SQLite, which a test may spoil in its own way."""
    shutil.copy(played_file, tmp_path / "state.db")
    return f"sqlite:///{tmp_path}/state.db"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


def invoke(*arguments: object) -> tuple[int, str]:
    done = precad("ledger", *arguments)
    return done.exit_code, done.output


def findings(url: str) -> list[str]:
    return [f"{finding.where}: {finding.what}" for finding in audit_ledger(url).findings]


def test_what_a_server_writes_is_sound_and_a_reader_cannot_change_it(
    durable_url: str, play: Callable[[str], str]
) -> None:
    played_url = play(durable_url)
    audit = audit_ledger(played_url)
    assert audit.findings == ()
    # Attempts 0, 1, 3, its loss, 5, 6, its void, 7: attempt 2 left nothing.
    assert audit.entries == 8
    view = read_training(played_url)
    assert (len(view.versions), view.written_off) == (2, 1)
    assert (view.role, view.head) == (Role.SERVER_A, audit.head)
    assert {c.client: c.participations for c in view.clients} == {A: 2, B: 2, C: 1}
    # Version 2 may have left twice with the first two, and once with the third.
    assert {c.client: dict(c.again) for c in view.clients} == {A: {1: 1}, B: {1: 1}, C: {}}
    # A head leaves the server: without a salt it would test a guess of the cohort.
    found = salts(played_url)
    assert None not in found
    assert len(set(found)) == len(found) == 8
    engine = reading_engine(parse_url(played_url))
    with pytest.raises(DBAPIError, match=r"read-?only"), engine.begin() as connection:
        connection.execute(text("DELETE FROM ledger"))
    engine.dispose()
    assert findings(played_url) == []


def test_an_empty_ledger_is_sound_and_cost_nobody_anything(
    url: str, tmp_path: Path, opener: Opener, enrolled: Callable[[Store], Store]
) -> None:
    enrolled(opener(url))
    audit = audit_ledger(url)
    assert (audit.entries, audit.findings) == (0, ())
    _, output = invoke("show", str(tmp_path), "--json")
    assert [row["epsilon"] for row in json.loads(output)["clients"]] == [0.0] * 3


def hash_of(purpose: str, *parts: bytes | int) -> bytes:
    """From nothing but hashlib, so that it stays the same across versions."""
    whole = [b"precad/v1/" + purpose.encode()]
    whole += [struct.pack("<Q", p) if isinstance(p, int) else p for p in parts]
    return hashlib.sha256(b"".join(struct.pack("<I", len(p)) + p for p in whole)).digest()


def salts(url: str) -> list[bytes | None]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT salt FROM ledger ORDER BY sequence")).scalars()
        made = [None if salt is None else bytes(salt) for salt in found]
    engine.dispose()
    return made


def test_an_entrys_hash_is_as_documented(
    url: str, opener: Opener, prepared: Prepare, task: Task
) -> None:
    store = opener(url)
    prepared(store, 4, version=2)
    (salt,) = salts(url)
    assert salt is not None
    assert len(salt) == 32
    start = hash_of("ledger", task.digest.value, b"server-a")
    rate = (0.2).hex().encode()  # not enrolled here: charged at the task's rate
    entry = (start, 1, b"prepared", 4, 2, (2.0).hex().encode(), VALID_SET.value)
    share = hashlib.sha256(bytes(range(64))).digest()
    head = hash_of("ledger-entry", *entry, share, salt, b"ward-a", rate, b"ward-b", rate)
    assert read_training(url).head.value == head


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE charge SET client = 'ward-c' WHERE attempt = 0 AND client = 'ward-b'", "entry 1"),
        ("UPDATE charge SET record_rate = 0.01 WHERE client = 'ward-a'", "entry 1"),
        ("DELETE FROM charge WHERE attempt = 0 AND client = 'ward-a'", "entry 1"),
        ("DELETE FROM charge WHERE attempt = 5", "entry 5"),
        (f"{CHARGE} (1, 'ward-a', 0.2, 2)", "entry 2"),
        (
            f"{CHARGE} (8, 'ward-a', 0.2, 77)",
            "table charge: has a row that belongs to no row of ledger",
        ),
        ("UPDATE charge SET sequence = 6 WHERE attempt = 0 AND client = 'ward-a'", "entry 1"),
        ("UPDATE ledger SET noise_multiplier = 4 WHERE sequence = 3", "entry 3"),
        ("UPDATE ledger SET attempt = 2 WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET version = 9 WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET event = 'learned' WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET event = 'gift' WHERE sequence = 1", "entry 1 can't be read"),
        ("UPDATE ledger SET salt = previous WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET salt = NULL WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET event = 'voided' WHERE sequence = 4", "entry 4"),
        ("UPDATE ledger SET valid_set = share_digest WHERE sequence = 1", "entry 1"),
        ("UPDATE ledger SET previous = hash WHERE sequence = 3", "entry 3: doesn't follow"),
        ("UPDATE ledger SET hash = previous WHERE sequence = 3", "entry 4: doesn't follow"),
        ("DELETE FROM ledger WHERE sequence = 1", "entry 2: entry 1 is missing"),
        ("DELETE FROM ledger WHERE sequence = 3", "entry 4: entry 3 is missing"),
        ("DELETE FROM ledger WHERE sequence = 8", "ledger: has 7 entries where 8 were written"),
        ("DELETE FROM ledger", "ledger: has 0 entries"),
        (
            "UPDATE task SET ledger_head = (SELECT hash FROM ledger WHERE sequence = 1)",
            "ledger: doesn't end",
        ),
        ("UPDATE attempt SET state = 'abandoned' WHERE attempt = 7", "attempt 7"),
        ("UPDATE attempt SET state = 'voided' WHERE attempt = 7", "attempt 7: is voided, and"),
        ("UPDATE attempt SET state = 'done' WHERE attempt = 3", "attempt 3"),
        ("UPDATE attempt SET state = 'learned' WHERE attempt = 0", "attempt 0"),
        ("UPDATE attempt SET state = 'written-off' WHERE attempt = 0", "attempt 0"),
        ("UPDATE attempt SET state = 'written-off' WHERE attempt = 2", "attempt 2"),
        ("UPDATE attempt SET state = 'voided' WHERE attempt = 2", "attempt 2"),
        ("UPDATE attempt SET state = 'voided' WHERE attempt = 5", "attempt 5"),
        ("UPDATE attempt SET state = 'sent' WHERE attempt = 6", "attempt 6: is sent, and"),
        ("UPDATE attempt SET state = 'done' WHERE attempt = 6", "attempt 6: is done, and"),
        (
            "UPDATE attempt SET version = 8 WHERE attempt = 7",
            "table ledger: has a row that belongs to no row of attempt",
        ),
        (
            "UPDATE noisy_share SET share = (SELECT model FROM attempt WHERE attempt = 0)",
            "attempt 0: its noisy",
        ),
        ("DELETE FROM noisy_share WHERE attempt = 0", "attempt 0: its noisy"),
        ("UPDATE attempt SET valid_set = model WHERE attempt = 0", "attempt 0: its valid set"),
        ("DELETE FROM attempt WHERE attempt = 5", "table ledger: has a row that"),
        (
            "INSERT INTO rejection (attempt, client, reason) VALUES (8, 'ward-a', 'absent')",
            "table rejection: has a row that",
        ),
        ("UPDATE attempt SET state = 'odd' WHERE attempt = 2", "what no server writes"),
        ("DELETE FROM rejection WHERE attempt = 1 AND client = 'ward-b'", "attempt 1: of a cohort"),
        ("UPDATE enrolment SET record_rate = 0.15 WHERE client = 'ward-b'", "entry 1: charges"),
        ("UPDATE task SET role = 'server-b'", "entry 1: doesn't follow on the entry before it"),
        # The sums that rounds go by are of the charges, and nothing else.
        (
            "UPDATE participation SET versions = 9 WHERE client = 'ward-a' AND re_releases = 0",
            "sums of ward-a: name 9 versions that were released 1 + 0 times, the charges 1",
        ),
        ("DELETE FROM participation WHERE re_releases = 1", "sums of ward-b: name 0 versions"),
        ("UPDATE task SET opened = 5", "opened attempts: their sum is 5, the versions have 0"),
        (
            (
                "INSERT INTO shown (client, version, model, attempt, charged, opened, known) "
                "SELECT 'ward-a', 2, model, 1, '[1]', 0, 7 FROM attempt WHERE attempt = 0"
            ),
            "statement of ward-a: counts 7 charged versions, the ledger 1",
        ),
    ],
)
def test_a_change_shows(played_url: str, statement: str, found: str) -> None:
    # A second release of one version is refused by an index; a tamperer would drop it.
    tamper(played_url, "DROP INDEX one_release_of_a_version", statement)
    said = findings(played_url)
    assert any(found in finding for finding in said), said


def test_a_noisy_share_may_be_gone_once_both_servers_hold_the_model_and_no_sooner(
    url: str, opener: Opener, prepared: Prepare
) -> None:
    store = opener(url)
    for number in range(3):
        prepared(store, number, version=number)
        store.attempts.finish(number, NEXT)
    store.versions.confirm(2)
    store.close()
    assert findings(url) == []
    gone = "its noisy share isn't the one that was released"
    tamper(url, "DELETE FROM noisy_share")
    assert findings(url) == [f"attempt 2: {gone}"]
    # One that is there is looked at, whatever its age.
    tamper(url, "INSERT INTO noisy_share (attempt, share) SELECT 0, model FROM attempt LIMIT 1")
    assert f"attempt 0: {gone}" in findings(url)


def test_an_attempt_that_the_ledger_does_not_name_shows(played_url: str) -> None:
    states = ("prepared", "countersigned", "sent", "done", "written-off", "learned", "voided")
    for number, state in enumerate(states, 8):
        tamper(
            played_url,
            "INSERT INTO attempt (attempt, version, state, cohort_size, model) "
            f"SELECT {number}, {number}, '{state}', 3, model FROM attempt WHERE attempt = 0",
        )
    assert findings(played_url) == [
        f"attempt {number}: is {state}, and the ledger doesn't name it"
        for number, state in enumerate(states, 8)
    ]


def test_cutting_the_end_off_everywhere_shows_against_a_noted_head(played_url: str) -> None:
    """Whoever may write to the database can make a shorter ledger sound; not one noted before."""
    noted = audit_ledger(played_url).head
    tamper(
        played_url,
        "DELETE FROM charge WHERE attempt = 7",
        "DELETE FROM ledger WHERE sequence = 8",
        "DELETE FROM rejection WHERE attempt = 7",
        "DELETE FROM noisy_share WHERE attempt = 7",
        "DELETE FROM attempt WHERE attempt = 7",
        "DELETE FROM participation WHERE re_releases = 1",
        "UPDATE participation SET versions = 2 WHERE client != 'ward-c'",
        "UPDATE task SET ledger_length = 7, "
        "ledger_head = (SELECT hash FROM ledger WHERE sequence = 7)",
    )
    assert findings(played_url) == []
    (finding,) = audit_ledger(played_url, noted).findings
    assert str(noted) in finding.what


def test_a_head_noted_earlier_stays_in_a_ledger_that_grew(
    url: str, opener: Opener, prepared: Prepare
) -> None:
    store = opener(url)
    heads = [audit_ledger(url).head]
    for number in range(3):
        prepared(store, number, version=number)
        store.attempts.finish(number, NEXT)
        heads.append(audit_ledger(url).head)
    assert len(set(heads)) == 4
    assert all(audit_ledger(url, head).findings == () for head in heads)


def test_a_sound_chain_over_another_noise_shows(
    url: str, opener: Opener, make_task: Callable[..., Task], prepared: Prepare
) -> None:
    store = opener(url)
    store.ledger._task = make_task(8, {"privacy.noise_multiplier": 4.0})
    prepared(store)
    assert findings(url) == ["entry 1: has noise multiplier 4.0, the task 2.0"]


def test_another_task_in_this_ones_place_shows(played_url: str) -> None:
    tamper(played_url, "UPDATE task SET digest = 'f00'")
    with pytest.raises(StorageFailure, match="isn't the one that its digest names"):
        audit_ledger(played_url)


def test_reading_changes_nothing_and_needs_no_lock(
    durable_url: str, opener: Opener, prepared: Prepare
) -> None:
    store = opener(durable_url)
    prepared(store)
    assert read_training(durable_url).entries == 1
    store.attempts.finish(0, NEXT)
    prepared(store, 1, version=1)
    assert (read_training(durable_url).entries, audit_ledger(durable_url).findings) == (2, ())


def test_there_must_be_a_ledger(tmp_path: Path, url: str) -> None:
    with pytest.raises(Misconfiguration, match="no such file"):
        read_training(url)
    assert list(tmp_path.iterdir()) == []


def test_show_gives_exact_epsilon_by_client(played_url: str, task: Task) -> None:
    status, output = invoke("show", played_url, "--json")
    assert status == 0
    document = json.loads(output)
    shown = {row["client"]: row for row in document["clients"]}
    once, twice = {"1": 0}, {"1": 1}
    for name, rate, count, again in (
        ("ward-a", 0.2, 2, twice),
        ("ward-b", 0.1, 2, twice),
        ("ward-c", 1 / 30, 1, once),
    ):
        assert (shown[name]["participations"], shown[name]["record_rate"]) == (count, rate)
        # A version that may have left twice is one step with σ/√2, not two steps with σ.
        accountant = ExactAccountant()
        sigma = task.privacy.noise_multiplier
        steps = {sigma: count - again["1"], sigma / math.sqrt(2): again["1"]}
        for noise, number in steps.items():
            if number:
                accountant.compose(
                    poisson_gaussian(rate=rate, noise_multiplier=noise, count=number)
                )
        assert shown[name]["released_again"] == {m: n for m, n in again.items() if n}
        assert shown[name]["epsilon"] == pytest.approx(
            accountant.epsilon(task.privacy.delta), rel=1e-12
        )
        assert (shown[name]["cap"], shown[name]["remaining"]) == (None, None)
    assert document["totals"] == {
        "clients": 3,
        "participations": 5,
        "epsilon_max": shown["ward-a"]["epsilon"],
        "rounds_released": 2,
        "attempts_written_off": 1,
        "rounds": 10,
    }
    assert document["head"] == str(audit_ledger(played_url).head)


def test_show_tells_what_remains_below_the_limit(
    tmp_path: Path, opener: Opener, make_task: Callable[..., Task], prepared: Prepare
) -> None:
    task = make_task(8, {"privacy.epsilon_limit": 1.5})
    store = opener(f"sqlite:///{tmp_path}/state.db", task=task)
    prepared(store)
    cap = most_participations(
        record_rate=0.2, noise_multiplier=2.0, delta=1e-5, epsilon_limit=1.5, ceiling=10
    )
    assert 1 < cap < 10
    _, output = invoke("show", str(tmp_path), "--client", "ward-b", "--json")
    (row,) = json.loads(output)["clients"]
    assert (row["client"], row["cap"], row["remaining"]) == ("ward-b", cap, cap - 1)
    store.attempts.write_off(0)
    prepared(store, 1)
    # The same version may have left twice: it costs more than one participation of the cap.
    _, output = invoke("show", str(tmp_path), "--client", "ward-b", "--json")
    (row,) = json.loads(output)["clients"]
    assert (row["participations"], row["released_again"]) == (1, {"1": 1})
    left = row["remaining"]
    assert 0 < left < cap - 1
    assert epsilon_spent(task, 0.2, 1 + left, {1: 1}) <= 1.5
    assert epsilon_spent(task, 0.2, 2 + left, {1: 1}) > 1.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "{folder}/nowhere"), "isn't a server's state folder"),
        (("verify", "{folder}/nowhere"), "isn't a server's state folder"),
        (("show", "{folder}", "--client", "ward-z"), "neither enrolled nor charged"),
        (("verify", "{folder}", "--head", "f00"), "64 hexadecimal digits"),
    ],
)
def test_a_wrong_value_is_explained(
    tmp_path: Path, opener: Opener, arguments: tuple[str, ...], says: str
) -> None:
    opener(f"sqlite:///{tmp_path}/state.db").close()
    status, output = invoke(*(argument.format(folder=tmp_path) for argument in arguments))
    assert status == 2
    assert says in output


def test_verify_says_sound_and_exits_0(played_url: str) -> None:
    head = str(audit_ledger(played_url).head)
    assert invoke("verify", played_url, "--head", head) == (0, f"sound: 8 entries, head {head}\n")
    status, output = invoke("verify", played_url, "--json")
    assert status == 0
    assert json.loads(output) == {"sound": True, "entries": 8, "head": head, "findings": []}


def test_verify_says_what_broke_and_where_and_exits_1(played_url: str) -> None:
    tamper(played_url, "DELETE FROM charge WHERE attempt = 0 AND client = 'ward-a'")
    status, output = invoke("verify", played_url)
    assert (status, "BROKEN: 8 entries" in output) == (1, True)
    assert "entry 1: its content or its charges were changed\n" in output
    status, output = invoke("verify", played_url, "--json")
    found = json.loads(output)
    assert (status, found["sound"], found["findings"][0]["where"]) == (1, False, "entry 1")
