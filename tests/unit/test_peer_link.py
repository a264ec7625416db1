"""The servers' link: whole messages in order, or an error that says why."""

import dataclasses
from typing import Any

import pytest

from precad.common.errors import PeerUnavailable, PeerViolation, TaskMismatch
from precad.common.identifiers import Digest
from precad.common.link import Frame, PeerLink, memory_pair
from precad.common.link.peer import PIECE_BYTES

TASK = Digest(b"\1" * 32)


@pytest.fixture
def ends() -> Any:
    return memory_pair()


def link(
    end: Any, *, task: Digest = TASK, limit: int = 1 << 24, timeout_s: float = 0.05
) -> PeerLink:
    return PeerLink(end, task, max_message_bytes=limit, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("size", "frames"),
    [
        (0, 1),
        (1, 1),
        (PIECE_BYTES - 1, 1),
        (PIECE_BYTES, 1),
        (PIECE_BYTES + 1, 2),
        (3 * PIECE_BYTES, 3),
        (3 * PIECE_BYTES + 7, 4),
    ],
)
def test_messages_arrive_whole_however_many_pieces_they_take(
    ends: Any, size: int, frames: int
) -> None:
    sender, receiver = link(ends[0]), link(ends[1])
    message = (bytes(range(251)) * (size // 251 + 1))[:size]
    sender.send("step", message)
    assert receiver.receive("step") == message
    assert sender._sent == frames
    assert (sender.bytes_sent, receiver.bytes_received) == (size, size)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 2 * PIECE_BYTES + 7])
def test_a_message_of_a_known_length_is_received_into_its_place(ends: Any, size: int) -> None:
    sender, receiver = link(ends[0]), link(ends[1])
    message = (bytes(range(251)) * (size // 251 + 1))[:size]
    sender.send("step", message)
    place = bytearray(size)
    receiver.receive_into("step", memoryview(place))
    assert bytes(place) == message


@pytest.mark.parametrize("more", [-PIECE_BYTES, -1, 1, PIECE_BYTES])
def test_a_message_of_another_length_than_its_place_is_a_violation(ends: Any, more: int) -> None:
    sender, receiver = link(ends[0]), link(ends[1])
    size = 2 * PIECE_BYTES
    sender.send("step", bytes(size + more))
    with pytest.raises(PeerViolation, match="step 'step'"):
        receiver.receive_into("step", memoryview(bytearray(size)))


def test_no_frame_is_larger_than_a_piece(ends: Any) -> None:
    link(ends[0]).send("step", bytes(5 * PIECE_BYTES + 1))
    sizes = [len(ends[1].get(1).payload) for _ in range(6)]
    assert sizes == [PIECE_BYTES] * 5 + [1]


def test_a_memoryview_is_sent_by_its_bytes(ends: Any) -> None:
    link(ends[0]).send("step", memoryview(b"abcdef")[1:4])
    assert link(ends[1]).receive("step") == b"bcd"


def test_an_exchange_crosses(ends: Any) -> None:
    a, b = link(ends[0]), link(ends[1])
    a.send("x", b"from a")
    assert b.exchange("x", b"from b") == b"from a"
    assert a.receive("x") == b"from b"


def test_the_wrong_step_is_a_desync(ends: Any) -> None:
    link(ends[0]).send("validate/1", b"")
    with pytest.raises(PeerViolation, match=r"out of step.*validate/2.*validate/1"):
        link(ends[1]).receive("validate/2")


@pytest.mark.parametrize(("theirs", "ours"), [(0, 1), (1, 0), (None, 0), (0, None)])
def test_the_wrong_round_is_a_desync(ends: Any, theirs: int | None, ours: int | None) -> None:
    sender, receiver = link(ends[0]), link(ends[1])
    if theirs is not None:
        sender.begin_attempt(theirs)
    if ours is not None:
        receiver.begin_attempt(ours)
    sender.send("step", b"")
    with pytest.raises(PeerViolation, match="out of step"):
        receiver.receive("step")


def frames_of(ends: Any, *messages: bytes) -> list[Frame]:
    sender = link(ends[0])
    for message in messages:
        sender.send("step", message)
    return [ends[1].get(1) for _ in range(sender._sent)]


@pytest.mark.parametrize("order", [(1,), (0, 0), (0, 2), (1, 0)])
def test_lost_repeated_and_reordered_frames_are_a_desync(ends: Any, order: tuple[int, ...]) -> None:
    frames = frames_of(ends, b"0", b"1", b"2")
    for place in order:
        ends[0].put(frames[place])
    receiver = link(ends[1])
    for _ in order[:-1]:
        if order[0] == 0:
            receiver.receive("step")
    with pytest.raises(PeerViolation, match="out of step"):
        receiver.receive("step")


def test_pieces_of_one_message_cannot_be_swapped(ends: Any) -> None:
    frames = frames_of(ends, b"\1" * PIECE_BYTES + b"\2" * PIECE_BYTES + b"\3")
    for place in (1, 0, 2):
        ends[0].put(frames[place])
    with pytest.raises(PeerViolation, match="out of step"):
        link(ends[1]).receive("step")


def test_another_task_names_both_digests(ends: Any) -> None:
    other = Digest(b"\2" * 32)
    link(ends[0], task=other).send("step", b"")
    with pytest.raises(TaskMismatch) as mismatch:
        link(ends[1]).receive("step")
    assert f"ours {TASK}, theirs {other}" in str(mismatch.value)


def test_a_message_above_the_limit_is_refused_while_it_arrives(ends: Any) -> None:
    link(ends[0]).send("step", bytes(3 * PIECE_BYTES))
    with pytest.raises(PeerViolation, match="limit"):
        link(ends[1], limit=2 * PIECE_BYTES - 1).receive("step")
    # The third piece was not even asked for.
    assert ends[1].get(1).sequence == 2


def test_a_message_of_just_the_limit_passes(ends: Any) -> None:
    link(ends[0]).send("step", bytes(100))
    assert len(link(ends[1], limit=100).receive("step")) == 100


def test_silence_ends_at_the_deadline(ends: Any) -> None:
    with pytest.raises(PeerUnavailable, match=r"0\.05 s"):
        link(ends[1]).receive("step")
    with pytest.raises(PeerUnavailable, match=r"0\.01 s"):
        link(ends[1]).receive("step", timeout_s=0.01)


def test_a_message_that_stops_halfway_ends_at_the_deadline(ends: Any) -> None:
    frames = frames_of(ends, bytes(PIECE_BYTES + 1))
    ends[0].put(frames[0])
    with pytest.raises(PeerUnavailable):
        link(ends[1]).receive("step")


def test_a_frame_does_not_show_its_payload() -> None:
    frame = Frame(TASK, 3, "step", 0, b"\x41\x42\x43\x44 share", last=True)
    for shown in (repr(frame), str(frame), f"{frame}", repr(dataclasses.replace(frame, attempt=4))):
        assert "ABCD" not in shown
        assert "10 bytes" in shown
