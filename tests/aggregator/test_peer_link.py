"""The servers' link: whole messages in order, its frames, and CrypTen's communicator."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch.distributed import ReduceOp

from precad.aggregator.peer_link import PIECE_BYTES, Frame, PeerLink, memory_pair
from precad.aggregator.rpc.peer_transport import frame_from_wire, frame_to_wire
from precad.aggregator.validate.crypten_comparisons import LinkCommunicator
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation, TaskMismatch
from precad.common.identifiers import Digest
from precad.protos import precad_pb2 as pb

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
    assert (sender._sent, sender.bytes_sent, receiver.bytes_received) == (frames, size, size)
    # And into its place, where its length is known.
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
    with pytest.raises(PeerViolation, match="has more than"):
        link(ends[1], limit=2 * PIECE_BYTES - 1).receive("step")
    # The third piece was not even asked for.
    assert ends[1].get(1).sequence == 2


def test_silence_ends_at_the_deadline(ends: Any) -> None:
    with pytest.raises(PeerUnavailable, match=r"0\.05 s"):
        link(ends[1]).receive("step")
    with pytest.raises(PeerUnavailable, match=r"0\.01 s"):
        link(ends[1]).receive("step", timeout_s=0.01)


def test_a_frame_does_not_show_its_payload() -> None:
    frame = Frame(TASK, 3, "step", 0, b"\x41\x42\x43\x44 share", last=True)
    for shown in (repr(frame), str(frame), f"{frame}", repr(dataclasses.replace(frame, attempt=4))):
        assert "ABCD" not in shown
        assert "10 bytes" in shown


# --- frames on the wire --------------------------------------------------------------------------


def frame(payload: bytes, *, last: bool = False) -> Frame:
    return Frame(TASK, -1, "body/0123", 7, payload, last)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 1 << 19, 1 << 21])
def test_a_frame_is_read_as_it_was_written_and_as_protobuf_reads_it(length: int) -> None:
    sent = frame(bytes(range(256)) * (length // 256) + bytes(length % 256), last=True)
    message = frame_to_wire(sent)
    assert frame_from_wire(message) == sent
    read = pb.LinkFrame.FromString(message)
    assert (read.task_digest, read.attempt, read.step) == (TASK.value, -1, "body/0123")
    assert (read.sequence, read.payload, read.last) == (7, sent.payload, True)


def test_a_frame_of_protobuf_in_any_order_is_read() -> None:
    sent = frame(b"payload")
    other = pb.LinkFrame(
        task_digest=TASK.value, attempt=-1, step="body/0123", sequence=7, payload=b"payload"
    )
    assert frame_from_wire(other.SerializeToString()) == sent


def test_a_payload_is_no_copy() -> None:
    message = frame_to_wire(frame(b"p" * 1000))
    payload = frame_from_wire(message).payload
    assert isinstance(payload, memoryview)
    assert payload.obj is message


@pytest.mark.parametrize(
    "message",
    [
        frame_to_wire(frame(b"p" * 200))[:150],
        frame_to_wire(frame(b"p" * 200))[:2],
        frame_to_wire(frame(b"p" * 200))[:-1],
        b"\x2a",
        b"\x2a\xff\xff\xff\xff\x0f",
        b"\x2a\x80\x80\x80\x80\x80",
        b"not protobuf",
        frame_to_wire(frame(b"one")) + pb.LinkFrame(payload=b"two").SerializeToString(),
        pb.LinkFrame(task_digest=b"short", payload=b"p").SerializeToString(),
        b"",
    ],
)
def test_what_is_no_frame_is_refused(message: bytes) -> None:
    with pytest.raises(Misconfiguration):
        frame_from_wire(message)


# --- CrypTen's communicator ----------------------------------------------------------------------


T = TypeVar("T")
X = torch.tensor([[1, -2], [2**63 - 1, 5]])
Y = torch.tensor([[3, 7], [1, -5]])


def pair(
    step_b: str = "t", patience_s: float = 30.0
) -> tuple[LinkCommunicator, LinkCommunicator, PeerLink]:
    """Both communicators, and B's link to misbehave on."""
    a, b = (
        PeerLink(end, TASK, max_message_bytes=1 << 20, timeout_s=patience_s)
        for end in memory_pair()
    )
    return LinkCommunicator(0, a, "t"), LinkCommunicator(1, b, step_b), b


def run(first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
    with ThreadPoolExecutor(max_workers=2) as threads:
        futures = threads.submit(first), threads.submit(second)
        return futures[0].result(), futures[1].result()


@pytest.mark.parametrize(
    ("op", "expected"), [(ReduceOp.SUM, X + Y), (ReduceOp.BXOR, X ^ Y)], ids=["sum", "xor"]
)
def test_reductions_wrap_in_the_ring_and_keep_shapes(op: object, expected: torch.Tensor) -> None:
    a, b, link = pair()
    at_a, at_b = run(lambda: a.all_reduce(X, op=op), lambda: b.all_reduce(Y, op=op))
    assert torch.equal(at_a, expected)  # type: ignore[arg-type]
    assert torch.equal(at_b, expected)  # type: ignore[arg-type]
    batch = run(
        lambda: a.all_reduce([X, X[0]], op=op, batched=True),
        lambda: b.all_reduce([Y, Y[0]], op=op, batched=True),
    )
    for result in batch:
        assert torch.equal(result[0], expected)
        assert torch.equal(result[1], expected[0])
    # One message a batch; 8 bytes a ring element, nothing around them.
    assert link._sent == 2
    assert link.bytes_sent == 8 * (4 + 4 + 2)
    assert X.tolist() == [[1, -2], [2**63 - 1, 5]]


def test_another_operation_is_a_violation() -> None:
    a, b, _ = pair()
    with pytest.raises(PeerViolation, match="out of step"):
        run(lambda: a.all_reduce(X), lambda: b.all_reduce(X, op=ReduceOp.BXOR))


def test_a_repeated_message_is_a_violation() -> None:
    a, _, link = pair()
    link.send("t/all-reduce-sum/0", bytes(32))
    a.all_reduce(X)
    link.send("t/all-reduce-sum/0", bytes(32))
    with pytest.raises(PeerViolation, match="out of step"):
        a.all_reduce(X)


@pytest.mark.parametrize("length", [0, 1, 31, 33, 40, 24])
def test_another_length_is_a_violation(length: int) -> None:
    a, _, link = pair()
    link.send("t/all-reduce-sum/0", bytes(length))
    with pytest.raises(PeerViolation, match=f"got {length} bytes, expected 32"):
        a.all_reduce(X)


@pytest.mark.parametrize(
    ("handed", "batched"), [(X.double(), False), ([X], False), (X, True), ([X, X.int()], True)]
)
def test_what_are_no_ring_elements_is_an_error_and_never_a_wrong_number(
    handed: Any,
    batched: bool,  # noqa: FBT001
) -> None:
    a, _, link = pair()
    with pytest.raises(TypeError, match="only ring elements"):
        a.all_reduce(handed, batched=batched)
    assert not link._received


@pytest.mark.parametrize("method", ["send_obj", "recv_obj", "broadcast_obj", "gather", "scatter"])
def test_nothing_that_pickles_exists(method: str) -> None:
    assert not hasattr(LinkCommunicator, method)
