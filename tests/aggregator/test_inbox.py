"""One server's submissions: the first good header of each client counts, the rest has reasons.

And bodies on the disk: as they came, or a clear error; and noise to whoever lacks the key.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.clock import LonelyClock
from tests.rig.keys import signer, verifier
from tests.rig.submissions import (
    MODEL,
    ONE,
    body_of,
    expanded,
    flipped,
    pair_of,
    signed_anew,
    upload,
    with_body,
)
from tests.rig.tasks import task_with

from precad.aggregator.collect.inbox import Backlog, Inbox
from precad.aggregator.collect.upload import TAG_BYTES, Spool, SpooledBody
from precad.aggregator.rounds.states import Opened
from precad.common.clock import CLOCK
from precad.common.errors import BodyUnreadable, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.share.submission import PIECE_BYTES, Submission

D = 8
TASK = task_with({}, D)
TWO, STRANGER = ClientId("ward-2"), ClientId("stranger")


@dataclass(frozen=True)
class Side:
    """One server's inbox, open for ONE and TWO; nothing else passes its clock's time."""

    role: Role
    folder: Path
    inbox: Inbox
    clock: LonelyClock

    @property
    def bodies(self) -> int:
        return 0 if self.role is Role.SERVER_A else 1

    def open(self, attempt: int = 3) -> None:
        self.inbox.cancel()
        self.inbox.open(Opened(attempt, 2, (TWO, ONE), MODEL, frozenset()))

    def submission(self, client: ClientId = ONE, number: int = 3) -> Submission:
        return pair_of(TASK, client, number)[self.bodies]

    def send(self, client: ClientId = ONE, number: int = 3) -> None:
        upload(self.inbox, self.submission(client, number))

    def refuses(self, submission: Submission) -> Rejection:
        return reason_of(upload, self.inbox, submission)

    def spooled(self) -> int:
        return len(list((self.folder / "spool").iterdir()))

    def progress(self) -> int:
        assert self.inbox._round is not None
        return len(self.inbox._round.held)

    def held(self, client: ClientId = ONE) -> Submission:
        held = self.inbox.close()[client]
        assert isinstance(held, Submission)
        return held


OF_B = pytest.mark.parametrize("here", [Role.SERVER_B], ids=["b"], indirect=True)
"""The server that gets bodies."""


@pytest.fixture(params=[Role.SERVER_A, Role.SERVER_B], ids=["a", "b"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Side:
    clock = LonelyClock()
    inbox = Inbox(request.param, TASK, verifier(), tmp_path / "spool", clock)
    side = Side(request.param, tmp_path, inbox, clock)
    side.open()
    return side


def bare(s: Submission) -> Submission:
    return replace(s, body=None)


def reason_of(call: Any, *given: Any) -> Rejection:
    with pytest.raises(RejectedSubmission) as rejected:
        call(*given)
    return rejected.value.reason


@pytest.mark.parametrize("pieces", [(), (1,), (1, 2, 31), (31, 33), (32,), (0, 0, 5, 5)])
def test_a_complete_upload_is_held_as_it_came(here: Side, pieces: tuple[int, ...]) -> None:
    s = here.submission()
    # The same bytes again are a retry.
    for _ in range(2):
        upload(here.inbox, s, pieces)
    assert (here.progress(), here.spooled()) == (1, here.bodies)
    held = here.held()
    assert (held.header, held.seed, held.salt) == (s.header, s.seed, s.salt)
    assert body_of(held) == body_of(s)


def test_the_first_header_is_the_clients_only_one(here: Side) -> None:
    first, second = here.submission(), here.submission()
    early = here.inbox.start(bare(first))
    refused = [here.refuses(second)]
    # Also where its body broke off.
    early.abandon()
    refused.append(here.refuses(second))
    upload(here.inbox, first)
    # ECDSA signs the same bytes in many ways; the servers compare the signature too.
    anew = replace(first, header=signed_anew(first.header, signer(ONE)))
    assert anew.header.signature != first.header.signature
    refused += [here.refuses(each) for each in (second, anew)]
    assert (set(refused), here.spooled()) == ({Rejection.DUPLICATE}, here.bodies)
    held = here.held()
    assert held.header == first.header
    assert (expanded(held, D) == expanded(first, D)).all()


@OF_B
@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_a_body_that_was_not_signed_is_malformed_and_leaves_nothing(here: Side, at: int) -> None:
    s = here.submission()
    unsigned = with_body(s, flipped(body_of(s), at))
    assert (here.refuses(unsigned), here.spooled()) == (Rejection.MALFORMED, 0)
    assert here.inbox.close()[ONE] is Rejection.ABSENT


@OF_B
@pytest.mark.parametrize("how", ["truncated", "abandoned"])
@pytest.mark.parametrize("sent", [0, 5, 31, 32, -1])
def test_an_upload_that_breaks_off_may_come_again(here: Side, sent: int, how: str) -> None:
    s = here.submission()
    taking = here.inbox.start(bare(s))
    taking.add(body_of(s)[:sent])
    if how == "abandoned":
        taking.abandon()
        taking.abandon()
    assert reason_of(taking.finish) is Rejection.TRUNCATED
    assert reason_of(taking.add, b"") is Rejection.TRUNCATED
    assert (taking.complete, here.spooled(), here.progress()) == (False, 0, 0)
    upload(here.inbox, s)
    here.held()


def test_an_upload_that_ends_after_the_round_is_too_late(here: Side) -> None:
    s = here.submission()
    taking = here.inbox.start(bare(s))
    taking.add(body_of(s))
    assert here.inbox.close()[ONE] is Rejection.ABSENT
    assert (reason_of(taking.finish), here.spooled()) == (Rejection.WRONG_ATTEMPT, 0)
    here.open(4)
    assert here.refuses(s) is Rejection.WRONG_ATTEMPT
    assert here.inbox.close()[ONE] is Rejection.ABSENT


def test_an_inbox_closes_at_its_deadline_however_busy_the_round_is(here: Side) -> None:
    here.inbox.close_at(here.clock.now() + 5)
    here.send()
    s = here.submission(TWO)
    taking = here.inbox.start(bare(s))
    taking.add(body_of(s))
    here.clock.sleep(5)
    for call in (taking.finish, lambda: here.inbox.start(bare(s))):
        with pytest.raises(RejectedSubmission, match="any more"):
            call()
    closed = here.inbox.close()
    assert isinstance(closed[ONE], Submission)
    assert closed[TWO] is Rejection.ABSENT


def test_what_is_found_outside_is_counted_once_and_for_members_only(here: Side) -> None:
    for attempt, client in ((3, ONE), (2, TWO), (3, STRANGER)):
        here.inbox.refuse(attempt, client, Rejection.TRUNCATED)
    here.inbox.refuse(3, ONE, Rejection.MALFORMED)
    assert reason_of(here.send, STRANGER) is Rejection.NOT_SELECTED
    # Whose link broke may come again: it is waited for.
    here.inbox.wait([ONE], here.clock.now() + 5)
    assert here.clock.slept == [5]
    assert dict(here.inbox.close()) == {ONE: Rejection.TRUNCATED, TWO: Rejection.ABSENT}
    here.inbox.refuse(3, ONE, Rejection.TRUNCATED)


def test_the_backlog_is_the_most_that_lay_there_and_known_when_all_is_closed(here: Side) -> None:
    here.send()
    assert len(here.inbox.arrivals()) == 1
    here.send(TWO)
    assert here.inbox.backlog == Backlog()
    here.inbox.close()
    # Each was asked for before the next one came; bodies stay, and server A has none.
    assert here.inbox.backlog == Backlog(1, 2 * 8 * D * here.bodies)
    here.open(4)
    here.inbox.close()
    assert here.inbox.backlog == Backlog()


def nobody(_client: ClientId) -> bool:
    return False


def wait_over(side: Side, seconds: float, gone: Callable[[ClientId], bool] = nobody) -> None:
    """As servers do, by looking whether collection is over; or until so much time has passed."""
    deadline = side.clock.now() + seconds
    while not side.inbox.over([ONE, TWO], gone) and side.clock.now() < deadline:
        side.inbox.wait_arrival(min(0.02, deadline - side.clock.now()))
        side.inbox.arrivals()


def test_waiting_ends_when_all_are_held(here: Side) -> None:
    inbox = Inbox(here.role, TASK, verifier(), here.folder / "of its own")
    side = replace(here, inbox=inbox)
    side.open()
    with ThreadPoolExecutor(1) as sender:
        sending = sender.map(side.send, (ONE, TWO))
        inbox.wait([ONE, TWO], CLOCK.now() + 600)
        assert side.progress() == 2
    assert list(sending) == [None, None]


def test_nobody_waits_for_who_has_gone_or_sent_something_wrong(here: Side) -> None:
    here.send()
    wait_over(here, 5, gone=lambda client: client == TWO)
    wrong = replace(bare(here.submission(TWO)), seed=Secret(bytes(32)))
    assert reason_of(here.inbox.start, wrong) is Rejection.MALFORMED
    here.inbox.wait([ONE, TWO], here.clock.now() + 5)
    assert here.clock.slept == []
    # It may still mend its upload before the round closes.
    here.send(TWO)
    here.held(TWO)


def attempts(here: Side, count: int, senders: Callable[[int], set[ClientId]]) -> list[float]:
    """How long each lasts, of these who send in time; collection would take 60 s."""
    lasted = []
    for number in range(3, 3 + count):
        here.open(number)
        began = here.clock.now()
        for client in sorted(senders(number - 3)):
            here.send(client, number)
        wait_over(here, 60)
        lasted.append(float(round(here.clock.now() - began)))
        here.inbox.close()
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
        here.open(number)
        late = bare(here.submission(TWO, number - 1))
        assert reason_of(here.inbox.start, late) is Rejection.WRONG_ATTEMPT
        here.send(ONE, number)
        if number == 8:
            # It may send to the other server alone: nobody waits for a half that never comes.
            before = here.clock.now()
            here.inbox.wait([ONE, TWO], before + 60)
            assert here.clock.now() == before
        assert here.inbox.over([ONE, TWO], nobody) == (number < 11)
        here.inbox.close()


SALT = Secret(b"\7" * 32)
WORDS = np.arange(2 * PIECE_BYTES // 8 + 5, dtype="<i8").tobytes()
CHUNK = PIECE_BYTES + TAG_BYTES


def kept(spool: Spool, words: bytes = WORDS, client: ClientId = ONE) -> SpooledBody:
    file = spool.begin(client)
    file.add(memoryview(words))
    return file.finish(SALT)


@pytest.mark.parametrize(
    "size", [1, 4096, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES]
)
def test_a_body_is_the_same_however_it_arrives(tmp_path: Path, size: int) -> None:
    words = WORDS[-5000:] if size == 1 else WORDS
    file = Spool(tmp_path).begin(ONE)
    for start in range(0, len(words), size):
        file.add(memoryview(words)[start : start + size])
    body = file.finish(SALT)
    assert b"".join(body.pieces()) == words
    assert body.path.stat().st_size == len(words) + -(-len(words) // PIECE_BYTES) * TAG_BYTES
    file = Spool(tmp_path).begin(ONE)
    file.add(memoryview(words))
    for _ in range(2):
        body.discard()
        file.abandon()
    assert list(tmp_path.iterdir()) == []


def test_equal_bodies_are_unlike_on_the_disk(tmp_path: Path) -> None:
    """No key and nonce are used twice: not in a file, an attempt, or two attempts."""
    words = bytes(2 * PIECE_BYTES)
    spool = Spool(tmp_path)
    files = [kept(each, words) for each in (spool, spool, Spool(tmp_path))]
    blocks = [
        data[start : start + 16]
        for data in (each.path.read_bytes() for each in files)
        for start in (0, 16, CHUNK, CHUNK + 16)
    ]
    assert len(set(blocks)) == len(blocks)


MEDDLINGS: dict[str, Callable[[bytes, bytes], bytes] | None] = {
    "a bit of the first chunk": lambda data, _: flipped(data, 0),
    "a bit of the last chunk": lambda data, _: flipped(data, -TAG_BYTES - 1),
    "a bit of a tag": lambda data, _: flipped(data, CHUNK - 1),
    "the last byte is gone": lambda data, _: data[:-1],
    "the last chunk is gone": lambda data, _: data[: 2 * CHUNK],
    "the last chunk is shorter": lambda data, _: data[: -TAG_BYTES - 8] + data[-TAG_BYTES:],
    "nothing is left": lambda *_: b"",
    "two chunks exchanged": lambda data, _: b"".join(chunks(data, 1, 0, 2)),
    "a chunk twice": lambda data, _: b"".join(chunks(data, 0, 0, 2)),
    "a chunk left out": lambda data, _: b"".join(chunks(data, 0, 2)),
    "another's file": lambda _, other: other,
    "removed": None,
    "a folder": None,
}


def chunks(data: bytes, *numbers: int) -> list[bytes]:
    return [data[number * CHUNK :][:CHUNK] for number in numbers]


@pytest.mark.parametrize("key", ["the same attempt's", "another attempt's"])
@pytest.mark.parametrize("meddling", MEDDLINGS)
def test_a_changed_file_is_no_other_body(tmp_path: Path, meddling: str, key: str) -> None:
    """But a clear error. Another one is of the same attempt's, or of another attempt's key."""
    spool = Spool(tmp_path)
    body = kept(spool)
    other = kept(spool if key == "the same attempt's" else Spool(tmp_path), client=TWO)
    change = MEDDLINGS[meddling]
    if change is None:
        body.path.unlink()
        if meddling == "a folder":
            body.path.mkdir()
    else:
        body.path.write_bytes(change(body.path.read_bytes(), other.path.read_bytes()))
    with pytest.raises(BodyUnreadable, match=str(body.path)) as error:
        list(body.pieces())
    shown = repr(body) + str(error.value)
    for secret in (SALT.reveal(), WORDS[:16], WORDS[-16:]):
        assert not [each for each in (secret.hex(), repr(secret)[2:-1]) if each in shown]
    # Nobody else's is touched.
    assert b"".join(other.pieces()) == WORDS
