"""One server's submissions: the first good header of each client counts, the rest has reasons."""

import dataclasses
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import TaskMaker
from tests.rig.clock import LonelyClock
from tests.rig.keys import signer, verifier
from tests.rig.submissions import (
    MODEL,
    ONE,
    body_of,
    expanded,
    pair_of,
    signed_anew,
    upload,
    with_body,
    words_of,
)

from precad.aggregator.collect.inbox import Backlog, Inbox
from precad.aggregator.rounds.states import Opened
from precad.common.clock import CLOCK
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.share.submission import Submission
from precad.common.task import Task

D = 8
TWO = ClientId("ward-2")


@pytest.fixture(scope="module")
def task(make_task: TaskMaker) -> Task:
    return make_task(D)


@pytest.fixture(params=[Role.SERVER_A, Role.SERVER_B], ids=["a", "b"])
def role(request: pytest.FixtureRequest) -> Role:
    given: Role = request.param
    return given


@dataclasses.dataclass(frozen=True)
class Side:
    """One server's inbox, open for ONE and TWO; nothing else passes its clock's time."""

    task: Task
    role: Role
    folder: Path
    inbox: Inbox
    clock: LonelyClock

    @property
    def bodies(self) -> int:
        """Of one submission."""
        return 0 if self.role is Role.SERVER_A else 1

    def submission(self, client: ClientId = ONE, number: int = 3) -> Submission:
        a, b = pair_of(self.task, client, number)
        return a if self.role is Role.SERVER_A else b

    def spooled(self) -> list[Path]:
        return list((self.folder / "spool").iterdir())

    def progress(self) -> tuple[int, int]:
        """How many of the open attempt's cohort are held, and the cohort's size."""
        current = self.inbox._round
        return (0, 0) if current is None else (len(current.held), len(current.cohort))

    def held(self, client: ClientId = ONE) -> Submission:
        """What is left of a client when collection closes."""
        held = self.inbox.close()[client]
        assert isinstance(held, Submission)
        return held


OF_B = pytest.mark.parametrize("role", [Role.SERVER_B], ids=["b"])
"""The server that gets bodies."""


@pytest.fixture
def here(task: Task, role: Role, tmp_path: Path) -> Side:
    clock = LonelyClock()
    inbox = Inbox(role, task, verifier(), tmp_path / "spool", clock)
    inbox.open(Opened(3, 2, (TWO, ONE), MODEL, frozenset()))
    return Side(task, role, tmp_path, inbox, clock)


def bare(s: Submission) -> Submission:
    """As it comes first: without its body."""
    return dataclasses.replace(s, body=None)


def bound_to(s: Submission, **changes: Any) -> Submission:
    """The header of ``s`` for something else, signed by its client."""
    context = dataclasses.replace(s.context, **changes)
    header = signed_anew(dataclasses.replace(s.header, context=context), signer(ONE))
    return dataclasses.replace(bare(s), header=header)


def reason_of(call: Any) -> Rejection:
    with pytest.raises(RejectedSubmission) as rejected:
        call()
    return rejected.value.reason


@pytest.mark.parametrize("pieces", [(), (1,), (1, 2, 31), (31, 33), (32,), (0, 0, 5, 5)])
def test_a_complete_upload_is_held_as_it_came(here: Side, pieces: tuple[int, ...]) -> None:
    s = here.submission()
    upload(here.inbox, s, pieces)
    assert here.progress() == (1, 2)
    held = here.held()
    assert held.header == s.header
    assert (held.seed, held.salt) == (s.seed, s.salt)
    assert body_of(held) == body_of(s)


def test_only_the_encrypted_body_touches_the_disk(here: Side) -> None:
    s = here.submission()
    upload(here.inbox, s)
    kept = [path.read_bytes() for path in here.spooled()]
    if here.role is Role.SERVER_A:
        assert kept == []
        return
    assert [len(data) for data in kept] == [8 * D + 16]
    words = np.split(np.frombuffer(words_of(s), dtype="<i8"), D)
    for secret in (s.seed.reveal(), s.salt.reveal(), body_of(s)[:32], *words):
        assert bytes(secret) not in kept[0]


def test_the_first_header_is_the_clients_only_one(here: Side) -> None:
    first, second = here.submission(), here.submission()
    early = here.inbox.start(bare(first))
    # While the first one's body is still on its way.
    assert reason_of(lambda: upload(here.inbox, second)) is Rejection.DUPLICATE
    early.add(body_of(first))
    early.finish()
    # And once more, when it is held.
    assert reason_of(lambda: upload(here.inbox, second)) is Rejection.DUPLICATE
    assert len(here.spooled()) == here.bodies
    held = here.held()
    assert held.header == first.header
    assert (expanded(held, D) == expanded(first, D)).all()


