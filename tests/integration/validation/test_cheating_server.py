"""One server departs from the protocol, the other and the dealer don't (docs/cheating-server.md).

Whatever it does, everything that the honest server sends before its noisy share it could have
computed itself, and it ends in a named fault or a refused submission.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.faults.turns import Life, Turns, TurnsClock
from tests.integration.validation.conftest import (
    SERVERS,
    aggregator_of,
    by_gates,
    submissions_of,
    task_of,
)
from tests.rig.submissions import words_of

from precad.aggregator.peer_link import Frame, PeerLink
from precad.aggregator.release import aggregate
from precad.aggregator.rounds.states import Matched, Opened, Summed
from precad.aggregator.validate.check_by_gates import ByGates
from precad.common.errors import BodyUnreadable, PeerUnavailable, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.share.submission import HeldBody, Submission
from precad.common.task import Task
from precad.dealer import gate_batches as gates
from precad.dealer.dealer_role import DealerRole
from precad.dealer.local_dealing import LocalDealing
from precad.norm_check.dealing import DealerConversation, GateKeys
from precad.norm_check.dealt_triples import SquareRequest
from precad.norm_check.norm_gates import submission_bytes

A, B = SERVERS
TIMEOUT_S = 60.0
GATES = 41
WIDTH = submission_bytes(GATES)
Halves = dict[Role, dict[ClientId, Submission]]


@pytest.fixture
def task() -> Task:
    return by_gates(task_of(64, client_clip=30.1))


def updates(task: Task) -> list[RingVector]:
    """Two candidates for the first client's update, both within the bound; and another client's."""
    one = np.zeros(task.dimension, dtype=np.int64)
    other = np.full(task.dimension, task.bound // 16, dtype=np.int64)
    other[0] = -(task.bound // 2)
    return [one, other, np.ones(task.dimension, dtype=np.int64)]


# --- a server with changes ----------------------------------------------------------------------


@dataclass
class Cheat:
    """What one server does otherwise; by default nothing."""

    frame: Callable[[Frame], Frame | None] = lambda frame: frame
    """What it sends instead of a frame."""
    request: Callable[[SquareRequest], SquareRequest] = lambda request: request
    """What it asks the dealer for instead."""
    half: Callable[[Submission], Submission] = lambda half: half
    """What it takes for its half of each submission."""
    turned: bool = False
    """It goes through the submissions in the other order."""


@dataclass
class Wire:
    """One end of the link in simulated time; all that this server sent is kept."""

    turns: Turns
    change: Callable[[Frame], Frame | None]
    other: "Wire | None" = None
    incoming: deque[Frame] = field(default_factory=deque)
    sent: list[Frame] = field(default_factory=list)
    hung_up: bool = False

    def put(self, frame: Frame) -> None:
        changed = self.change(frame)
        if changed is not None and self.other is not None:
            self.sent.append(changed)
            self.other.incoming.append(changed)

    def get(self, timeout_s: float) -> Frame:
        assert self.other is not None
        other = self.other
        self.turns.wait(lambda: bool(self.incoming) or other.hung_up, timeout_s)
        if not self.incoming:
            raise PeerUnavailable("the other server hung up, or sent nothing in time")
        return self.incoming.popleft()

    def require_alive(self) -> None:
        """Nobody waits for anything but frames here."""


class Asking:
    """A server's way to the dealer, on which it changes what it asks; it sees what it is dealt."""

    def __init__(self, dealing: LocalDealing, change: Callable[[SquareRequest], Any]) -> None:
        self._dealing = dealing
        self._change = change

    def deal(self, request: Any) -> RingVector:
        return self._dealing.deal(request)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[DealerConversation]:
        with self._dealing.squares(attempt) as conversation:
            change, ask = self._change, conversation.ask

            class Changed:
                def ask(self, request: SquareRequest) -> None:
                    for each in (
                        (changed,)
                        if isinstance(changed := change(request), SquareRequest)
                        else changed
                    ):
                        ask(each)

                def __getattr__(self, name: str) -> Any:
                    return getattr(conversation, name)

            changed: DealerConversation = Changed()
            yield changed


@dataclass(frozen=True)
class Played:
    """What came of it at the honest server, and what went over the link."""

    outcome: Summed | Exception
    """The honest server's."""
    sent: list[Frame]
    """By the honest server."""
    own_bits: list[bytes]
    """What the cheat's own keys gave it at the signed points, submission by submission."""

    @property
    def bits(self) -> list[bytes]:
        """Each message of the honest server that holds its bits."""
        return [bytes(frame.payload) for frame in self.sent if frame.step.startswith("decide/")]

    @property
    def rejections(self) -> dict[ClientId, Rejection]:
        assert isinstance(self.outcome, Summed), self.outcome
        return dict(self.outcome.counted.rejections)


