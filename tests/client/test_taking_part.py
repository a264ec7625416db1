"""One update a version, one charge a version, uploads at a public time, and zeros where
nothing of the records may leave: an owner's process against servers that a test
scripts.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import Message
from tests.conftest import TaskMaker
from tests.rig import refusals, submissions
from tests.rig.documents import Document
from tests.rig.scripted_servers import Killed, Open, Over, Owner, Paused, Script, Sent

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.accounting.filter import exact_epsilon
from precad.common.errors import PeerUnavailable, PeerViolation, Rejection
from precad.common.identifiers import SERVERS, Role
from precad.common.submission import Signer
from precad.common.wire.messages import Body, Opening, Statement, sign_body
from precad.protos import precad_pb2 as pb

Log = pytest.LogCaptureFixture

D = 8
WORK_S = 7.0
ZEROS = np.zeros(D, dtype=np.int64).tobytes()
A, B = Role.SERVER_A, Role.SERVER_B
COVERED = {"privacy.cover_uploads": True}
MakeOwner = Callable[..., Owner]
at_either = pytest.mark.parametrize("role", SERVERS)


@pytest.fixture(params=[False, True], ids=["asking", "told"])
def owner(
    make_task: TaskMaker, tmp_path: Path, request: pytest.FixtureRequest
) -> MakeOwner:
    """``owner(Open(0, 0), Over(0, 0), limit=2.0, task={…})``

    Of servers that say what they sign when they are asked, or with A's notices.
    """

    def make(
        *events: Open | Over | Paused,
        limit: float | None = None,
        task: Document | None = None,
        folder: Path = tmp_path / "own",
    ) -> Owner:
        whole = make_task(D, {"deadlines.work": WORK_S, **(task or {})})
        folder.mkdir(exist_ok=True)
        return Owner(Script(whole, list(events), words=request.param), folder, limit)

    return make


def versions(count: int) -> list[Open | Over]:
    return [event for n in range(count) for event in (Open(n, n), Over(n, n))]


def attempts(one: Owner) -> list[int]:
    return [each.attempt for each in one.script.sent]


def by_version(sent: list[Sent]) -> dict[int, set[bytes]]:
    found = defaultdict(set)
    for each in sent:
        found[each.version].add(each.x.tobytes())
    return found


def epsilon_of(owner: Owner, *re_releases: int) -> object:
    """Exact ε of a version each, with that many further releases."""
    privacy, counted = owner.script.task.privacy, Counter[SampledGaussian]()
    for m in re_releases:
        noise = privacy.noise_multiplier / (1 + m) ** 0.5
        counted[poisson_gaussian(rate=privacy.record_rate, noise_multiplier=noise)] += 1
    return pytest.approx(exact_epsilon(counted, privacy.delta))


def die_at(
    one: Owner,
    step: str,
    before: Callable[[], object] = object,
    when: Callable[[], object] = object,
) -> None:
    """The process dies at its next such step, once ``before`` is done."""

    def die(name: str) -> None:
        if name.startswith(step) and when():
            one.script.on_step = lambda _: None
            before()
            raise Killed

    one.script.on_step = die


def lose_after_submit(one: Owner) -> None:
    die_at(one, "after submit", (one.folder / "pending.bin").unlink)


def signs(one: Owner, kind: type, signer: Role | None = None, **fields: object) -> None:
    def change(role: Role, body: Body) -> None:
        if isinstance(body, kind) and signer in (role, None):
            for name, value in fields.items():
                setattr(body, name, value)

    one.script.change = change


def test_every_attempt_shares_its_versions_update_afresh(owner: MakeOwner) -> None:
    takes = [Open(n, 0, takes_s=takes_s) for n, takes_s in enumerate((0.0, 1.0, 6.9))]
    one = owner(*takes, Over(2, 0), Open(3, 1), Over(3, 1))
    seen: list[tuple[str, bool]] = []
    one.script.on_step = lambda name: seen.append(
        (name, (one.folder / "pending.bin").exists())
    )
    result = one.run()
    assert (result.ended, result.submitted, result.counted) == ("finished", 4, 2)
    assert [view.version for view in one.computed] == [0, 1]
    found = by_version(one.script.sent)
    assert [(version, len(updates)) for version, updates in found.items()] == [
        (0, 1),
        (1, 1),
    ]
    assert found[0] != found[1]
    seeds = {submissions.masked(each.pair[0]).seed.reveal() for each in one.script.sent}
    nonces = {each.pair[0].context.nonce for each in one.script.sent}
    salts = {submissions.masked(each.pair[1]).salt.reveal() for each in one.script.sent}
    assert len(seeds) == len(nonces) == len(salts) == 4
    assert result.epsilon == epsilon_of(one, 0, 0)
    # However soon the work is done, and once both servers have signed; none signs
    # afterwards.
    assert [each.at for each in one.script.sent] == [WORK_S] * 4
    calls = one.script.calls
    for attempt in range(4):
        begun = next(
            at for at, name in enumerate(calls) if name.startswith(f"submit {attempt}")
        )
        asked = [at for at, name in enumerate(calls) if name.endswith(f" {attempt}")]
        signing = {calls[at] for at in asked if calls[at].startswith("opening")}
        roles = (B,) if one.script.words else SERVERS
        assert signing == {f"opening {role.value} {attempt}" for role in roles}
        assert max(at for at in asked if calls[at] in signing) < begun
    # The update goes when its version is over.
    assert ("statement server-b", False) in seen[seen.index(("after submit", True)) :]
    assert not (one.folder / "pending.bin").exists()


@pytest.mark.parametrize("cover", [False, True])
def test_a_server_that_holds_a_model_back_sees_nothing_of_the_work(
    owner: MakeOwner, *, cover: bool
) -> None:
    """The work begins with the last byte, and the upload that much later, however long it took."""
    takes = [Open(n, n, takes_s=takes_s) for n, takes_s in enumerate((0.0, 3.0, 6.9))]
    events = [each for one in takes for each in (one, Over(one.attempt, one.version))]
    one = owner(*events, task=COVERED if cover else {})
    one.script.fetch_takes_s = WORK_S - 0.5
    one.script.opening_takes_s = 1.0
    result = one.run()
    asked = 1 if one.script.words else 2
    opening_s = asked * one.script.opening_takes_s
    # The later models were fetched when their versions began.
    held_s = [one.script.fetch_takes_s + opening_s, opening_s, opening_s]
    assert [each.at for each in one.script.sent] == [each + WORK_S for each in held_s]
    assert [view.left_s for view in one.computed] == [WORK_S] * 3
    assert (result.ended, result.late) == ("finished", 0)


def test_an_attempts_wait_counts_from_the_notice_where_the_model_is_held(
    owner: MakeOwner,
) -> None:
    one = owner(Open(0, 0), Open(1, 0), Over(1, 0))
    one.script.fetch_takes_s = 2.0
    one.run()
    assert [each.at for each in one.script.sent] == [2.0 + WORK_S, WORK_S]


def test_work_that_overran_is_told_at_once_sent_and_ends_the_part_the_third_time(
    owner: MakeOwner, caplog: Log
) -> None:
    """Not sent, one record would take the whole update with it: C, and not R'."""
    takes = [Open(n, n, takes_s=s) for n, s in enumerate((8.0, 1.0, 7.5, 9.0, 1.0))]
    events = [each for one in takes for each in (one, Over(one.attempt, one.version))]
    one = owner(*events)
    result = one.run()
    assert (result.ended, result.late, result.submitted) == ("late", 3, 4)
    assert [each.at for each in one.script.sent] == [8.0, WORK_S, 7.5, 9.0]
    said = [r.getMessage() for r in caplog.records if "deadlines.work = 7" in r.message]
    assert [
        (each.split(":")[0], times in each)
        for each, times in zip(said, ("1 of 3", "2 of 3", "3 of 3"), strict=True)
    ] == [
        ("version 0, attempt 0", True),
        ("version 2, attempt 2", True),
        ("version 3, attempt 3", True),
    ]
    assert (one.folder / "pending.bin").exists()
    # The next start takes part from where it stands.
    assert one.run().ended == "finished"


