"""The servers' link over gRPC streams: A dials, B serves.

The round's thread puts and gets frames; gRPC's side runs in threads (A) or on the event
loop (B). Bodies are forwarded piece by piece: a few frames wait at each end, however
slow the other end is.

B answers on the first stream. A's frames take turns over all streams, each on a
connection of its own. The reason: what a port takes unread on one connection is
bounded, because of owners' uploads, and so one connection leaves a long line half
empty.
"""

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, closing, contextmanager
from functools import partial

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from precad.aggregator import Frame
from precad.common import (
    Digest,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Role,
    call_in,
    start_thread,
)
from precad.common.identity import Identity, mutual_tls
from precad.common.wire import Context, StreamCall, error_of
from precad.protos import precad_pb2 as pb

LOOK_S = 2.0
"""Seconds after which the reason is looked for why a link doesn't come about."""
REFUSED_S = 20.0
"""Seconds that a link is waited for where nothing is wrong as seen from here.

In TLS 1.3 a server that refuses a certificate lets go of the connection when the
handshake is over for whoever dials.
"""
STREAMS = 4
"""Streams from server A to server B.

What a port takes unread on as many connections fills 100 Mbit/s at 40 ms there and
back, with the other direction busy too.
"""
_WAITING = 4
"""Frames that wait at one end: 4 MiB of a body that is forwarded."""
_POLL_S = 0.5
"""Seconds between looks at whether the link has ended, while a thread waits for room.
"""