def play(task: Task, halves: Halves, cheater: Role, cheat: Cheat) -> Played:
    """One attempt; the other server follows the protocol."""
    dealer, turns = DealerRole.of(task), Turns(0, limit_s=1e6)
    clock = TurnsClock(turns, 0)
    wires = {role: Wire(turns, cheat.frame if role is cheater else lambda f: f) for role in SERVERS}
    wires[A].other, wires[B].other = wires[B], wires[A]
    noted: list[bytes] = []
    unchanged = ByGates._evaluate

    def evaluate(self: ByGates, submissions: Sequence[Submission]) -> bytes:
        bits = unchanged(self, submissions)
        if submissions[0].role is cheater:
            width = len(bits) // len(submissions)
            noted.extend(bits[start : start + width] for start in range(0, len(bits), width))
        return bits

    outcomes: dict[Role, Summed | Exception] = {}

    def serve(role: Role) -> Summed:
        link = PeerLink(wires[role], task.digest, max_message_bytes=1 << 20, timeout_s=TIMEOUT_S)
        link.begin_attempt(0)
        held = dict(halves[role])
        dealing: Any = LocalDealing(dealer, role, TIMEOUT_S, clock)
        if role is cheater:
            if cheat.turned:
                held = dict(reversed(held.items()))
            held = {client: cheat.half(half) for client, half in held.items()}
            dealing = Asking(dealing, cheat.request)
        aggregator = replace(aggregator_of(task, role, link, dealer), dealing=dealing)
        clients = tuple(sorted(held))
        opened = Opened(0, 0, clients, Digest.of(b"model"), frozenset(clients))
        return aggregate(aggregator, Matched(opened, held, {}))

    def run(role: Role) -> None:
        try:
            outcomes[role] = serve(role)
        except Exception as error:  # noqa: BLE001 -- each test says which it must be
            outcomes[role] = error
        wires[role].hung_up = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ByGates, "_evaluate", evaluate)
        for role in SERVERS:
            turns.spawn(role.value, Life(role.value), partial(run, role))
        turns.run(lambda: len(outcomes) == len(SERVERS))
    honest = B if cheater is A else A
    return Played(outcomes[honest], wires[honest].sent, noted)


def complement(own: bytes) -> bytes:
    """What the other server has where all gates hold and its word is right."""
    bits = np.unpackbits(np.frombuffer(own, dtype=np.uint8))
    other = 1 - bits
    other[GATES] = 1
    other[GATES + 1 :] = 0
    return np.packbits(other).tobytes()


def assert_nothing_new(played: Played) -> None:
    """The honest server's messages are what the cheat could have computed, or none of bits."""
    for heard in played.bits:
        assert heard == b"".join(complement(own) for own in played.own_bits)
    allowed = ("decide/", "body/", "valid-set")
    assert {f.step for f in played.sent if not f.step.startswith(allowed)} == set()


def decide_frames(change: Callable[[bytes], bytes | None]) -> Callable[[Frame], Frame | None]:
    def changed(frame: Frame) -> Frame | None:
        if not frame.step.startswith("decide/"):
            return frame
        payload = change(bytes(frame.payload))
        return None if payload is None else replace(frame, payload=payload)

    return changed