@pytest.mark.parametrize("cover", [False, True])
def test_a_lost_update_is_not_replaced(
    owner: MakeOwner, caplog: Log, *, cover: bool
) -> None:
    """The state that held it is gone, the account says that it was shared."""
    one = owner(
        Open(0, 0), Open(1, 0), Over(1, 0), Open(2, 1), task=COVERED if cover else {}
    )
    lose_after_submit(one)
    one.run_until_done()
    # Covered, the attempt at hand once more, and the next one: nothing of the records
    # in either.
    sent = [(each.attempt, each.x.tobytes() == ZEROS) for each in one.script.sent]
    assert sent == [(0, False), *([(0, True), (1, True)] if cover else []), (2, False)]
    assert one.open_account().participations == 2
    assert cover or "lost; sitting it out" in caplog.text


def charged_before(one: Owner, step: str) -> None:
    """What is about to leave stands in the account, with all that the servers
    signed."""
    opened = one.script._opened
    if step.startswith("submit") and opened is not None and opened.selected:
        account = one.open_account()
        assert account.charged(opened.version)
        assert account.allows(opened.version, max(opened.charges))
        charge = account._account.charges[account._charge(opened.version, 0).step]
        assert charge.re_releases >= max(opened.charges)


@pytest.mark.parametrize("cover", [False, True])
def test_killed_anywhere_it_is_one_update(
    owner: MakeOwner, tmp_path: Path, *, cover: bool
) -> None:
    """Every call, every write: before it and after it.

    Covered, every attempt gets an upload.
    """
    plain = (Open(0, 0), Open(1, 0, charges=(0, 1)), Over(1, 0), Open(2, 1), Over(2, 1))
    undrawn = (Open(0, 0, selected=False), Over(0, 0, counted=False))
    events = (*undrawn, Open(1, 1), Open(2, 1), Over(2, 1)) if cover else plain
    changes = {"task": COVERED} if cover else {}
    for steps in range(1000):
        one, left = owner(*events, folder=tmp_path / f"own-{steps}", **changes), [steps]

        def die(name: str, one: Owner = one, left: list[int] = left) -> None:
            charged_before(one, name)
            left[0] -= 1
            if left[0] == -1:
                raise Killed

        one.script.on_step = die
        assert one.run_until_done().ended == "finished"
        found, sent = by_version(one.script.sent), one.script.sent
        assert [len(updates) for updates in found.values()] == [1] * len(found)
        pairs = {
            (e.attempt, *(half.header.whole_digest for half in e.pair)) for e in sent
        }
        assert len(pairs) == len(set(attempts(one))), "one attempt, one pair"
        nobody_was_killed = left[0] >= 0
        # No step loses more than the attempt that it struck, and only once it was
        # charged.
        everything = cover or nobody_was_killed
        assert (
            set(attempts(one)) == {0, 1, 2}
            if everything
            else {1, 2} & set(attempts(one))
        )
        assert {view.version for view in one.computed} == {0, 1}
        assert {v for v in found if ZEROS in found[v]} == ({0} if cover else set())
        if nobody_was_killed:
            assert steps > 30
            return
    raise AssertionError("the steps don't end")


