"""Who may enrol: anyone, those on the operator's roster, or who brings a one-time token."""

import base64
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TaskMaker

from precad.aggregator.enrol.admission import (
    Admission,
    ByToken,
    Listed,
    admission_of,
    new_token,
    token_digest,
)
from precad.aggregator.enrol.register import Register
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.settings import ServerBSettings
from precad.aggregator.store import open_store
from precad.common.errors import AccessDenied, Misconfiguration
from precad.common.identifiers import ClientId, Role
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
CLAIM, OTHER = Enrolment(ONE, 100, 0.2), Enrolment(TWO, 100, 0.2)


@pytest.fixture(scope="module")
def task(make_task: TaskMaker) -> Task:
    return make_task(8, {"enrolment.clients": 2})


@pytest.fixture
def book(tmp_path: Path) -> ByToken:
    return ByToken(tmp_path / "state")


def issue(book: ByToken) -> str:
    token = new_token()
    book.add(token_digest(token))
    return token


# --- tokens ------------------------------------------------------------------------------------


def test_tokens_are_32_fresh_bytes_of_base32() -> None:
    tokens = {new_token() for _ in range(50)}
    assert len(tokens) == 50
    assert {len(base64.b32decode(token + "====")) for token in tokens} == {32}


def test_a_token_is_its_first_users_and_nobody_elses(book: ByToken) -> None:
    token = issue(book)
    book.redeem(token, ONE)
    # Again, as after a restart.
    book.redeem(token, ONE)
    with pytest.raises(AccessDenied, match="another client"):
        book.redeem(token, TWO)
    assert [*book.owners().values()] == [ONE.name]


def test_a_token_is_not_made_for_two(book: ByToken) -> None:
    digest = token_digest(new_token())
    book.add(digest, ONE)
    with pytest.raises(Misconfiguration, match="another client's"):
        book.add(digest, TWO)
    book.add(digest, ONE)
    assert [*book.owners().values()] == [ONE.name]


def test_who_was_let_in_by_name_is_missing_until_it_enrols(task: Task, book: ByToken) -> None:
    tokens = {client: new_token() for client in (ONE, TWO)}
    for client, token in tokens.items():
        book.add(token_digest(token), client)
    unnamed = issue(book)
    enrolling = register(task, book)
    assert (enrolling.missing(), enrolling.unused_tokens()) == ([ONE, TWO], 1)
    enrolling.enrol(CLAIM, tokens[ONE])
    assert (enrolling.missing(), enrolling.unused_tokens()) == ([TWO], 1)
    enrolling.enrol(OTHER, unnamed)
    assert (enrolling.missing(), enrolling.unused_tokens()) == ([], 0)


def test_only_the_digest_is_kept(book: ByToken, tmp_path: Path) -> None:
    token = issue(book)
    book.redeem(token, ONE)
    raw = base64.b32decode(token + "====")
    kept = [path for path in (tmp_path / "state" / "tokens").iterdir() if path.is_file()]
    assert kept
    for path in kept:
        for secret in (token.encode(), raw, raw.hex().encode()):
            assert secret not in path.name.encode() + path.read_bytes()
    assert {path.stat().st_mode & 0o077 for path in kept if path.suffix == ""} == {0}


def test_case_and_blanks_around_do_not_matter(book: ByToken) -> None:
    book.redeem(f"  {issue(book).lower()}\n", ONE)


@pytest.mark.parametrize(
    "token",
    ["", "x", "A" * 52, "A" * 51, "1" * 52, "Ä" * 52, "../../x", "A" * 2_000_000, "\0" * 52],
)
def test_what_is_no_token_is_refused_without_repeating_it(book: ByToken, token: str) -> None:
    issue(book)
    with pytest.raises(AccessDenied) as denied:
        book.redeem(token, ONE)
    assert len(str(denied.value)) < 200
    assert len(token) < 20 or token not in str(denied.value)
    assert [*book.owners().values()] == [None]


def test_no_folder_means_no_tokens(book: ByToken) -> None:
    assert book.owners() == {}
    with pytest.raises(AccessDenied, match="no such token"):
        book.redeem(new_token(), ONE)