def test_a_header_whose_body_broke_off_is_still_the_clients_only_one(here: Side) -> None:
    first, second = here.submission(), here.submission()
    here.inbox.start(bare(first)).abandon()
    assert reason_of(lambda: upload(here.inbox, second)) is Rejection.DUPLICATE
    upload(here.inbox, first)
    here.held()


def test_the_same_bytes_again_are_a_retry(here: Side) -> None:
    s = here.submission()
    for _ in range(3):
        upload(here.inbox, s)
    assert len(here.spooled()) == here.bodies
    assert here.progress() == (1, 2)
    here.held()


def test_the_same_seed_and_body_under_another_signature_are_no_retry(here: Side) -> None:
    """ECDSA signs the same bytes in many ways; the servers compare the signature too."""
    s = here.submission()
    upload(here.inbox, s)
    other = dataclasses.replace(s, header=signed_anew(s.header, signer(ONE)))
    assert other.header.signature != s.header.signature
    assert reason_of(lambda: upload(here.inbox, other)) is Rejection.DUPLICATE
    held = here.held()
    assert held.header == s.header


@pytest.mark.parametrize(
    ("changes", "reason", "counted"),
    [
        ({"task": Digest(bytes(32))}, Rejection.WRONG_TASK, Rejection.ABSENT),
        ({"attempt": 2}, Rejection.WRONG_ATTEMPT, Rejection.ABSENT),
        ({"attempt": 4}, Rejection.WRONG_ATTEMPT, Rejection.ABSENT),
        ({"attempt": 2**62}, Rejection.WRONG_ATTEMPT, Rejection.ABSENT),
        ({"version": 1}, Rejection.WRONG_ATTEMPT, Rejection.WRONG_ATTEMPT),
        ({"version": 3}, Rejection.WRONG_ATTEMPT, Rejection.WRONG_ATTEMPT),
        ({"model": Digest(bytes(32))}, Rejection.WRONG_MODEL, Rejection.WRONG_MODEL),
        ({"client": ClientId("stranger")}, Rejection.NOT_SELECTED, Rejection.ABSENT),
    ],
)
def test_what_is_bound_to_something_else_is_rejected_with_its_reason(
    here: Side, changes: dict[str, Any], reason: Rejection, counted: Rejection
) -> None:
    bound = bound_to(here.submission(), **changes)
    assert reason_of(lambda: here.inbox.start(bound)) is reason
    assert here.spooled() == []
    # Nobody else is touched.
    upload(here.inbox, here.submission(TWO))
    closed = here.inbox.close()
    assert closed[ONE] is counted
    assert isinstance(closed[TWO], Submission)
    assert set(closed) == {ONE, TWO}


def test_a_seed_of_another_commitment_is_malformed_before_a_byte_is_taken(here: Side) -> None:
    s = bare(here.submission())
    for change in ({"seed": Secret.random()}, {"salt": Secret.random()}):
        other: Any = dataclasses.replace(s, **change)  # type: ignore[arg-type]
        assert reason_of(lambda o=other: here.inbox.start(o)) is Rejection.MALFORMED
    assert here.spooled() == []
    assert here.inbox.close()[ONE] is Rejection.MALFORMED


def test_a_bad_signature_is_found_before_a_byte_is_taken(here: Side) -> None:
    s = bare(here.submission())
    signature = here.submission().header.signature
    header = dataclasses.replace(s.header, signature=signature)
    other = dataclasses.replace(s, header=header)
    assert reason_of(lambda: here.inbox.start(other)) is Rejection.BAD_SIGNATURE
    assert here.spooled() == []
    assert here.inbox.close()[ONE] is Rejection.BAD_SIGNATURE


@OF_B
@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_a_body_that_was_not_signed_is_malformed_and_leaves_nothing(here: Side, at: int) -> None:
    s = here.submission()
    body = bytearray(body_of(s))
    body[at] ^= 1
    assert reason_of(lambda: upload(here.inbox, with_body(s, bytes(body)))) is Rejection.MALFORMED
    assert here.spooled() == []
    assert here.inbox.close()[ONE] is Rejection.ABSENT


