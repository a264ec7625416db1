"""Frames of the servers' link as messages: protobuf's ``LinkFrame``, without copies of payloads.

Protobuf copies a payload twice at each end, which costs more than its encryption. So its field is
written here, before all others, and read as a view of the message; any other order is read too.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest
from precad.common.link import Frame
from precad.protos import precad_pb2 as pb

_SERVICE, _METHOD = "precad.v1.Peer", "Link"
METHOD = f"/{_SERVICE}/{_METHOD}"
"""To be called with messages as bytes: ``frame_to_wire``, ``frame_from_wire``."""
_TAG = bytes([pb.LinkFrame.PAYLOAD_FIELD_NUMBER << 3 | 2])
"""Of the payload's field: its number, and that a length follows."""
_MORE, _BITS, _LENGTH_BYTES = 0x80, 7, 4
"""Protobuf's lengths: seven bits a byte, the least first; four are 256 MiB."""

Behaviour = Callable[[AsyncIterator[bytes], grpc.aio.ServicerContext[Any, Any]], AsyncIterable[Any]]


def frame_to_wire(frame: Frame) -> bytes:
    """One frame: a ``LinkFrame``, its payload first."""
    rest = pb.LinkFrame(
        task_digest=frame.task.value,
        attempt=frame.attempt,
        step=frame.step,
        sequence=frame.sequence,
        last=frame.last,
    ).SerializeToString()
    if not frame.payload:
        return rest
    return b"".join((_TAG, _length(len(frame.payload)), frame.payload, rest))


def frame_from_wire(message: bytes) -> Frame:
    """Inverse of ``frame_to_wire``; the payload is a view of ``message``.

    Raises:
        Misconfiguration: it is no frame, or its digest has the wrong length.
    """
    payload, rest = _split(message)
    try:
        other = pb.LinkFrame.FromString(rest)
    except DecodeError:
        raise Misconfiguration(
            "frame", len(message), "isn't a frame of the servers' link"
        ) from None
    if payload and other.payload:
        raise Misconfiguration("frame", len(message), "has two payloads")
    return Frame(
        Digest(other.task_digest),
        other.attempt,
        other.step,
        other.sequence,
        payload or other.payload,
        other.last,
    )


def add_link_to_server(behaviour: Behaviour, server: grpc.aio.Server) -> None:
    """Offer the link: ``behaviour`` takes and gives messages as bytes."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(behaviour)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),)
    )


def _split(message: bytes) -> tuple[memoryview, bytes]:
    """The payload, where it comes first, and all else."""
    view = memoryview(message)
    if not message.startswith(_TAG):
        return view[:0], message
    length = 0
    for place, byte in enumerate(view[1 : 1 + _LENGTH_BYTES]):
        length |= (byte & ~_MORE) << (_BITS * place)
        if byte < _MORE:
            start = len(_TAG) + place + 1
            if start + length <= len(message):
                return view[start : start + length], message[start + length :]
            break
    raise Misconfiguration("frame", len(message), "ends before its payload does")


def _length(length: int) -> bytes:
    coded = bytearray()
    while length >= _MORE:
        coded.append(length % _MORE | _MORE)
        length >>= _BITS
    return bytes([*coded, length])