def flipped(place: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[place // 8] ^= 0x80 >> place % 8
        return bytes(changed)

    return flip


# --- what an honest server says -----------------------------------------------------------------


@pytest.mark.parametrize("cheater", SERVERS)
@pytest.mark.parametrize("candidate", [0, 1])
def test_a_server_that_only_looks_hears_what_it_could_have_computed(
    task: Task, cheater: Role, candidate: int
) -> None:
    vectors = updates(task)
    halves = submissions_of(task, [vectors[candidate], vectors[2]])
    played = play(task, halves, cheater, Cheat())
    assert played.rejections == {}
    assert_nothing_new(played)
    assert [len(each) for each in played.bits] == [2 * WIDTH] == [12]


LIES: dict[str, Callable[[bytes], bytes | None]] = {
    "first gate": flipped(0),
    "last gate": flipped(GATES - 1),
    "own word": flipped(GATES),
    "all": lambda data: bytes(255 - each for each in data[:5]) + data[5:],
    "the second submission": flipped(8 * WIDTH),
}


@pytest.mark.parametrize("cheater", SERVERS)
@pytest.mark.parametrize("candidate", [0, 1])
@pytest.mark.parametrize("lie", LIES)
def test_bits_that_lie_refuse_a_submission_and_tell_nothing(
    task: Task, cheater: Role, candidate: int, lie: str
) -> None:
    vectors = updates(task)
    halves = submissions_of(task, [vectors[candidate], vectors[2]])
    played = play(task, halves, cheater, Cheat(frame=decide_frames(LIES[lie])))
    assert_nothing_new(played)
    assert len(played.bits) == 1
    # The sets differ now, which both see before any sum goes on.
    assert isinstance(played.outcome, PeerViolation)


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "short": lambda data: data[:-1],
    "long": lambda data: data + b"\0",
    "empty": lambda _: b"",
    "a bit behind the last": flipped(GATES + 1),
}


@pytest.mark.parametrize("cheater", SERVERS)
@pytest.mark.parametrize("fault", MALFORMED)
def test_bits_that_are_not_bits_are_the_other_servers_fault(
    task: Task, cheater: Role, fault: str
) -> None:
    cheat = Cheat(frame=decide_frames(MALFORMED[fault]))
    played = play(task, submissions_of(task, updates(task)), cheater, cheat)
    assert_nothing_new(played)
    assert isinstance(played.outcome, PeerViolation)


@pytest.mark.parametrize("cheater", SERVERS)
def test_silence_is_the_other_servers_fault(task: Task, cheater: Role) -> None:
    def silent(frame: Frame) -> Frame | None:
        return frame if frame.step.startswith("body/") else None

    played = play(task, submissions_of(task, updates(task)), cheater, Cheat(frame=silent))
    assert_nothing_new(played)
    assert isinstance(played.outcome, PeerUnavailable)


# --- before bits --------------------------------------------------------------------------------


def body_frames(change: Callable[[bytes], bytes]) -> Callable[[Frame], Frame | None]:
    """In pieces of b; not the salt, nor the last word."""

    def changed(frame: Frame) -> Frame | None:
        is_piece = frame.step.startswith("body/") and len(frame.payload) > 32
        return replace(frame, payload=change(bytes(frame.payload))) if is_piece else frame

    return changed


def forwarded_salt(frame: Frame) -> Frame:
    is_salt = frame.step.startswith("body/") and len(frame.payload) == 32
    return replace(frame, payload=bytes(32)) if is_salt else frame


BODIES: dict[str, Callable[[Frame], Frame | None]] = {
    "one bit": body_frames(flipped(77)),
    "one word short": body_frames(lambda data: data[:-8]),
    "one word long": body_frames(lambda data: data + bytes(8)),
    "zeros": body_frames(lambda data: bytes(len(data))),
    "another salt": forwarded_salt,
}


@pytest.mark.parametrize("change", BODIES)
def test_no_bit_leaves_for_a_body_that_was_not_signed(task: Task, change: str) -> None:
    """R3: else B would choose the point at which A evaluates its keys."""
    played = play(task, submissions_of(task, updates(task)), B, Cheat(frame=BODIES[change]))
    assert played.bits == []
    assert isinstance(played.outcome, PeerViolation)


class Unreadable(HeldBody):
    def pieces(self) -> Iterator[memoryview]:
        yield from ()
        raise BodyUnreadable("so it says")


def test_a_body_that_b_says_it_cannot_read_costs_that_submission_alone(task: Task) -> None:
    halves = submissions_of(task, updates(task))
    first, *_ = halves[B]

    def unreadable(half: Submission) -> Submission:
        if half.context.client != first or half.body is None:
            return half
        return replace(half, body=Unreadable(half.body.salt, b""))

    played = play(task, halves, B, Cheat(half=unreadable))
    assert played.rejections == {first: Rejection.TRUNCATED}
    # Nothing at all is heard of that one.
    assert_nothing_new(played)
    assert [len(each) for each in played.bits] == [2 * WIDTH]


REQUESTS: dict[str, Callable[[SquareRequest], Any]] = {
    "another seed": lambda r: replace(r, seed=Secret.random()),
    "another salt": lambda r: replace(r, salt=Secret.random()),
    "another commitment to A": lambda r: replace(r, commitment_a=bytes(32)),
    "another commitment to B": lambda r: replace(r, commitment_b=bytes(32)),
    "another context": lambda r: replace(r, context=bytes(32)),
    "twice": lambda r: (r, r),
}


@pytest.mark.parametrize("cheater", SERVERS)
@pytest.mark.parametrize("change", REQUESTS)
def test_no_bit_leaves_where_the_dealer_was_told_something_else(
    task: Task, cheater: Role, change: str
) -> None:
    """R1: rows and gates are dealt once, for what both servers name alike."""
    played = play(
        task, submissions_of(task, updates(task)), cheater, Cheat(request=REQUESTS[change])
    )
    if change == "twice" and isinstance(played.outcome, Summed):
        # The dealer answered the first before the second came: nothing is different.
        assert_nothing_new(played)
        return
    assert isinstance(played.outcome, (PeerViolation, PeerUnavailable))
    assert_nothing_new(played)


def with_words(half: Submission, shift: int) -> Submission:
    words = half.header.words
    assert words is not None
    changed = words[0] + shift, words[1]
    return replace(half, header=replace(half.header, words=changed))


@pytest.mark.parametrize("cheater", SERVERS)
def test_words_other_than_the_signed_ones_move_no_point_of_the_honest_server(
    task: Task, cheater: Role
) -> None:
    """R2: the honest server's bits are those of the words that its client signed."""
    halves = submissions_of(task, updates(task))
    plain = play(task, halves, cheater, Cheat())
    assert_nothing_new(plain)
    played = play(task, halves, cheater, Cheat(half=lambda half: with_words(half, 2**40)))
    # Its submissions have other names now, and the servers are out of step.
    assert isinstance(played.outcome, (PeerViolation, PeerUnavailable))
    if cheater is B:
        assert played.bits == []


@pytest.mark.parametrize("cheater", SERVERS)
def test_another_order_is_out_of_step(task: Task, cheater: Role) -> None:
    played = play(task, submissions_of(task, updates(task)), cheater, Cheat(turned=True))
    assert isinstance(played.outcome, (PeerViolation, PeerUnavailable))
    # B forwards, and hears nothing of A's order before it has; A does.
    if cheater is B:
        assert played.bits == []


def other_body(half: Submission) -> Submission:
    if half.body is None:
        return half
    return replace(half, body=HeldBody(half.body.salt, bytes(len(words_of(half)))))


def test_a_body_that_b_itself_took_otherwise_is_refused_by_a(task: Task) -> None:
    played = play(task, submissions_of(task, updates(task)), B, Cheat(half=other_body))
    assert isinstance(played.outcome, PeerViolation)
    assert played.bits == []


# --- the dealer's keys --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["short", "long", "version", "party", "gates", "empty"])
def test_a_key_that_is_not_a_key_is_never_evaluated(
    task: Task, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The dealer's or the link's fault: it ends the attempt, by its name, and no bit leaves."""
    change: dict[str, Callable[[bytes], bytes]] = {
        "short": lambda data: data[:-1],
        "long": lambda data: data + b"\0",
        "version": lambda data: b"\2" + data[1:],
        "party": lambda data: data[:1] + bytes([1 - data[1]]) + data[2:],
        "gates": lambda data: data[:4] + b"\1" + data[5:],
        "empty": lambda _: b"",
    }

    def spoiled(data: bytes) -> GateKeys:
        return GateKeys(change[fault](data))

    monkeypatch.setattr(gates, "GateKeys", spoiled)
    played = play(task, submissions_of(task, updates(task)), A, Cheat())
    assert isinstance(played.outcome, PeerViolation)
    assert "keys can't be used" in str(played.outcome)
    assert played.bits == []


# --- a client that lies in its words ------------------------------------------------------------


@pytest.mark.parametrize("looks", SERVERS)
def test_a_word_that_makes_a_long_update_look_short_is_seen_by_its_server(
    task: Task, looks: Role
) -> None:
    """All gates hold: only that server's own look at its word is in the way."""
    long = np.zeros(task.dimension, dtype=np.int64)
    long[0] = task.bound + 5
    excess = task.bound**2 - int(long[0]) ** 2
    lie = (0, excess) if looks is B else (excess, 0)
    halves = submissions_of(task, [long, updates(task)[2]])
    liar = next(iter(halves[A]))
    for half in halves.values():
        words = half[liar].header.words
        assert words is not None
        told = words[0] + lie[0], words[1] + lie[1]
        half[liar] = replace(half[liar], header=replace(half[liar].header, words=told))
    assert play(task, halves, A, Cheat()).rejections == {liar: Rejection.NORM_EXCEEDED}