class _Receiving:
    """What both ends do alike: give frames as they came, then the error at their end.

    The error stays: whoever asks again gets it again.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Frame | PrecadError] = queue.SimpleQueue()
        self._ended: PrecadError | None = None
        """The first error that ended the stream."""

    def get(self, timeout_s: float) -> Frame:
        """Return the next frame.

        Raises PeerUnavailable: none came for ``timeout_s`` seconds; or the error that
        ended the stream.
        """
        try:
            item = self._items.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerUnavailable(
                f"the other server sent nothing for {timeout_s:g} s"
            ) from None
        if isinstance(item, PrecadError):
            self._items.put(item)  # the link stays broken
            raise item
        return item

    @property
    def alive(self) -> bool:
        """Whether the stream is open, as far as this side knows."""
        return self._ended is None

    def require_alive(self) -> None:
        """Raise the error that ended the stream, if one did."""
        if self._ended is not None:
            raise self._ended

    def _wait_for(self, room: threading.Semaphore, timeout_s: float, peer: str) -> None:
        """Wait until the other end has taken enough of what was sent before.

        Raises PeerUnavailable: it took nothing for ``timeout_s`` seconds; or the error
        that ended the stream.
        """
        deadline = time.monotonic() + timeout_s
        while not room.acquire(timeout=_POLL_S):
            self.require_alive()
            if time.monotonic() >= deadline:
                raise PeerUnavailable(f"{peer} took nothing for {timeout_s:g} s")

    def _end(self, error: PrecadError) -> None:
        """End the stream: whoever waits for a frame hears the error."""
        if self._ended is None:
            self._ended = error
        self._items.put(error)


class DialledTransport(_Receiving):
    """A's end of the link, over several channels.

    All ``channels`` lead to the same port, and carry frames. ``why`` looks for what
    keeps a connection from coming about.

    Raises PeerUnavailable: server B isn't there within ``timeout_s``, or ``why`` knows
    what keeps the connection from coming about; PeerViolation: server B names no link.
    """

    def __init__(
        self,
        channels: Sequence[grpc.Channel],
        address: str,
        timeout_s: float,
        why: mutual_tls.Why,
    ) -> None:
        """Open the link: first its first stream, then those that belong to it."""
        super().__init__()
        self._address = address
        _wait_for_channels(channels, address, timeout_s, why)
        self._outgoing = [queue.SimpleQueue[bytes | None]() for _ in channels]
        """Messages that wait to be sent over each stream; None ends it."""
        self._frames_put = 0
        self._closed = False
        self._timeout_s = timeout_s
        self._room = threading.Semaphore(_WAITING)
        """Room for frames that came and wait to be read."""
        self._unsent = threading.Semaphore(_WAITING)
        """Room for frames that wait to be sent."""
        first, *others = channels
        self._call = self._open(first, stream=0, link=str(len(self._outgoing)))
        self._reader = start_thread("peer-link", self._read)
        metadata = self._call.initial_metadata()
        if mutual_tls.greeted_version(metadata) != mutual_tls.WIRE_VERSION:
            # Before anything is said: the call was refused, or another version answers.
            # The reader has the error, and this raises it.
            super().get(timeout_s)
        link = dict(metadata).get(_LINK)
        if link is None:
            self._call.cancel()
            raise PeerViolation(
                f"server B at {address} names no link that other streams belong to"
            )
        self._others = [
            self._open(other, stream=number, link=f"{link} {number}")
            for number, other in enumerate(others, 1)
        ]

    def require_alive(self) -> None:
        """Raise the error that ended a stream, if one did.

        Raises PeerUnavailable: server B closed one of the other streams.
        """
        super().require_alive()
        if any(call.done() for call in self._others):
            raise PeerUnavailable(
                f"server B at {self._address} closed a stream of the link"
            )

    def put(self, frame: Frame) -> None:
        """Send one frame, once B has taken those before. Raises PeerUnavailable."""
        self.require_alive()
        self._wait_for(self._unsent, self._timeout_s, "server B")
        stream = self._frames_put % len(self._outgoing)
        self._outgoing[stream].put(frame_to_wire(frame))
        self._frames_put += 1

    def get(self, timeout_s: float) -> Frame:
        """Return the next frame, and make room for one more.

        Raises PeerUnavailable: none came for ``timeout_s`` seconds; or the error that
        ended the stream.
        """
        frame = super().get(timeout_s)
        self._room.release()
        return frame

    def close(self) -> None:
        """End the link and all its streams."""
        self._closed = True
        for outgoing in self._outgoing:
            outgoing.put(None)
        self._reader.join(timeout=1)
        for call in (self._call, *self._others):
            call.cancel()

    def _open(self, channel: grpc.Channel, *, stream: int, link: str) -> StreamCall:
        """Open one stream; ``link`` is what its metadata say of the link."""
        method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            METHOD
        )
        return method(self._requests(self._outgoing[stream]), metadata=((_LINK, link),))

    def _requests(self, outgoing: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
        """Yield the messages of one stream to gRPC, until None."""
        for message in iter(outgoing.get, None):
            yield message
            self._unsent.release()

    def _read(self) -> None:
        """Take what B answers on the first stream; runs in a thread of its own."""
        try:
            for message in self._call:
                version = mutual_tls.greeted_version(self._call.initial_metadata())
                if version != mutual_tls.WIRE_VERSION:
                    mutual_tls.check_version(f"server B at {self._address}", version)
                # B is held up by gRPC's flow control, until this side has read.
                while not self._room.acquire(timeout=_POLL_S):
                    if self._closed:
                        return
                self._items.put(frame_from_wire(message))
            self._end(PeerUnavailable("server B closed the link"))
        except grpc.RpcError as error:
            self._end(error_of("server B", self._address, error))
        except (Misconfiguration, PeerViolation) as error:
            self._end(error)


def _wait_for_channels(
    channels: Sequence[grpc.Channel],
    address: str,
    timeout_s: float,
    why: mutual_tls.Why,
) -> None:
    """Wait until all channels to server B are connected.

    All of them: a call over a channel whose first try breaks off would be over at once.

    Raises PeerUnavailable: they aren't within ``timeout_s`` or ``REFUSED_S`` seconds,
    whichever is less; or ``why``'s answer.
    """
    connected = [grpc.channel_ready_future(channel) for channel in channels]
    waited_s = min(REFUSED_S, timeout_s)
    deadline = time.monotonic() + waited_s
    try:
        try:
            connected[0].result(timeout=min(LOOK_S, waited_s))
        except grpc.FutureTimeoutError:
            # The reason is raised at once, and whoever hears it tries again: a wrong
            # address shows in seconds.
            cause = why()
            if cause is not None:
                raise cause from None
        for future in connected:
            future.result(timeout=max(0.0, deadline - time.monotonic()))
    except grpc.FutureTimeoutError:
        raise PeerUnavailable(
            f"server B at {address} let no link come about within {waited_s:g} s;"
            " check that it runs, and its address; it may refuse this server's"
            " certificate, for its clock or another root certificate: compare both"
            " sides'"
        ) from None
    finally:
        for future in connected:
            future.cancel()


@contextmanager
def dial(
    address: str, identity: Identity, timeout_s: float
) -> Iterator[DialledTransport]:
    """Dial server B, or its worker, until the block ends.

    Raises PeerUnavailable, PeerViolation: as ``DialledTransport``.
    """
    with ExitStack() as stack:
        channels = []
        for _ in range(STREAMS):
            channel = mutual_tls.open_channel(
                address, identity, Role.SERVER_B, bulk=True
            )
            channels.append(stack.enter_context(channel))
        why = partial(mutual_tls.why_unreachable, address, identity, Role.SERVER_B)
        transport = DialledTransport(channels, address, timeout_s, why)
        yield stack.enter_context(closing(transport))


class ServedTransport(_Receiving):
    """B's end of the link, filled by the servicer's handler on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        super().__init__()
        self._loop = loop
        self._timeout_s = timeout_s
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_WAITING)
        """Room for frames that wait to be sent."""

    def put(self, frame: Frame) -> None:
        """Send one frame, once A has taken those before. Raises PeerUnavailable."""
        self._wait_for(self._room, self._timeout_s, "server A")
        # In this thread, while its processor has the payload in its cache.
        message = frame_to_wire(frame)
        if self._loop.is_closed():  # this server was told to stop: no bug
            raise PeerUnavailable("the link to server A is closed")
        call_in(self._loop, self._outgoing.put_nowait, message)

    def close(self) -> None:
        """End the stream; whoever still waits on it hears so."""
        self._end(PeerUnavailable("the link to server A was replaced or closed"))
        call_in(self._loop, self._outgoing.put_nowait, None)

    async def serve(self, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """Yield what was put, and take ``requests``, until either side ends the stream.

        Both are messages as bytes.
        """
        reader = asyncio.create_task(self._read(requests))
        try:
            while (message := await self._outgoing.get()) is not None:
                yield message
                self._room.release()
        finally:
            reader.cancel()
            self._end(PeerUnavailable("the link to server A is closed"))

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        """Take A's messages until they end, and then end the stream."""
        try:
            async for message in requests:
                self._items.put(frame_from_wire(message))
        except Misconfiguration as error:
            self._end(error)
        self._end(PeerUnavailable("server A closed the link"))
        self._outgoing.put_nowait(None)


class _Streams:
    """Puts A's messages, which come over several streams, in the order of sending."""

    def __init__(self, streams: int) -> None:
        self._others = [asyncio.Queue[bytes | None]() for _ in range(1, streams)]
        """What came over each stream but the first; None ends it."""
        self.over = False
        """Nothing more is taken: the link has ended, or was refused before it began."""

    async def fill(self, stream: int, requests: AsyncIterator[bytes]) -> None:
        """Take what comes over one of the other streams, while the link lives."""
        other = self._others[stream - 1]
        try:
            async for message in requests:
                if self.over:
                    return
                other.put_nowait(message)
        finally:
            other.put_nowait(None)

    async def messages(self, first: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """Yield all messages, until a stream has ended whose turn it is.

        ``first`` are those of the first stream.
        """
        async for message in first:
            yield message
            for other in self._others:
                next_message = await other.get()
                if next_message is None:
                    return
                yield next_message


_SERVICE = "precad.v1.Peer"
_METHOD = "Link"
METHOD = f"/{_SERVICE}/{_METHOD}"
"""To be called with messages as bytes: ``frame_to_wire``, ``frame_from_wire``."""
_LINK = "precad-link"
"""In metadata: of the first call how many streams there are, of its answer the link's
name, and of the other calls that name and which stream it is."""
_STREAM_NUMBERS = tuple(map(str, range(1, STREAMS + 1)))
_TAG = bytes([pb.LinkFrame.PAYLOAD_FIELD_NUMBER << 3 | 2])
"""Of the payload's field: its number, and that a length follows."""
_MORE = 0x80
"""The bit that says, in a byte of one of protobuf's lengths, that another byte follows.
"""
_BITS = 7
"""Bits of the length in each byte, the least significant ones first."""
_LENGTH_BYTES = 4
"""The most bytes of a payload's length: 256 MiB."""

Behaviour = Callable[[AsyncIterator[bytes], Context], AsyncGenerator[bytes]]
"""What answers the link: takes A's messages and yields B's, all as bytes."""


def frame_to_wire(frame: Frame) -> bytes:
    """Return the bytes of one frame: a ``LinkFrame`` with its payload first.

    The payload is copied once.
    """
    other_fields = pb.LinkFrame(
        task_digest=frame.task.value,
        attempt=frame.attempt,
        step=frame.step,
        sequence=frame.sequence,
        last=frame.last,
    ).SerializeToString()
    if not frame.payload:
        return other_fields
    return b"".join(
        (_TAG, _encoded_length(len(frame.payload)), frame.payload, other_fields)
    )


def frame_from_wire(message: bytes) -> Frame:
    """Return the frame in ``message``, which any writer of protobuf may have written.

    A payload that comes first is a view of the message, without a copy.

    Raises Misconfiguration: it is no frame.
    """
    payload, other_fields = _split(message)
    try:
        read = pb.LinkFrame.FromString(other_fields)
    except DecodeError:
        raise Misconfiguration(
            "frame", len(message), "isn't a frame of the servers' link"
        ) from None
    if payload and read.payload:
        raise Misconfiguration("frame", len(message), "has two payloads")
    return Frame(
        task=Digest(read.task_digest),
        attempt=read.attempt,
        step=read.step,
        sequence=read.sequence,
        payload=payload or read.payload,
        last=read.last,
    )


def add_link_to_server(behaviour: Behaviour, server: grpc.aio.Server) -> None:
    """Offer the link on a server that isn't started yet; ``behaviour`` answers it.

    The first call of a link is answered with the link's name, and its messages go to
    ``behaviour``, with those of the calls that give the name again.
    """
    # By the link's name and the caller's certificate.
    links: dict[tuple[str, object], _Streams] = {}

    async def greeted(
        requests: AsyncIterator[bytes], context: Context
    ) -> AsyncGenerator[bytes]:
        """Answer one call, which begins a link or is another stream of one."""
        # Nobody else may add to a link: its name is random, and goes with the caller's
        # certificate.
        metadata = dict(context.invocation_metadata() or ())
        name, _, stream = str(metadata.get(_LINK, "1")).partition(" ")
        certificate = tuple(context.auth_context().get("x509_pem_cert", ()))
        if stream:
            await context.send_initial_metadata(mutual_tls.GREETING)
            known = (name, certificate) in links
            if not known or stream not in _STREAM_NUMBERS[:-1]:
                await context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION, "a stream of no link"
                )
            await links[name, certificate].fill(int(stream), requests)
            return
        link = secrets.token_hex(16)
        count = int(name) if name in _STREAM_NUMBERS else 1
        links[link, certificate] = streams = _Streams(count)
        await context.send_initial_metadata((*mutual_tls.GREETING, (_LINK, link)))
        try:
            async with aclosing(
                behaviour(streams.messages(requests), context)
            ) as messages:
                async for message in messages:
                    yield message
        finally:
            del links[link, certificate]
            streams.over = True

    handler: grpc.RpcMethodHandler[bytes, bytes] = (
        grpc.stream_stream_rpc_method_handler(greeted)
    )
    offered = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})
    server.add_generic_rpc_handlers((offered,))


def _split(message: bytes) -> tuple[memoryview, bytes]:
    """Return a frame's payload, if it comes first, and the bytes of all other fields.

    The payload is a view, empty where another field comes first.

    Raises Misconfiguration: the message ends before its payload does.
    """
    view = memoryview(message)
    if not message.startswith(_TAG):
        return view[:0], message
    length = 0
    for place, byte in enumerate(view[len(_TAG) :][:_LENGTH_BYTES]):
        length |= (byte & ~_MORE) << (_BITS * place)
        if byte < _MORE:
            start = len(_TAG) + place + 1
            end = start + length
            if end <= len(message):
                return view[start:end], message[end:]
            break
    raise Misconfiguration("frame", len(message), "ends before its payload does")


def _encoded_length(length: int) -> bytes:
    """Return a length as protobuf writes it before a field's bytes."""
    encoded = bytearray()
    while length >= _MORE:
        encoded.append(length % _MORE | _MORE)
        length >>= _BITS
    return bytes([*encoded, length])
