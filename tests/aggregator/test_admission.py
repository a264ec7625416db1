"""Who may enrol, with which claims, and until when."""

import base64
import math
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypedDict
from unittest.mock import Mock

import pytest
from tests.rig.aggregators import roster
from tests.rig.parties import at_both
from tests.rig.tasks import task_with

from precad.aggregator.enrol import admission
from precad.aggregator.enrol.admission import (
    Admission,
    ByToken,
    Listed,
    new_token,
    token_digest,
)
from precad.aggregator.enrol.register import Register
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.settings import ServerBSettings
from precad.aggregator.store import open_store
from precad.cli.main import JsonObject
from precad.cli.operate import reminders
from precad.common.errors import AccessDenied, Misconfiguration
from precad.common.identifiers import ClientId, Role
from precad.common.roster import Enrolment, Roster, on_grid
from precad.common.task import Task

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
CLAIM, OTHER = Enrolment(ONE, 100, 0.2), Enrolment(TWO, 100, 0.2)
TASK = task_with({"enrolment.clients": 2})
LISTED = Listed(Roster({ONE: CLAIM}))


@pytest.fixture
def book(tmp_path: Path) -> ByToken:
    return ByToken(tmp_path / "state")


def issue(book: ByToken, *client: ClientId) -> str:
    token = new_token()
    book.add(token_digest(token), *client)
    return token


class Given(TypedDict, total=False):
    until: datetime
    quorum: int


def register(door: Admission, task: Task = TASK) -> Register:
    return Register(task, open_store("sqlite://", task, Role.SERVER_B), door)


def test_a_token_is_32_fresh_bytes_and_kept_as_its_digest(
    book: ByToken, tmp_path: Path
) -> None:
    tokens = [issue(book) for _ in range(50)]
    raw = {base64.b32decode(token + "====") for token in tokens}
    assert (len(raw), {len(each) for each in raw}) == (50, {32})
    # Case and blanks around don't matter.
    book.redeem(f"  {tokens[0].lower()}\n", ONE)
    kept = [
        path for path in (tmp_path / "state" / "tokens").iterdir() if path.is_file()
    ]
    written = b"".join(path.name.encode() + path.read_bytes() for path in kept)
    secrets = [*raw, *(each.hex().encode() for each in raw), *map(str.encode, tokens)]
    assert (len(kept) >= 50, [each for each in secrets if each in written]) == (
        True,
        [],
    )
    assert {path.stat().st_mode & 0o077 for path in kept if path.suffix == ""} == {0}


def test_a_token_is_its_first_users_and_nobody_elses(book: ByToken) -> None:
    with pytest.raises(AccessDenied, match="no such token"):
        book.redeem(new_token(), ONE)
    token = issue(book)
    # Again, as after a restart.
    for _ in range(2):
        book.redeem(token, ONE)
    with pytest.raises(AccessDenied, match="another client"):
        book.redeem(token, TWO)
    with pytest.raises(Misconfiguration, match="another client's"):
        book.add(token_digest(token), TWO)
    book.add(token_digest(token), ONE)
    assert [*book.owners().values()] == [ONE.name]


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "A" * 52,
        "A" * 51,
        "1" * 52,
        "Ä" * 52,
        "../../x",
        "A" * 2_000_000,
        "\0" * 52,
    ],
)
def test_what_is_no_token_is_refused_without_repeating_it(
    book: ByToken, token: str
) -> None:
    issue(book)
    with pytest.raises(AccessDenied) as denied:
        book.redeem(token, ONE)
    assert len(str(denied.value)) < 200
    assert len(token) < 20 or token not in str(denied.value)
    assert [*book.owners().values()] == [None]


def test_of_many_who_redeem_at_once_one_wins(book: ByToken) -> None:
    token, start = issue(book), threading.Barrier(16)

    def redeem(client: ClientId) -> None:
        start.wait()
        book.redeem(token, client)

    clients = [ClientId(f"c{number}") for number in range(16)]
    outcomes = at_both(*(partial(redeem, client) for client in clients))
    (won,) = (
        client.name
        for client, error in zip(clients, outcomes, strict=True)
        if not error
    )
    assert [*book.owners().values()] == [won]
    assert sum(isinstance(error, AccessDenied) for error in outcomes) == 15


def test_who_was_let_in_by_name_is_missing_until_it_enrols_or_all_is_over(
    book: ByToken,
) -> None:
    first, _, unnamed, last = (
        issue(book, ONE),
        issue(book, TWO),
        issue(book),
        issue(book),
    )
    enrolling = register(book)
    awaited = [(enrolling.missing(), enrolling.unused_tokens())]
    for act in (
        lambda: enrolling.enrol(CLAIM, first),
        lambda: enrolling.enrol(OTHER, unnamed),
        lambda: enrolling.freeze(enrolling.roster()),
    ):
        act()
        awaited.append((enrolling.missing(), enrolling.unused_tokens()))
    assert awaited == [([ONE, TWO], 2), ([TWO], 2), ([], 1), ([], 0)]
    with pytest.raises(Misconfiguration, match="too late"):
        enrolling.enrol(Enrolment(ClientId("ward-3"), 100, 0.2), last)
    assert list(book.owners().values()).count(None) == 1