@OF_B
@pytest.mark.parametrize("sent", [0, 31, 32, -1])
def test_a_truncated_upload_is_rejected_and_leaves_nothing(here: Side, sent: int) -> None:
    s = here.submission()
    taking = here.inbox.start(bare(s))
    taking.add(body_of(s)[:sent])
    assert reason_of(taking.finish) is Rejection.TRUNCATED
    assert not taking.complete
    assert here.spooled() == []
    assert here.progress() == (0, 2)
    # The same bytes, whole this time, are welcome.
    upload(here.inbox, s)
    here.held()


def test_a_longer_upload_is_cut_off_at_once(here: Side) -> None:
    s = here.submission()
    taking = here.inbox.start(bare(s))
    taking.add(body_of(s))
    assert reason_of(lambda: taking.add(b"\0")) is Rejection.MALFORMED
    assert here.spooled() == []
    # Its end, should it come, doesn't bring it back.
    assert reason_of(taking.finish) is Rejection.TRUNCATED
    assert here.inbox.close()[ONE] is Rejection.ABSENT


@pytest.mark.parametrize("sent", [0, 5, None])
def test_an_abandoned_upload_leaves_no_file_and_can_not_be_finished(
    here: Side, sent: int | None
) -> None:
    s = here.submission()
    taking = here.inbox.start(bare(s))
    taking.add(body_of(s)[:sent])
    taking.abandon()
    taking.abandon()
    assert here.spooled() == []
    assert reason_of(taking.finish) is Rejection.TRUNCATED
    assert reason_of(lambda: taking.add(b"")) is Rejection.TRUNCATED
    assert here.inbox.close()[ONE] is Rejection.ABSENT


def test_an_upload_that_ends_after_the_round_is_too_late(here: Side) -> None:
    s = here.submission()
    taking = here.inbox.start(bare(s))
    taking.add(body_of(s))
    assert here.inbox.close()[ONE] is Rejection.ABSENT
    assert reason_of(taking.finish) is Rejection.WRONG_ATTEMPT
    assert here.spooled() == []
    here.inbox.open(Opened(4, 2, (ONE,), MODEL, frozenset()))
    assert reason_of(lambda: upload(here.inbox, s)) is Rejection.WRONG_ATTEMPT
    assert here.inbox.close()[ONE] is Rejection.ABSENT


def test_what_is_found_outside_is_counted_once_and_for_members_only(here: Side) -> None:
    here.inbox.refuse(3, ONE, Rejection.TRUNCATED)
    here.inbox.refuse(3, ONE, Rejection.MALFORMED)
    here.inbox.refuse(2, TWO, Rejection.TRUNCATED)
    here.inbox.refuse(3, ClientId("stranger"), Rejection.TRUNCATED)
    assert dict(here.inbox.close()) == {ONE: Rejection.TRUNCATED, TWO: Rejection.ABSENT}
    here.inbox.refuse(3, ONE, Rejection.TRUNCATED)


def test_files_of_a_process_that_died_are_removed(task: Task, tmp_path: Path) -> None:
    left_over = tmp_path / "ward-1-00.body"
    left_over.write_bytes(b"x")
    kept = tmp_path / "other.txt"
    kept.write_bytes(b"x")
    Inbox(Role.SERVER_B, task, verifier(), tmp_path)
    assert not left_over.exists()
    assert kept.exists()


def test_the_backlog_is_the_most_that_lay_there_and_is_known_when_collection_has_closed(
    here: Side,
) -> None:
    upload(here.inbox, here.submission())
    assert len(here.inbox.arrivals()) == 1
    upload(here.inbox, here.submission(TWO))
    assert here.inbox.backlog == Backlog()
    here.inbox.close()
    # Each was asked for before the next one came; bodies stay, and server A has none.
    assert here.inbox.backlog == Backlog(1, 0 if here.role is Role.SERVER_A else 2 * 8 * D)
    here.inbox.open(Opened(4, 2, (TWO, ONE), MODEL, frozenset()))
    here.inbox.close()
    assert here.inbox.backlog == Backlog()


# --- waiting -----------------------------------------------------------------------------------


def wait_over(
    side: Side,
    clients: Collection[ClientId],
    seconds: float,
    gone: Callable[[ClientId], bool] = lambda _client: False,
) -> None:
    """As servers do, by looking whether collection is over; or until so much time has passed."""
    deadline = side.clock.now() + seconds
    while not side.inbox.over(clients, gone) and side.clock.now() < deadline:
        side.inbox.wait_arrival(min(0.02, deadline - side.clock.now()))
        side.inbox.arrivals()