@pytest.mark.parametrize("charges", [(0, 2), (2, 0), (2, 2), (1, 2)])
def test_the_larger_of_both_servers_signatures_counts(
    owner: MakeOwner, charges: tuple[int, int]
) -> None:
    one = owner(Open(0, 0), Open(1, 0), Open(2, 0, charges=charges), Over(2, 0))
    assert one.run().epsilon == epsilon_of(one, 2)


def test_zeros_that_were_answered_with_are_no_release(owner: MakeOwner) -> None:
    one = owner(
        Open(0, 0, selected=False), Open(2, 0, charges=(1, 1)), Over(2, 0), task=COVERED
    )
    assert one.run().epsilon == epsilon_of(one, 0)


@pytest.mark.parametrize("m", [1, 99, 10**18])
def test_no_more_releases_count_than_were_shared(
    owner: MakeOwner, m: int, caplog: Log
) -> None:
    """A malicious server can't burn an account by what it signs; a restart forgets no
    answer."""
    script = (
        Open(0, 0, charges=(m, 0)),
        Open(1, 1),
        Open(2, 1, charges=(0, m)),
        Over(2, 1),
    )
    one = owner(*script, limit=3.0)
    die_at(one, "submit 2")
    result = one.run_until_done()
    assert (result.ended, len(one.script.sent)) == ("finished", 3)
    assert result.epsilon == epsilon_of(one, 0, 1)
    assert f"released {m} times before" in caplog.text


