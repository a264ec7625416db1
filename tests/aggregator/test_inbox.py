"""One server's submissions: of each client the first good header counts, the rest has
reasons.

Bodies on the disk are noise; what both servers hold alike goes on at once, and no more.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.faults.conftest import small_task as simulated_task
from tests.faults.invariants import check
from tests.faults.world import World
from tests.rig import submissions
from tests.rig.aggregators import link_over
from tests.rig.clock import LonelyClock
from tests.rig.keys import signer, verifier
from tests.rig.memory_link import memory_pair
from tests.rig.submissions import (
    MODEL,
    ONE,
    body_of,
    expanded,
    flipped,
    pair_of,
    upload,
)
from tests.rig.tasks import task_with
from tests.rig.waiting import until

from precad.aggregator.attempt_states import Matched, Opened
from precad.aggregator.collect import matching
from precad.aggregator.collect.inbox import Backlog, Inbox
from precad.aggregator.collect.upload import TAG_BYTES, Spool, SpooledBody
from precad.common.errors import (
    BodyUnreadable,
    PeerViolation,
    RejectedSubmission,
    Rejection,
)
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.submission import CHUNK_BYTES, Submission
from precad.common.wire.messages import encode
from precad.norm_check.proof_submission import AnySubmission

A, B, D = Role.SERVER_A, Role.SERVER_B, 8
TASK = task_with({}, D)
TWO, STRANGER = ClientId("ward-2"), ClientId("stranger")


@dataclass(frozen=True)
class Side:
    """One server's inbox, open for ONE and TWO; nothing else passes its clock's
    time."""

    role: Role
    folder: Path
    inbox: Inbox
    clock: LonelyClock

    @property
    def bodies(self) -> int:
        return 0 if self.role is Role.SERVER_A else 1

    def open(self, attempt: int = 3, *asleep: ClientId) -> None:
        self.inbox.cancel()
        self.inbox.open(
            Opened(
                attempt=attempt,
                version=2,
                cohort=(TWO, ONE),
                model=MODEL,
                counted=frozenset(),
                asleep=frozenset(asleep),
            )
        )

    def submission(self, client: ClientId = ONE, number: int = 3) -> Submission:
        return pair_of(TASK, client, number)[self.bodies]

    def send(self, client: ClientId = ONE, number: int = 3) -> None:
        upload(self.inbox, self.submission(client, number))

    def refuses(self, submission: Submission) -> Rejection:
        return reason_of(upload, self.inbox, submission)

    def spooled(self) -> int:
        return len(list((self.folder / "spool").iterdir()))

    def progress(self) -> int:
        attempt = self.inbox._open_attempt
        assert attempt is not None
        return len(attempt.held)

    def held(self, client: ClientId = ONE) -> AnySubmission:
        found = self.inbox.close()[client]
        assert not isinstance(found, Rejection)
        return found


OF_B = pytest.mark.parametrize(
    "here", [Role.SERVER_B], ids=["b"], indirect=True
)  # It gets bodies


@pytest.fixture(params=[Role.SERVER_A, Role.SERVER_B], ids=["a", "b"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Side:
    clock = LonelyClock()
    inbox = Inbox(request.param, TASK, verifier(), tmp_path / "spool", clock)
    side = Side(request.param, tmp_path, inbox, clock)
    side.open()
    return side


def bare(s: Submission) -> Submission:
    return replace(s, body=None)


def reason_of(call: Callable[..., object], *given: object) -> Rejection:
    with pytest.raises(RejectedSubmission) as rejected:
        call(*given)
    return rejected.value.reason


@pytest.mark.parametrize(
    "pieces", [(), (1,), (1, 2, 31), (31, 33), (32,), (0, 0, 5, 5)]
)
def test_a_complete_upload_is_held_as_it_came(
    here: Side, pieces: tuple[int, ...]
) -> None:
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
    anew = replace(first, header=submissions.signed_anew(first.header, signer(ONE)))
    assert anew.header.signature != first.header.signature
    refused += [here.refuses(each) for each in (second, anew)]
    assert (set(refused), here.spooled()) == ({Rejection.DUPLICATE}, here.bodies)
    held = here.held()
    assert held.header == first.header
    assert (expanded(held, D) == expanded(first, D)).all()


@OF_B
@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_a_body_that_was_not_signed_is_malformed_and_leaves_nothing(
    here: Side, at: int
) -> None:
    s = here.submission()
    unsigned = submissions.with_body(s, flipped(body_of(s), at))
    assert (here.refuses(unsigned), here.spooled()) == (Rejection.MALFORMED, 0)
    assert here.inbox.close()[ONE] is Rejection.ABSENT


@OF_B
@pytest.mark.parametrize("how", ["truncated", "abandoned"])
@pytest.mark.parametrize("sent", [0, 5, 31, 32, -1])
def test_an_upload_that_breaks_off_may_come_again(
    here: Side, sent: int, how: str
) -> None:
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
    assert isinstance(here.held(), Submission)


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
    wait_over(here, 5)
    assert sum(here.clock.slept) == pytest.approx(5)
    assert dict(here.inbox.close()) == {ONE: Rejection.TRUNCATED, TWO: Rejection.ABSENT}
    here.inbox.refuse(3, ONE, Rejection.TRUNCATED)


def test_the_backlog_is_the_most_that_lay_there_and_known_when_all_is_closed(
    here: Side,
) -> None:
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


def wait_over(side: Side, seconds: float, *gone: ClientId) -> None:
    """As servers do, by looking whether collection is over; or until so much time has
    passed."""
    clock = side.inbox._clock
    deadline = clock.now() + seconds
    while not side.inbox.over([ONE, TWO], gone.__contains__) and clock.now() < deadline:
        side.inbox.wait_arrival(min(0.02, deadline - clock.now()))
        side.inbox.arrivals()


def test_waiting_ends_when_all_are_held(here: Side) -> None:
    inbox = Inbox(here.role, TASK, verifier(), here.folder / "of its own")
    side = replace(here, inbox=inbox)
    side.open()
    with ThreadPoolExecutor(1) as sender:
        sending = sender.map(side.send, (ONE, TWO))
        wait_over(side, 600)
        assert side.progress() == 2
    assert list(sending) == [None, None]


def test_nobody_waits_for_who_has_gone_or_sent_something_wrong(here: Side) -> None:
    here.send()
    wait_over(here, 5, TWO)
    wrong = replace(bare(here.submission(TWO)), seed=Secret(bytes(32)))
    assert reason_of(here.inbox.start, wrong) is Rejection.MALFORMED
    wait_over(here, 5)
    assert here.clock.slept == []
    # It may still mend its upload before the round closes.
    here.send(TWO)
    assert isinstance(here.held(TWO), Submission)


def attempts(
    here: Side, count: int, senders: Callable[[int], set[ClientId]]
) -> list[float]:
    """How long each lasts, of these who send in time; collection would take 60 s."""
    lasted = []
    missed: Counter[ClientId] = Counter()
    for number in range(3, 3 + count):
        here.open(number, *(client for client in missed if missed[client] >= 2))
        began = here.clock.now()
        for client in sorted(senders(number - 3)):
            here.send(client, number)
        wait_over(here, 60)
        lasted.append(float(round(here.clock.now() - began)))
        absent = {
            client
            for client, outcome in here.inbox.close().items()
            if outcome is Rejection.ABSENT
        }
        if absent != {ONE, TWO}:
            missed = Counter({client: missed[client] + 1 for client in absent})
    return lasted


@pytest.mark.parametrize(
    ("who", "sent"),
    [
        # Silent for ever, then back: nobody waits, and what comes in time counts as
        # ever.
        (lambda n: {ONE} if n < 7 else {ONE, TWO}, [60, 60, 0, 0, 0, 0, 0, 0, 0, 0]),
        # Two in three it misses: it never sleeps, and of two owners one is half.
        (
            lambda n: {ONE, TWO} if n % 3 == 0 else {ONE},
            [0, 60, 60, 0, 60, 60, 0, 60, 60, 0],
        ),
        # One now and then it misses: it is waited for.
        (
            lambda n: {ONE} if n % 5 == 4 else {ONE, TWO},
            [0, 0, 0, 0, 60, 0, 0, 0, 0, 60],
        ),
        # Nobody comes: an outage, in which no attempt is over at once.
        (lambda _n: set(), [60] * 10),
        # Nor after it: nobody was missing while others sent.
        (
            lambda n: {ONE} if n == 5 else {ONE, TWO} if n > 5 else set(),
            [60] * 6 + [0] * 4,
        ),
    ],
)
def test_who_misses_two_in_a_row_is_not_waited_for_until_it_sends_again(
    here: Side, who: Callable[[int], set[ClientId]], sent: list[float]
) -> None:
    assert attempts(here, 10, who) == sent


def test_who_comes_back_and_is_slower_than_the_others_is_waited_for_again(
    here: Side,
) -> None:
    """It comes too late while nobody waits for it, and so it would for ever."""
    assert attempts(here, 5, lambda _n: {ONE}) == [60, 60, 0, 0, 0]
    for number in range(8, 12):
        here.open(number, TWO)
        late = bare(here.submission(TWO, number - 1))
        assert reason_of(here.inbox.start, late) is Rejection.WRONG_ATTEMPT
        here.send(ONE, number)
        if number == 8:
            # It may send to the other server alone: nobody waits for a half that never
            # comes.
            before = here.clock.now()
            wait_over(here, 60)
            assert here.clock.now() == before
        assert here.inbox.over([ONE, TWO], lambda _: False) == (number == 8)
        here.inbox.close()


def test_whose_header_has_come_is_waited_for_again_at_once(here: Side) -> None:
    """It has woken up, and its body is on the way."""
    here.open(4, TWO)
    here.send(ONE, 4)
    assert here.inbox.over([ONE, TWO], lambda _: False)
    submission = here.submission(TWO, 4)
    taking = here.inbox.start(bare(submission))
    assert not here.inbox.over([ONE, TWO], lambda _: False)
    if here.bodies:
        taking.add(body_of(submission))
    taking.finish()
    assert here.inbox.over([ONE, TWO], lambda _: False)
    assert isinstance(here.held(TWO), Submission)


SALT = Secret(b"\7" * 32)
WORDS = np.arange(2 * CHUNK_BYTES // 8 + 5, dtype="<i8").tobytes()
CHUNK = CHUNK_BYTES + TAG_BYTES


def kept(spool: Spool, words: bytes = WORDS, client: ClientId = ONE) -> SpooledBody:
    file = spool.begin(client)
    file.add(memoryview(words))
    return file.finish(SALT)


@pytest.mark.parametrize(
    "size", [1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]
)
def test_a_body_is_the_same_however_it_arrives(tmp_path: Path, size: int) -> None:
    words = WORDS[-5000:] if size == 1 else WORDS
    file = Spool(tmp_path).begin(ONE)
    for start in range(0, len(words), size):
        file.add(memoryview(words)[start : start + size])
    body = file.finish(SALT)
    assert b"".join(body.pieces()) == words
    assert (
        body.path.stat().st_size
        == len(words) + -(-len(words) // CHUNK_BYTES) * TAG_BYTES
    )
    file = Spool(tmp_path).begin(ONE)
    file.add(memoryview(words))
    for _ in range(2):
        body.discard()
        file.abandon()
    assert list(tmp_path.iterdir()) == []


def test_equal_bodies_are_unlike_on_the_disk(tmp_path: Path) -> None:
    """No key and nonce are used twice: not in a file, an attempt, or two attempts."""
    words = bytes(2 * CHUNK_BYTES)
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
    "the last chunk is shorter": lambda data, _: (
        data[: -TAG_BYTES - 8] + data[-TAG_BYTES:]
    ),
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
def test_a_changed_file_is_no_other_body(
    tmp_path: Path, meddling: str, key: str
) -> None:
    """But a clear error.

    Another one is of the same attempt's, or of another attempt's key.
    """
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
        assert not [
            each for each in (secret.hex(), repr(secret)[2:-1]) if each in shown
        ]
    # Nobody else's is touched.
    assert b"".join(other.pieces()) == WORDS


NAMES = tuple(ClientId(f"ward-{number}") for number in range(5))
OPENED = Opened(
    attempt=3, version=2, cohort=NAMES, model=MODEL, counted=frozenset(NAMES)
)
WAIT_S = 240.0
PAIRS = {name: {half.role: half for half in pair_of(TASK, name)} for name in NAMES}


class Collecting:
    def __init__(self, folder: Path) -> None:
        ends = zip((A, B), memory_pair(), strict=True)
        self.links = {role: link_over(end, TASK, WAIT_S) for role, end in ends}
        self.inboxes = {
            role: Inbox(role, TASK, verifier(), folder / role.value) for role in (A, B)
        }
        for role in (A, B):
            self.inboxes[role].open(OPENED)
            self.links[role].begin_attempt(3)
        self.taken: dict[Role, list[ClientId]] = {A: [], B: []}
        self.batches: list[int] = []  # How many A took together
        self.over, self.gather = threading.Event(), False

    def upload(self, client: ClientId, *roles: Role) -> None:
        for role in roles or (B, A):
            upload(self.inboxes[role], PAIRS[client][role])

    def take(self, role: Role, submissions: Sequence[AnySubmission]) -> None:
        assert all(s.role is role for s in submissions)
        assert role is A or all(s.body is not None for s in submissions)
        self.taken[role] += [s.context.client for s in submissions]
        if role is A and submissions:
            self.batches.append(len(submissions))

    def wait_for_taken(self, *clients: ClientId) -> None:
        until(
            lambda: all(set(self.taken[role]) == set(clients) for role in (A, B)),
            lambda: f"{clients}, of whom were taken {self.taken}",
        )

    def play(self, role: Role) -> Matched:
        inbox, link, take = (
            self.inboxes[role],
            self.links[role],
            partial(self.take, role),
        )
        if role is A:
            taken = matching.ask(
                OPENED, inbox, link, take, self.over.is_set, gather=self.gather
            )
        else:
            taken = matching.offer(OPENED, inbox, link, take, WAIT_S)
        collected = inbox.close()
        if role is A:
            matching.say_over(link)
        theirs = link.exchange("held", matching.describe(collected, taken).to_bytes())
        listed = matching.HeldList.from_bytes(theirs)
        assert not taken & set(listed.of(matching.rest_of(OPENED, taken)))
        return matching.match(OPENED, role, collected, listed, taken)

    @contextmanager
    def running(self) -> Iterator[dict[Role, "Future[Matched]"]]:
        with ThreadPoolExecutor(2) as threads:
            futures = {role: threads.submit(self.play, role) for role in (A, B)}
            try:
                yield futures
            finally:
                self.over.set()


@pytest.fixture
def collecting(tmp_path: Path) -> Collecting:
    return Collecting(tmp_path)


def test_what_both_hold_alike_is_taken_while_others_upload(
    collecting: Collecting,
) -> None:
    first, late, differs, half, absent = NAMES
    with collecting.running() as servers:
        collecting.upload(first)
        collecting.wait_for_taken(first)
        # B alone holds it for a while: it is matched once A does, without being offered
        # anew.
        collecting.upload(late, B)
        collecting.upload(differs, A)
        upload(collecting.inboxes[B], pair_of(TASK, differs)[1])
        collecting.upload(half, A)
        assert collecting.taken == {A: [first], B: [first]}
        collecting.upload(late, A)
        collecting.wait_for_taken(first, late)
    unmatched = dict.fromkeys((differs, half), Rejection.UNMATCHED)
    for role in (A, B):
        matched, both = servers[role].result(), [first, late]
        assert (collecting.taken[role], list(matched.submissions)) == (both, both)
        assert matched.early == set(both)
        assert matched.rejections == unmatched | {absent: Rejection.ABSENT}


def test_a_batch_waits_for_half(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting.gather = True
    with collecting.running(), monkeypatch.context() as patch:
        # A turn waits for somebody, however long.
        patch.setattr(matching, "LOOK_S", WAIT_S)
        for client in NAMES[:2]:
            collecting.upload(client)
        until(
            lambda: collecting.links[B].bytes_sent >= 2 * 32,
            lambda: f"offers, of which {collecting.links[B].bytes_sent} bytes came",
        )
        assert collecting.batches == []
        # Half of five, and then of the two that are missing still.
        for number in (3, 4):
            collecting.upload(NAMES[number - 1])
            collecting.wait_for_taken(*NAMES[:number])
        patch.undo()
        # One that nobody joins any more is taken however small it is.
        collecting.upload(NAMES[4])
        collecting.wait_for_taken(*NAMES)
    assert collecting.batches == [3, 1, 1]


@pytest.mark.parametrize(
    ("offers", "why"),
    [
        ([(6,)], "isn't among 5"),
        ([(2, 0)], "Offer from the other server: clients.1"),
        ([(2,), (2,)], "ward-1, who isn't to be offered"),
    ],
    ids=["stranger", "twice at once", "twice"],
)
def test_a_refuses_bad_offers(
    collecting: Collecting, offers: list[tuple[int, ...]], why: str
) -> None:
    for steps in offers:
        offer = {"clients": steps, "signed": [bytes(32)] * len(steps)}
        collecting.links[B].send("offer", encode("Offer", offer))
    with pytest.raises(PeerViolation, match=why):
        collecting.play(A)
    assert collecting.taken[A] == []


@pytest.mark.parametrize("times", [1, 2])
def test_b_refuses_names_not_offered_or_given_already(
    collecting: Collecting, times: int
) -> None:
    asked = matching.Places(NAMES).steps([NAMES[0] if times > 1 else NAMES[1]])
    collecting.upload(NAMES[0], B)
    for _ in range(times):
        collecting.links[A].send("ask", matching.Ask().to_bytes())
        collecting.links[A].send("alike", matching.Alike(clients=asked).to_bytes())
    with pytest.raises(PeerViolation, match="aren't left to take"):
        collecting.play(B)
    assert len(collecting.taken[B]) == times - 1


def test_bodies_go_on_before_collection_closes_and_comparisons_afterwards(
    tmp_path: Path,
) -> None:
    """In whole trainings of the simulated servers, by what they send."""
    task = simulated_task(3, changes={"privacy.client_rate": 1.0})
    world = World(task, tmp_path, seed=3)
    world.run()
    check(world)
    # What server B sends, attempt by attempt; the last "cohort" is its word on the
    # training's end.
    sent = [
        step.split()[-1]
        for step in world.seen.trace
        if step.startswith("server-b: send ")
    ]
    starts = [at for at, step in enumerate(sent) if step == "cohort"]
    early_bodies = 0
    for start, end in pairwise(starts):
        attempt = sent[start:end]
        closed = attempt.index("held")
        early_bodies += sum(step.startswith("body") for step in attempt[:closed])
        decided = [
            at
            for at, step in enumerate(attempt)
            if step.startswith(("opened", "decide"))
        ]
        assert decided
        assert min(decided) > closed
    assert len(starts) == task.training.rounds + 1
    assert early_bodies > 0
