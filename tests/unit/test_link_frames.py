"""Frames of the servers' link as messages: what protobuf reads, and what is refused."""

import pytest

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest
from precad.common.link import Frame
from precad.common.wire.link import frame_from_wire, frame_to_wire
from precad.protos import precad_pb2 as pb

TASK = Digest(bytes(range(32)))


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