def put_back(one: Owner, versions: int) -> None:
    account = one.folder / "participations.log"
    lines = account.read_text().splitlines(keepends=True)
    before = (
        next(at for at, line in enumerate(lines) if line.startswith("charge"))
        + versions
    )
    account.write_text("".join(lines[:before]))


@pytest.mark.parametrize("lost", [(), SERVERS], ids=["statements kept", "lost too"])
def test_an_older_account_catches_up(
    owner: MakeOwner, caplog: Log, lost: tuple[Role, ...]
) -> None:
    """Put back from a copy, or a copy on a second machine: 10 charges there, 3 here."""
    one = owner(*versions(10), limit=4.0)
    whole = one.run().epsilon
    put_back(one, 3)
    for role in lost:
        (one.folder / f"statement-{role.value}.bin").unlink()
    assert one.open_account().participations == 3
    assert one.run().epsilon == pytest.approx(whole)
    assert one.open_account().participations == 10
    assert "an older copy" in caplog.text


def test_what_an_older_account_has_no_room_for_is_a_stop(owner: MakeOwner) -> None:
    one = owner(*versions(9), limit=1.5)
    most = one.run().submitted
    put_back(one, most - 1)
    one.script.charged = {role: [9] for role in SERVERS}
    one.script.stated = dict.fromkeys(SERVERS, 9)
    refusals.refused(r"account = .*both servers.*9 versions.*stay away", one.run)
    assert len(one.script.sent) == most


def test_one_server_alone_writes_nothing_into_the_account(owner: MakeOwner) -> None:
    """It may lie; and where it doesn't the account is old, so nothing is shared
    meanwhile."""
    one = owner(*versions(1))
    one.script.charged[B], one.script.stated = [50], dict.fromkeys(SERVERS, 60)
    with pytest.raises(PeerUnavailable, match="server-b has signed more charges"):
        one.run()
    assert (one.script.sent, one.open_account().participations) == ([], 0)


def test_a_statement_as_long_as_a_message_may_be_keeps_no_owner_busy(
    owner: MakeOwner,
) -> None:
    """Quadratic in its length, it took hours."""
    one = owner(*versions(1))
    one.script.charged[B] = [0] * 200_000
    began = time.process_time()
    assert one.run().ended == "finished"
    assert time.process_time() - began < 10


def test_beyond_the_limit_an_owner_leaves_quietly_until_it_raises_it(
    owner: MakeOwner,
) -> None:
    one = owner(*versions(9), limit=1.5)
    most = one.open_account().rounds_left(9)
    assert 1 < most < 9
    result = one.run()
    # It has the newest model that it saw: the one of the version that it left at.
    assert result.model is not None
    assert (result.ended, result.submitted, result.model.version) == (
        "budget",
        most,
        most,
    )
    assert (result.model.theta[0], result.epsilon <= 1.5) == (most, True)
    again = one.run()
    assert (again.ended, again.submitted, len(one.script.sent)) == ("budget", 0, most)
    one.limit, one.raise_limit = 8.0, True
    result = one.run()
    assert (result.ended, result.submitted) == ("finished", 9 - most)
    assert one.open_account().participations == 9