def test_a_token_is_not_spent_on_a_claim_that_is_refused_nor_by_a_doctor(
    book: ByToken,
) -> None:
    token, enrolling = issue(book), register(book)
    with pytest.raises(Misconfiguration, match="max_expected_records"):
        enrolling.enrol(Enrolment(TWO, 501, 0.2), token)
    # A doctor hears what enrolling would.
    for wrong, says in (
        ("", "no token"),
        (new_token(), "no such token"),
        ("guess", "of base32"),
    ):
        assert says in enrolling.foresee(ONE, wrong)
    assert enrolling.foresee(ONE, token) == enrolling.foresee(TWO, token) == ""
    assert [*book.owners().values()] == [None]
    # The first one may say it again, and nobody else.
    assert [enrolling.enrol(CLAIM, token) for _ in range(2)] == [1, 1]
    with pytest.raises(AccessDenied, match="another client"):
        enrolling.enrol(OTHER, token)
    assert list(enrolling.roster()) == [ONE]
    # Of the enrolled one nothing is asked any more.
    assert enrolling.foresee(ONE, "") == ""
    assert "another client" in enrolling.foresee(TWO, token)


@pytest.mark.parametrize("kind", ["token", "list", "frozen", "full"])
def test_a_refused_claim_is_free(
    book: ByToken, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds each: without a token, on no list, too late or one too many, it costs
    nothing."""
    changes = {
        "enrolment.clients": 1,
        "enrolment.min_clients": 1,
        "privacy.epsilon_limit": 4.0,
    }
    door = {"token": book, "list": LISTED}.get(kind, Admission())
    enrolling, precompute = register(door, task_with(changes)), Mock()
    monkeypatch.setattr(PrivacyCap, "precompute", precompute)
    if kind in ("frozen", "full"):
        enrolling.enrol(CLAIM)
    if kind == "frozen":
        enrolling.freeze(Roster({ONE: CLAIM}))
    precompute.reset_mock()
    for token in ("", new_token()):
        with pytest.raises((AccessDenied, Misconfiguration)):
            enrolling.enrol(OTHER, token)
    precompute.assert_not_called()


def test_the_listed_enrol_with_what_the_list_says_which_nobody_else_hears() -> None:
    enrolling, stranger = (
        register(LISTED),
        f"client {TWO} isn't on the operator's roster",
    )
    assert (enrolling.missing(), register(Admission()).missing()) == ([ONE], [])
    for claim, says in (
        (Enrolment(ONE, 101, 0.2), r"says 100 at rate 0\.2"),
        (Enrolment(ONE, 100, 0.1), r"says 100 at rate 0\.2"),
        (OTHER, stranger),
    ):
        with pytest.raises(AccessDenied, match=says):
            enrolling.enrol(claim)
    assert (enrolling.foresee(ONE, ""), enrolling.foresee(TWO, "")) == ("", stranger)
    assert (enrolling.enrol(CLAIM), enrolling.missing()) == (1, [])


ENTRY = '[[clients]]\nclient = "ward-1"\nrecords = 100\nrecord_rate = 0.2\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(("", "clients"), ("clients = []", "0 clients"), (ENTRY * 2, "twice")),
        ("".join(ENTRY.replace("ward-1", f"w{i}") for i in range(3)), "3 clients"),
        *(
            (ENTRY + "note = 1\n", "note"),
            (ENTRY.replace("ward-1", "Ward 1"), "Ward 1"),
        ),
        *((ENTRY.replace("100", records), "records") for records in ('"100"', "0")),
        (ENTRY.replace("100", "501"), "max_expected_records"),
        *((ENTRY.replace("0.2", rate), "record_rate") for rate in ("0.3", "nan")),
        *((ENTRY.replace("records = 100\n", ""), "records"), ("[[clients", "read")),
    ],
)
def test_a_roster_file_is_read_or_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "roster.toml"
    path.write_text(text)
    with pytest.raises(Misconfiguration, match=message):
        Roster.load(path, TASK)
    path.write_text(ENTRY + ENTRY.replace("ward-1", "ward-2"))
    assert dict(Roster.load(path, TASK)) == {ONE: CLAIM, TWO: OTHER}


def test_settings_choose_who_may_enrol(tmp_path: Path) -> None:
    (tmp_path / "roster.toml").write_text(ENTRY)

    def chosen(more: str) -> Admission:
        path = tmp_path / "server.toml"
        path.write_text(
            'task = "task.toml"\nlisten = "127.0.0.1:1"\ndealer = "127.0.0.1:2"\n'
            f'state = "state"\nidentity = "keys"\n{more}'
        )
        return admission.admission_of(ServerBSettings.load(path), TASK)

    listed = 'enrolment = "roster"\nroster = "roster.toml"'
    kinds = [type(chosen(more)) for more in ("", 'enrolment = "token"', listed)]
    assert kinds == [Admission, ByToken, Listed]
    chosen(listed).foresee(ONE, "", CLAIM)
    for half in (
        'enrolment = "roster"',
        'roster = "r"',
        'enrolment = "token"\nroster = "r"',
    ):
        with pytest.raises(Misconfiguration, match="roster"):
            chosen(half)
    with pytest.raises(Misconfiguration, match="enrolment"):
        chosen('enrolment = "closed"')


@pytest.mark.parametrize(
    ("records", "rate", "refused"),
    [
        *(
            (n, rate, None)
            for n, rate in ((1, 0.2), (500, 0.2), (1000, 0.1), (1, 0.2 / 64))
        ),
        *(
            (n, rate, "records")
            for n, rate in ((0, 0.2), (501, 0.2), (2**64 - 1, 0.2 / 64))
        ),
        *(
            (10, rate, "record_rate")
            for rate in (0.0, math.nextafter(0.2, 1), math.nan, math.inf)
        ),
        (10, math.nextafter(0.2 / 64, 0), "record_rate"),
        # And says what would do.
        (10, 0.11, r"record_rate = 0\.11: .* 0\.1$"),
        (10, 1e-15, r"record_rate = 1e-15: must be at least 0\.003125,"),
    ],
)
def test_claims_beyond_caps_are_refused(
    records: int, rate: float, refused: str | None
) -> None:
    claim, task = Enrolment(ONE, records, rate), task_with({})
    if refused is None:
        claim.check(task)
        return
    with pytest.raises(Misconfiguration, match=refused) as error:
        claim.check(task)
    said = records if refused == "records" else pytest.approx(rate, nan_ok=True)
    assert (error.value.field, error.value.value) == (refused.partition(" ")[0], said)


@pytest.mark.parametrize("p", [1.0, 0.3, 0.2, 1 / 3, 256 / 60_000, 1e-9])
def test_the_grid_of_rates_is_short_and_ends_at_the_tasks_rate(p: float) -> None:
    """So that the servers give at most 25 accounts, whatever clients claim."""
    task = task_with({"privacy.record_rate": p})
    grid = task.mechanism.unit_rates
    assert (grid[0], grid[-1], len(grid)) == (p, p / 64, 25)
    assert list(grid) == sorted(set(grid), reverse=True)
    # A client gives up no more than a fifth of the rate that it wants, and never
    # samples more.
    assert max(a / b for a, b in pairwise(grid)) == pytest.approx(5 / 4)
    for rate in grid:
        Enrolment(ONE, 1, rate).check(task)
        assert on_grid(task, rate) == rate
    for wanted in (p, 0.9999 * p, 0.53 * p, 0.5 * p, 0.33 * p, 0.0157 * p):
        assert on_grid(task, wanted) in grid
        assert 0.8 * wanted <= on_grid(task, wanted) <= wanted
    # What a person writes means the grid's number: 0.7·3 in floats is a little above
    # 2.1.
    seven = task_with({"privacy.record_rate": 0.7})
    assert on_grid(seven, 0.6125) == pytest.approx(0.6125, rel=1e-12)
    with pytest.raises(Misconfiguration, match=r"at most the task's 0\.7"):
        on_grid(seven, 0.8)


def test_the_roster_is_in_the_order_of_names_and_its_digest_covers_every_claim() -> (
    None
):
    claims = ("b", 1, 0.1), ("a", 2, 0.2), ("a-1", 3, 0.1)
    one, other = roster(*claims), roster(*claims[::-1])
    assert [c.name for c in one] == ["a", "a-1", "b"]
    assert (one, one.digest()) == (other, other.digest())
    b, nearly = ("b", 2, 0.2), math.nextafter(0.1, 1)
    unlike: list[list[tuple[str, int, float]]] = [
        *([("a", *claim), b] for claim in ((1, 0.1), (2, 0.1), (1, nearly))),
        *([("a", 1, 0.1), ("c", 2, 0.2)], [("a", 1, 0.1)], []),
    ]
    assert len({roster(*each).digest() for each in unlike}) == len(unlike)
    # The denominator is q times all expected records, to the bit in whatever order.
    claims = ("a", 100, 0.1), ("b", 10, 0.2), ("c", 1, 0.05)
    assert denominator(0.5, claims) == pytest.approx(6.025)
    many = [(f"c{i}", i + 1, 0.1 + i * 1e-9) for i in range(500)]
    assert denominator(0.3, many) == denominator(0.3, list(reversed(many)))


def denominator(client_rate: float, claims: Sequence[tuple[str, int, float]]) -> float:
    mechanism = task_with({"privacy.client_rate": client_rate}).mechanism
    return mechanism.denominator(roster(*claims).values())


def test_models_come_first_from_either_server_for_half_of_the_roster() -> None:
    enrolling = register(Admission())
    for claim in (CLAIM, OTHER):
        enrolling.enrol(claim)
    assert {enrolling.serves_first(client) for client in (ONE, TWO)} == {Role.SERVER_A}
    enrolling.freeze(claims := Roster({ONE: CLAIM, TWO: OTHER}))
    first = {client: enrolling.serves_first(client) for client in claims}
    assert first == claims.seed_holders(TASK.digest)
    assert set(first.values()) == {Role.SERVER_A, Role.SERVER_B}
    assert enrolling.serves_first(ClientId("stranger")) is Role.SERVER_A


DEPLOYED = Task.load(Path(__file__).parents[2] / "deploy" / "task.toml")
NOW = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)
EVENING = datetime(2027, 1, 31, 18, 0)  # noqa: DTZ001 -- as TOML reads it


def test_enrolment_ends_at_a_date_whenever_a_server_starts_or_when_the_task_says() -> (
    None
):
    assert admission.window_of(DEPLOYED) == admission.Window(
        DEPLOYED.deadlines.enrol, DEPLOYED.enrolment.clients
    )
    until = EVENING.replace(tzinfo=timezone(timedelta(hours=1)))
    for later, left_h in ((0, 5), (4, 1), (96, 0)):
        now = NOW + timedelta(hours=later)
        assert (
            admission.window_of(DEPLOYED, until=until, now=now).seconds == left_h * 3600
        )
    cases: list[tuple[Given, str]] = [
        ({"until": EVENING}, "say its time zone"),
        ({"until": NOW + timedelta(days=367)}, "within a year"),
        *((Given(quorum=number), "takes 3 to 3 owners") for number in (2, 4)),
    ]
    for given, says in cases:
        with pytest.raises(Misconfiguration, match=says):
            admission.window_of(DEPLOYED, **given, now=NOW)


def test_the_screen_says_who_is_missing_and_who_came_twice() -> None:
    facts: JsonObject = {"phase": "enrolling", "least_owners": 2, "most_owners": 5}
    facts |= {
        "missing": ["ward-3", "ward-4"],
        "unused_tokens": 2,
        "enrolment_left_s": 9000,
    }
    facts |= {"twice": Counter({"ward-1": 2}), "off_plan": "40 were planned"}
    facts["warnings"] = ["the certificate of ward-1 ends", "limits end 2 owners"]
    assert [text for text, _ in reminders(facts)] == [
        "enrolment takes 2 to 5 owners, for 2.5 hours more",
        "not enrolled yet: ward-3, ward-4",
        "2 enrolment tokens, made for nobody by name, aren't used yet",
        "a second process came under the name of ward-1 (2 times)",
        "40 were planned",
        "the certificate of ward-1 ends",
        "limits end 2 owners",
    ]
    over = {"phase": "training", "missing": [], "unused_tokens": 0, "twice": {}}
    assert reminders(facts | over | {"off_plan": "", "warnings": []}) == []


@pytest.mark.parametrize("planned", [400, 100, 401, 99])
def test_a_roster_far_from_the_plan_is_warned_of_and_never_refused(
    planned: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Two owners of 100 records at the task's p: twice the plan, or half of it, is near."""
    task = task_with({"enrolment.planned_units": planned})
    enrolling = register(Admission(), task)
    for claim in (CLAIM, OTHER):
        enrolling.enrol(claim)
    assert enrolling.off_plan() == ""
    for _ in range(2):  # as each link to the other server does
        enrolling.freeze(Roster({ONE: CLAIM, TWO: OTHER}))
    warned = planned in {401, 99}
    said = [text for text in caplog.messages if "enrolment.planned_units" in text]
    assert said == [enrolling.off_plan()] * warned
    assert bool(enrolling.off_plan()) is warned
    # A task without a plan can't miss it.
    assert task_with({}).mechanism.off_plan([CLAIM] * 1000) == ""


def test_the_denominator_of_a_plan_is_the_tasks_whatever_owners_claim() -> None:
    changes = {"privacy.client_rate": 0.5, "enrolment.planned_units": 60}
    mechanism = task_with(changes).mechanism
    claims = [[], [CLAIM], [CLAIM, OTHER, Enrolment(ClientId("x"), 500, 0.2)]]
    for enrolled in claims:
        assert mechanism.denominator(enrolled) == pytest.approx(0.5 * 0.2 * 60)