def test_waiting_ends_when_all_are_held(here: Side) -> None:
    inbox = Inbox(here.role, here.task, verifier(), here.folder / "of its own")
    inbox.open(Opened(3, 2, (TWO, ONE), MODEL, frozenset()))

    def send() -> None:
        for client in (ONE, TWO):
            upload(inbox, here.submission(client))

    sender = threading.Thread(target=send)
    sender.start()
    inbox.wait([ONE, TWO], CLOCK.now() + 600)
    assert dataclasses.replace(here, inbox=inbox).progress() == (2, 2)
    sender.join()


def test_nobody_waits_for_who_has_gone_or_sent_something_wrong(here: Side) -> None:
    upload(here.inbox, here.submission())
    wait_over(here, [ONE, TWO], 5, gone=lambda client: client == TWO)
    wrong = dataclasses.replace(bare(here.submission(TWO)), seed=Secret(bytes(32)))
    assert reason_of(lambda: here.inbox.start(wrong)) is Rejection.MALFORMED
    here.inbox.wait([ONE, TWO], here.clock.now() + 5)
    assert here.clock.slept == []
    # It may still mend its upload before the round closes.
    upload(here.inbox, here.submission(TWO))
    here.held(TWO)


def test_a_client_whose_link_broke_is_waited_for_until_the_deadline(here: Side) -> None:
    here.inbox.refuse(3, ONE, Rejection.TRUNCATED)
    here.inbox.wait([ONE], here.clock.now() + 5)
    assert here.clock.slept == [5]


def attempts(here: Side, count: int, senders: Callable[[int], set[ClientId]]) -> list[float]:
    """How long each lasts, of these who send in time; collection would take 60 s."""
    lasted = []
    for number in range(3, 3 + count):
        if number > 3:
            here.inbox.open(Opened(number, 2, (TWO, ONE), MODEL, frozenset()))
        began = here.clock.now()
        for client in sorted(senders(number - 3)):
            upload(here.inbox, here.submission(client, number))
        wait_over(here, [ONE, TWO], 60)
        lasted.append(float(round(here.clock.now() - began)))
        here.inbox.close()
        here.inbox.cancel()
    return lasted


@pytest.mark.parametrize(
    ("who", "sent"),
    [
        # Silent for ever, then back: nobody waits, and what comes in time counts as ever.
        (lambda n: {ONE} if n < 7 else {ONE, TWO}, [60, 60, 60, 0, 0, 0, 0, 0, 0, 0]),
        # Two in three it misses: one in five of the others' attempts lasts long at most.
        (lambda n: {ONE, TWO} if n % 3 == 0 else {ONE}, [0, 60, 60, 0, 60, 0, 0, 0, 0, 0]),
        # One now and then it misses: it is waited for.
        (lambda n: {ONE} if n % 5 == 4 else {ONE, TWO}, [0, 0, 0, 0, 60, 0, 0, 0, 0, 60]),
        # Nobody comes: an outage, in which no attempt is over at once.
        (lambda _n: set(), [60] * 10),
        # Nor after it: nobody was missing while others sent.
        (lambda n: {ONE} if n == 5 else {ONE, TWO} if n > 5 else set(), [60] * 6 + [0] * 4),
    ],
)
def test_who_is_missing_again_and_again_is_not_waited_for(
    here: Side, who: Callable[[int], set[ClientId]], sent: list[float]
) -> None:
    assert attempts(here, 10, who) == sent


def test_who_comes_back_and_is_slower_than_the_others_is_waited_for_again(here: Side) -> None:
    """It comes too late while nobody waits for it, and so it would for ever."""
    assert attempts(here, 5, lambda _n: {ONE})[-2:] == [0, 0]
    for number in range(8, 12):
        here.inbox.open(Opened(number, 2, (TWO, ONE), MODEL, frozenset()))
        late = here.submission(TWO, number - 1)
        assert reason_of(lambda late=late: here.inbox.start(bare(late))) is Rejection.WRONG_ATTEMPT
        upload(here.inbox, here.submission(ONE, number))
        assert here.inbox.over([ONE, TWO], lambda _: False) == (number < 11)
        here.inbox.close()
        here.inbox.cancel()


def test_a_server_waits_for_no_half_that_never_comes(here: Side) -> None:
    """It sends to the other server alone, in every attempt."""
    attempts(here, 3, lambda _n: {ONE})
    here.inbox.open(Opened(6, 2, (TWO, ONE), MODEL, frozenset()))
    upload(here.inbox, here.submission(ONE, 6))
    before = here.clock.now()
    here.inbox.wait([ONE, TWO], before + 60)
    assert here.clock.now() == before