def test_an_upload_that_came_late_is_late_and_not_absent(
    owner: MakeOwner, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever had sent it was told "rejected: absent"; who sent nothing is absent."""
    absent = Rejection.ABSENT.value
    one = owner(Open(0, 0), Over(0, 0, counted=False, rejection=absent))
    assert one.run().rejected == {"late": 1}
    assert "submission rejected: late" in caplog.text
    caplog.clear()
    silent = owner(
        Open(0, 0, selected=False), Over(0, 0, counted=False, rejection=absent)
    )
    assert silent.run().rejected == {absent: 1}
    # Any other reason is told in the servers' word.
    other = Rejection.NORM_EXCEEDED.value
    bad = owner(Open(0, 0), Over(0, 0, counted=False, rejection=other))
    assert bad.run().rejected == {other: 1}


def test_an_upgrade_that_does_not_fit_is_not_shared(owner: MakeOwner) -> None:
    """The version was charged for one release; a second one would pass the limit."""
    one = owner(*(Open(n, 0, charges=(n, n)) for n in range(9)), Over(8, 0), limit=1.5)
    result = one.run()
    assert (result.ended, 1 <= len(one.script.sent) < 9) == ("budget", True)
    assert one.open_account().epsilon() == epsilon_of(one, result.submitted - 1)


def test_an_undrawn_owner_differs_by_its_zeros_alone(
    owner: MakeOwner, tmp_path: Path
) -> None:
    drawn, undrawn = (
        owner(
            *(Open(n, n // 2, drawn, takes_s=1.0) for n in range(4)),
            folder=folder,
            task=COVERED,
        )
        for drawn, folder in ((True, tmp_path / "drawn"), (False, tmp_path / "undrawn"))
    )
    drawn.run()
    undrawn.run()
    # What leaves the machine: calls with sizes, in order, and when uploads begin.
    assert drawn.script.calls == undrawn.script.calls
    assert [e.at for e in drawn.script.sent] == [e.at for e in undrawn.script.sent]
    assert [view.covering for view in undrawn.computed] == [True] * 4
    assert [view.covering for view in drawn.computed] == [False, True, False, True]
    assert {each.x.tobytes() for each in undrawn.script.sent} == {ZEROS}
    assert ZEROS not in {each.x.tobytes() for each in drawn.script.sent}
    assert [each.open_account().participations for each in (drawn, undrawn)] == [2, 0]


def test_an_owner_at_its_limit_stays_and_sends_zeros(owner: MakeOwner) -> None:
    one = owner(*versions(9), limit=1.5, task=COVERED)
    most = one.open_account().rounds_left(9)
    result = one.run()
    assert (result.ended, result.submitted, result.covered) == (
        "finished",
        most,
        9 - most,
    )
    assert [each.x.tobytes() == ZEROS for each in one.script.sent] == [
        n >= most for n in range(9)
    ]
    assert {each.at for each in one.script.sent} == {WORK_S}
    assert result.epsilon <= 1.5


@pytest.mark.parametrize("wait_s", [None, 18.0, 900.0])
def test_servers_that_stay_away_are_waited_for(
    owner: MakeOwner, wait_s: float | None
) -> None:
    """Unless it is said, for the task's outage, which is 600 s here."""
    one = owner(*[Paused()] * 1000)
    one.wait_s = wait_s
    with pytest.raises(PeerUnavailable, match="paused"):
        one.run()
    assert one.script.clock.time - one.script.clock.start == pytest.approx(
        wait_s or 600.0
    )
    one.script.events[:] = [Paused(), *versions(1)]
    assert one.run().counted == 1


def test_each_server_is_shown_its_own_last_statement(owner: MakeOwner) -> None:
    one = owner(Open(0, 0), Over(0, 0), Paused(), Open(1, 1), Over(1, 1))
    one.run()
    one.script.events.append(Open(2, 2))
    one.run()
    for role in SERVERS:
        first, *shown = one.script.shown[role]
        # After each version, where it doesn't say it unasked, and at each connection;
        # the second process hears the newest event again.
        expected = [1, 2] if one.script.words and role is A else [0, 1, 1, 2, 2]
        assert (first, [Statement.read(each).version for each in shown if each]) == (
            None,
            expected,
        )


@at_either
@pytest.mark.parametrize(
    ("before", "after"), [([3], [2]), ([3, 1], [4, 0]), ([0, 1], [1]), ([2], [])]
)
def test_a_server_that_forgets_charges_it_signed_is_refused(
    owner: MakeOwner, role: Role, before: list[int], after: list[int]
) -> None:
    one = owner(Open(7, 7), Over(7, 7))
    one.script.stated = dict.fromkeys(SERVERS, 7)
    one.script.charged = {each: list(before) for each in SERVERS}
    one.run()
    last = one.script.shown[role][-1]
    one.script.charged[role] = list(after)
    one.script.events.append(Open(8, 8))
    with pytest.raises(
        PeerViolation, match=f"{role.value} states.*forgotten charges.*--against"
    ):
        one.run()
    # It was shown its own signature before.
    assert one.script.shown[role][-1] != last
    assert attempts(one) == [7]


@pytest.mark.parametrize(
    "forgotten",
    [{"charged": [1]}, {"charged": [0, 1]}, {"attempt": 5}, {"version": 0}],
    ids=["a charge", "a release", "an attempt", "a version"],
)
def test_an_unasked_statement_that_says_less_is_answered(
    owner: MakeOwner, forgotten: Document
) -> None:
    one = owner(Open(5, 5), Over(5, 5), Open(6, 6), Over(6, 6))
    script = one.script
    script.charged = {each: [1, 1] for each in SERVERS}
    script.stated = dict.fromkeys(SERVERS, 5)

    def unasked(role: Role, body: Message) -> None:
        stated = role is A and isinstance(body, pb.StatementBody)
        if stated and len(script.sent) == 2 and len(script.shown[role]) == 1:
            for name, value in forgotten.items():
                body.ClearField(name)
                body.MergeFrom(pb.StatementBody(**{name: value}))

    script.change = unasked
    one.run()
    shown, opening = script.shown[A][-1], script.openings_shown[A][-1]
    assert shown
    assert opening
    assert (Statement.read(shown).version, Opening.read(opening).attempt) == (6, 6)
    assert len(script.shown[A]) == (2 if script.words else 3)


def test_a_version_that_a_server_stated_as_over_is_sat_out(
    owner: MakeOwner, caplog: Log
) -> None:
    """Both lost their newest models, and won't take them back: the version runs
    again."""
    one = owner(*versions(1))
    one.script.takes_back = False
    one.run()
    one.script.stated = dict.fromkeys(SERVERS, 0)
    one.script.events[:] = [
        Open(1, 0),
        Over(1, 0, counted=False),
        Open(2, 1),
        Over(2, 1),
    ]
    one.script._at = 0
    one.run()
    assert attempts(one) == [0, 2]
    assert "has stated that this version is over; sitting it out" in caplog.text


def test_a_server_that_states_itself_late_is_asked_again_at_the_end(
    owner: MakeOwner,
) -> None:
    """B hears after A that both hold a model; what an answer is about is stated then."""
    one = owner(*versions(1))
    late: list[str] = []

    def state(role: Role, body: Message) -> None:
        over = isinstance(body, pb.StatementBody) and body.version == 1
        if role is B and over and not late:
            assert isinstance(body, pb.StatementBody)
            late.append("over")
            body.version = 0
            body.model_digest = one.script.model(0)[1].value

    one.script.change = state
    result = one.run()
    assert (result.ended, late) == ("finished", ["over"])
    kept = (one.folder / "statement-server-b.bin").read_bytes()
    assert Statement.read(kept).version == 1
    # Once all owners have the model servers may end.
    assert one.script.calls[-1].startswith(("final ", "fetch "))


@at_either
@pytest.mark.parametrize("restarted", [True, False])
def test_a_lost_model_comes_back(
    owner: MakeOwner, role: Role, *, restarted: bool
) -> None:
    one = owner(Open(0, 0), Over(0, 0), Paused(), Open(1, 1), Over(1, 1))
    script = one.script

    def lose(name: str) -> None:
        # Before the connection after the pause.
        fetched = script.stated[role] == 1 and "fetch 1" in script.calls
        if fetched and name == f"statement {role.value}":
            script.stated[role] = 0
            script.on_step = lambda _: None
            if restarted:
                raise Killed

    script.on_step = lose
    one.run_until_done()
    assert script.given == [(role, 1, script.model(1)[0].tobytes())]
    assert attempts(one) == [0, 1]


def test_a_kept_model_that_was_meddled_with_is_fetched_again(owner: MakeOwner) -> None:
    one = owner(Open(0, 0), Over(0, 0), Open(1, 1))

    def meddle() -> None:
        (one.folder / "model-1.bin").write_bytes(bytes(8 * D))

    die_at(one, "after saw", meddle, when=lambda: one.script.stated[B])
    one.run_until_done()
    assert [view.theta[0] for view in one.computed] == [0.0, 1.0]


@pytest.mark.parametrize("restarted", [True, False])
def test_a_changed_model_is_sat_out(
    owner: MakeOwner, caplog: Log, *, restarted: bool
) -> None:
    one = owner(Open(0, 0), Open(1, 0, model=1), Over(1, 0), Open(2, 1), Over(2, 1))
    if restarted:
        lose_after_submit(one)
    one.run_until_done()
    assert attempts(one) == [0, 2]
    assert restarted or "had another model before; sitting it out" in caplog.text


OTHER: Document = {"attempt": 9, "version": 4, "client": "ward-2"}
OTHER |= dict.fromkeys(("task_digest", "model_digest"), b"\7" * 32)


@pytest.mark.parametrize("name", OTHER)
@at_either
def test_an_opening_for_another_shares_nothing(
    owner: MakeOwner, role: Role, name: str
) -> None:
    one = owner(*versions(1))
    signs(one, pb.OpeningBody, role, **{name: OTHER[name]})
    with pytest.raises(
        PeerViolation, match=f"{role.value} signed for attempt.*nothing is sent"
    ):
        one.run()
    assert (one.script.sent, one.open_account().participations) == ([], 0)


def test_a_statement_of_another_clients_account_is_refused(owner: MakeOwner) -> None:
    one = owner(*versions(1))
    signs(one, pb.StatementBody, client="ward-2")
    with pytest.raises(PeerViolation, match=r"client 'ward-2'.*isn't this one"):
        one.run()


@pytest.mark.parametrize("kind", [pb.OpeningBody, pb.StatementBody])
def test_b_never_signs_for_a(
    owner: MakeOwner, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = owner(*versions(1))

    def by_b(signer: Signer, role: Role, body: Body) -> pb.Signed:
        return sign_body(signer, B if isinstance(body, kind) else role, body)

    monkeypatch.setattr("tests.rig.scripted_servers.sign_body", by_b)
    with pytest.raises(PeerViolation, match="server-a"):
        one.run()
    assert one.script.sent == []


@pytest.mark.parametrize(
    "states", [(False, False), (True, False), (False, True), (True, True)]
)
def test_an_honest_submission_that_is_not_counted_is_a_warning(
    owner: MakeOwner, caplog: Log, states: tuple[bool, bool]
) -> None:
    one = owner(Open(0, 0), Over(0, 0, counted=any(states), states=states))
    one.run()
    assert ("may be bad" in caplog.text) is not all(states)


def test_all_that_an_owner_keeps_is_its_own_and_refused_when_damaged(
    owner: MakeOwner,
) -> None:
    one = owner(Open(0, 0), Over(0, 0), Open(1, 1))
    modes: dict[str, int] = {}

    def look(name: str) -> None:
        if name == "after submit":
            files = one.folder.iterdir()
            modes.update({path.name: path.stat().st_mode & 0o777 for path in files})

    one.script.on_step = look
    one.run()
    assert (len(modes) >= 8, set(modes.values())) == (True, {0o600})
    (one.folder / "statement-server-b.bin").write_bytes(b"\xff\xff")
    refusals.refused(r"statement-server-b.bin.*restore it", one.run)