def test_of_many_who_redeem_at_once_one_wins(book: ByToken) -> None:
    token = issue(book)
    clients = [ClientId(f"c{i}") for i in range(16)]
    start = threading.Barrier(len(clients))
    won = []

    def redeem(client: ClientId) -> None:
        start.wait()
        try:
            book.redeem(token, client)
        except AccessDenied:
            return
        won.append(client.name)

    threads = [threading.Thread(target=redeem, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert [*book.owners().values()] == won


# --- the register asks -------------------------------------------------------------------------


def register(task: Task, admission: Any) -> Register:
    return Register(task, open_store("sqlite://", task, Role.SERVER_B), admission)


def test_a_token_is_not_spent_on_a_claim_that_is_refused(task: Task, book: ByToken) -> None:
    token = issue(book)
    enrolling = register(task, book)
    with pytest.raises(Misconfiguration, match="max_expected_records"):
        enrolling.enrol(Enrolment(TWO, 501, 0.2), token)
    assert enrolling.enrol(CLAIM, token) == 1
    # The first one may say it again, and nobody else.
    assert enrolling.enrol(CLAIM, token) == 1
    with pytest.raises(AccessDenied, match="another client"):
        enrolling.enrol(OTHER, token)
    assert list(enrolling.roster()) == [ONE]


@pytest.mark.parametrize("kind", ["token", "list", "frozen", "full"])
def test_no_account_is_computed_of_a_claim_that_is_refused(
    make_task: TaskMaker, book: ByToken, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds each: without a token, on no list, too late or one too many, it costs nothing."""
    changes = {"enrolment.clients": 1, "privacy.epsilon_limit": 4.0}
    task = make_task(8, {**changes, "enrolment.min_clients": 1})
    computed: list[float] = []
    monkeypatch.setattr(PrivacyCap, "precompute", lambda _cap, rate: computed.append(rate))
    admission = {"token": book, "list": Listed(Roster({ONE: CLAIM}))}.get(kind, Admission())
    register = Register(task, open_store("sqlite://", task, Role.SERVER_A), admission)
    if kind in ("frozen", "full"):
        register.enrol(CLAIM)
        computed.clear()
    if kind == "frozen":
        register.freeze(Roster({ONE: CLAIM}))
    for token in ("", new_token()):
        with pytest.raises((AccessDenied, Misconfiguration)):
            register.enrol(OTHER, token)
    assert computed == []


def test_a_doctor_hears_what_enrolling_would_and_spends_no_token(task: Task, book: ByToken) -> None:
    token = issue(book)
    enrolling = register(task, book)
    assert "brings no token" in enrolling.foresee(ONE, "")
    assert "no such token" in enrolling.foresee(ONE, new_token())
    assert "characters of base32" in enrolling.foresee(ONE, "guess")
    assert enrolling.foresee(ONE, token) == enrolling.foresee(TWO, token) == ""
    assert [*book.owners().values()] == [None]
    enrolling.enrol(CLAIM, token)
    # Of the enrolled one nothing is asked any more; of the others what enrolling would say.
    assert enrolling.foresee(ONE, "") == ""
    assert "another client" in enrolling.foresee(TWO, token)


def test_a_doctor_hears_whether_its_name_is_on_the_list_and_not_what_the_list_says(
    task: Task,
) -> None:
    enrolling = register(task, Listed(Roster({ONE: CLAIM})))
    assert enrolling.foresee(ONE, "") == ""
    assert enrolling.foresee(TWO, "") == f"client {TWO} isn't on the operator's roster"


def test_no_token_and_no_list_opens_a_frozen_roster(task: Task, book: ByToken) -> None:
    token = issue(book)
    for admission in (book, Listed(Roster({TWO: OTHER})), Admission()):
        store = open_store("sqlite://", task, Role.SERVER_B)
        store.enrolment.claim(CLAIM)
        enrolling = Register(task, store, admission)
        enrolling.freeze(Roster({ONE: CLAIM}))
        with pytest.raises(Misconfiguration, match="too late"):
            enrolling.enrol(OTHER, token)
    assert [*book.owners().values()] == [None]


def test_the_listed_enrol_with_what_the_list_says(task: Task) -> None:
    enrolling = register(task, Listed(Roster({ONE: CLAIM})))
    for claim in (Enrolment(ONE, 101, 0.2), Enrolment(ONE, 100, 0.1)):
        with pytest.raises(AccessDenied, match=r"says 100 at rate 0\.2"):
            enrolling.enrol(claim)
    with pytest.raises(AccessDenied, match="ward-2 isn't on the operator's roster"):
        enrolling.enrol(OTHER)
    assert enrolling.enrol(CLAIM) == 1


# --- the roster file and the settings ----------------------------------------------------------

ENTRY = '[[clients]]\nclient = "ward-1"\nrecords = 100\nrecord_rate = 0.2\n'


def test_a_roster_file_is_read(tmp_path: Path, task: Task) -> None:
    path = tmp_path / "roster.toml"
    path.write_text(ENTRY + ENTRY.replace("ward-1", "ward-2"))
    assert dict(Roster.load(path, task)) == {ONE: CLAIM, TWO: OTHER}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "clients"),
        ("clients = []", "0 clients"),
        (ENTRY * 2, "twice"),
        ("".join(ENTRY.replace("ward-1", f"w{i}") for i in range(3)), "3 clients"),
        (ENTRY + "note = 1\n", "note"),
        (ENTRY.replace("ward-1", "Ward 1"), "Ward 1"),
        (ENTRY.replace("100", '"100"'), "records"),
        (ENTRY.replace("100", "0"), "records"),
        (ENTRY.replace("100", "501"), "max_expected_records"),
        (ENTRY.replace("0.2", "0.3"), "record_rate"),
        (ENTRY.replace("0.2", "nan"), "record_rate"),
        (ENTRY.replace("records = 100\n", ""), "records"),
        ("[[clients", "read"),
    ],
)
def test_a_bad_roster_file_says_what_is_wrong(
    tmp_path: Path, task: Task, text: str, message: str
) -> None:
    path = tmp_path / "roster.toml"
    path.write_text(text)
    with pytest.raises(Misconfiguration, match=message):
        Roster.load(path, task)


def settings(folder: Path, more: str) -> ServerBSettings:
    path = folder / "server.toml"
    path.write_text(
        'task = "task.toml"\nlisten = "127.0.0.1:1"\ndealer = "127.0.0.1:2"\n'
        f'state = "state"\nidentity = "keys"\n{more}'
    )
    return ServerBSettings.load(path)


def test_settings_choose_who_may_enrol(tmp_path: Path, task: Task) -> None:
    (tmp_path / "roster.toml").write_text(ENTRY)
    admission_of(settings(tmp_path, ""), task).foresee(ONE, "", CLAIM)
    with pytest.raises(AccessDenied, match="brings no token"):
        admission_of(settings(tmp_path, 'enrolment = "token"'), task).foresee(ONE, "", CLAIM)
    of_list = admission_of(settings(tmp_path, 'enrolment = "roster"\nroster = "roster.toml"'), task)
    of_list.foresee(ONE, "", CLAIM)
    with pytest.raises(AccessDenied, match="ward-2 isn't on the operator's roster"):
        of_list.foresee(TWO, "", OTHER)


@pytest.mark.parametrize(
    "more", ['enrolment = "roster"', 'roster = "r.toml"', 'enrolment = "token"\nroster = "r.toml"']
)
def test_half_a_setting_is_refused(tmp_path: Path, task: Task, more: str) -> None:
    with pytest.raises(Misconfiguration, match="roster"):
        admission_of(settings(tmp_path, more), task)


def test_an_unknown_way_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfiguration, match="enrolment"):
        settings(tmp_path, 'enrolment = "closed"')


def test_nobody_is_missing_where_enrolment_is_over(task: Task, book: ByToken) -> None:
    book.add(token_digest(new_token()), TWO)
    issue(book)
    enrolling = register(task, book)
    enrolling.enrol(CLAIM, issue(book))
    enrolling.freeze(enrolling.roster())
    assert (enrolling.missing(), enrolling.unused_tokens()) == ([], 0)
