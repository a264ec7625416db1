"""The servers' link over gRPC streams: A dials, B serves.

The round's thread puts and gets frames; gRPC's side runs in threads (A) or on the event
loop (B). Bodies are forwarded piece by piece: a few frames wait at each end, however
slow the other.

B answers on the first stream. A's frames take turns over all, each on a connection of
its own: what a port takes unread on one is bounded, for owners' uploads, and leaves a
long line half empty.
"""

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, closing, contextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from precad.aggregator.peer_link import Frame
from precad.common.clock import call_in
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
)
from precad.common.identifiers import Digest, Role
from precad.common.identity import mutual_tls
from precad.common.identity.credentials import Identity
from precad.common.wire.calls import error_of
from precad.protos import precad_pb2 as pb

LOOK_S = 2.0
"""When a link that doesn't come about is looked at."""
REFUSED_S = 20.0
"""How long one is waited for where nothing is wrong as seen from here. In TLS 1.3 a
server lets go of a certificate that it refuses when the handshake is over for whoever
dials."""
STREAMS = 4
"""From server A to server B; what a port takes unread on as many connections fills 100
Mbit/s at 40 ms there and back, the other direction busy too."""
_WAITING = 4
"""Frames that wait at one end: 4 MiB of a body that is forwarded."""
_POLL_S = 0.5


class _Receiving:
    """What both ends do alike: frames as they came, then the error that ended them."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Frame | PrecadError] = queue.SimpleQueue()
        self._ended: PrecadError | None = None

    def get(self, timeout_s: float) -> Frame:
        """The next frame. Raises PeerUnavailable."""
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
        """Until the other end has taken what was sent before.

        Raises PeerUnavailable.
        """
        ends = time.monotonic() + timeout_s
        while not room.acquire(timeout=_POLL_S):
            self.require_alive()
            if time.monotonic() >= ends:
                raise PeerUnavailable(f"{peer} took nothing for {timeout_s:g} s")

    def _end(self, error: PrecadError) -> None:
        if self._ended is None:
            self._ended = error
        self._items.put(error)


class DialledTransport(_Receiving):
    """A's end; ``others`` are channels to the same port, and carry frames too.

    Raises PeerUnavailable: server B isn't there within ``timeout_s``, or ``why`` knows
    what keeps the connection from coming about.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        timeout_s: float,
        why: Callable[[], PeerUnavailable | None] = lambda: None,
        others: Sequence[grpc.Channel] = (),
    ) -> None:
        super().__init__()
        self._address = address
        # All of them: a call over one whose first try breaks off would be over at once.
        ready = [grpc.channel_ready_future(each) for each in (channel, *others)]
        waited_s = min(REFUSED_S, timeout_s)
        try:
            _wait(ready, waited_s, why)
        except grpc.FutureTimeoutError:
            raise PeerUnavailable(
                f"server B at {address} let no link come about within {waited_s:g} s;"
                " check that it runs, and its address; it may refuse this server's"
                " certificate, for its clock or another root certificate: compare both"
                " sides'"
            ) from None
        finally:
            for each in ready:
                each.cancel()
        self._outgoing = [
            queue.SimpleQueue[bytes | None]() for _ in range(1 + len(others))
        ]
        self._put = 0
        self._closed = False
        self._timeout_s = timeout_s
        self._room, self._unsent = (threading.Semaphore(_WAITING) for _ in range(2))
        self._call = self._open(channel, 0, str(len(self._outgoing)))
        self._reader = threading.Thread(
            target=self._read,
            name="peer-link",
            daemon=True,
        )
        self._reader.start()
        if (
            mutual_tls.greeted_version(self._call.initial_metadata())
            != mutual_tls.WIRE_VERSION
        ):
            # Before anything is said: the call was refused, or another version answers.
            super().get(timeout_s)
        link = dict(self._call.initial_metadata()).get(_LINK)
        if link is None:
            self._call.cancel()
            raise PeerViolation(
                f"server B at {address} names no link that other streams belong to"
            )
        self._others = [
            self._open(other, number, f"{link} {number}")
            for number, other in enumerate(others, 1)
        ]

    def require_alive(self) -> None:
        """As ``PeerLink.require_alive``: all streams are open."""
        super().require_alive()
        if any(call.done() for call in self._others):
            raise PeerUnavailable(
                f"server B at {self._address} closed a stream of the link"
            )

    def put(self, frame: Frame) -> None:
        """Send one frame, once B has taken those before. Raises PeerUnavailable."""
        self.require_alive()
        self._wait_for(self._unsent, self._timeout_s, "server B")
        self._outgoing[self._put % len(self._outgoing)].put(frame_to_wire(frame))
        self._put += 1

    def get(self, timeout_s: float) -> Frame:
        """The next frame. Raises PeerUnavailable."""
        frame = super().get(timeout_s)
        self._room.release()
        return frame

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        for outgoing in self._outgoing:
            outgoing.put(None)
        self._reader.join(timeout=1)
        for call in (self._call, *self._others):
            call.cancel()

    def _open(self, channel: grpc.Channel, stream: int, said: str) -> Any:
        link: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            METHOD
        )
        return link(self._requests(self._outgoing[stream]), metadata=((_LINK, said),))

    def _requests(self, outgoing: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
        while (message := outgoing.get()) is not None:
            yield message
            self._unsent.release()

    def _read(self) -> None:
        try:
            for message in self._call:
                said = mutual_tls.greeted_version(self._call.initial_metadata())
                if said != mutual_tls.WIRE_VERSION:
                    mutual_tls.check_version(f"server B at {self._address}", said)
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


def _wait(
    ready: Sequence["grpc.Future[None]"],
    timeout_s: float,
    why: Callable[[], PeerUnavailable | None],
) -> None:
    """Until all channels are ready.

    Raises ``why``'s answer, or grpc.FutureTimeoutError.
    """
    ends = time.monotonic() + timeout_s
    try:
        ready[0].result(timeout=min(LOOK_S, timeout_s))
    except grpc.FutureTimeoutError:
        # Said at once, and tried again by whoever hears it: a wrong address shows in
        # seconds.
        cause = why()
        if cause is not None:
            raise cause from None
    for each in ready:
        each.result(timeout=max(0.0, ends - time.monotonic()))


@contextmanager
def dial(
    address: str, identity: Identity, timeout_s: float
) -> Iterator[DialledTransport]:
    """Dial server B, or its worker, until the block ends. Raises PeerUnavailable."""
    to_b = address, identity, Role.SERVER_B
    with ExitStack() as stack:
        dialled = (mutual_tls.open_channel(*to_b, bulk=True) for _ in range(STREAMS))
        first, *others = map(stack.enter_context, dialled)
        why = partial(mutual_tls.why_unreachable, *to_b)
        yield stack.enter_context(
            closing(
                DialledTransport(
                    first,
                    address,
                    timeout_s,
                    why,
                    others,
                )
            )
        )


class ServedTransport(_Receiving):
    """B's end: filled by the servicer's handler on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        super().__init__()
        self._loop = loop
        self._timeout_s = timeout_s
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_WAITING)

    def put(self, frame: Frame) -> None:
        """Send one frame, once A has taken those before. Raises PeerUnavailable."""
        self._wait_for(self._room, self._timeout_s, "server A")
        # Here, while this thread's processor has the payload in its cache.
        message = frame_to_wire(frame)
        if self._loop.is_closed():  # this server was told to stop: no bug
            raise PeerUnavailable("the link to server A is closed")
        call_in(self._loop, self._outgoing.put_nowait, message)

    def close(self) -> None:
        """End the stream; whoever still waits on it hears so."""
        self._end(PeerUnavailable("the link to server A was replaced or closed"))
        call_in(self._loop, self._outgoing.put_nowait, None)

    async def serve(self, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """Pump frames both ways until either side ends the stream."""
        reader = asyncio.create_task(self._read(requests))
        try:
            while (message := await self._outgoing.get()) is not None:
                yield message
                self._room.release()
        finally:
            reader.cancel()
            self._end(PeerUnavailable("the link to server A is closed"))

    async def _read(self, requests: Any) -> None:
        try:
            async for message in requests:
                self._items.put(frame_from_wire(message))
        except Misconfiguration as error:
            self._end(error)
        self._end(PeerUnavailable("server A closed the link"))
        self._outgoing.put_nowait(None)


class _Streams:
    """A's messages at B, over so many streams, in the order in which they were sent."""

    def __init__(self, streams: int) -> None:
        self._others = [asyncio.Queue[bytes | None]() for _ in range(1, streams)]
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
        """Yield all, until a stream has ended whose turn it is."""
        async for message in first:
            yield message
            for other in self._others:
                another = await other.get()
                if another is None:
                    return
                yield another


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
_MORE, _BITS, _LENGTH_BYTES = 0x80, 7, 4
"""Protobuf's lengths: seven bits a byte, the least first; four are 256 MiB."""

Behaviour = Callable[
    [AsyncIterator[bytes], grpc.aio.ServicerContext[Any, Any]], AsyncGenerator[bytes]
]


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
    """Inverse of ``frame_to_wire``; the payload is a view.

    Raises Misconfiguration: no frame.
    """
    payload, rest = _split(message)
    try:
        other = pb.LinkFrame.FromString(rest)
    except DecodeError:
        said = "isn't a frame of the servers' link"
        raise Misconfiguration("frame", len(message), said) from None
    if payload and other.payload:
        raise Misconfiguration("frame", len(message), "has two payloads")
    task = Digest(other.task_digest)
    body = payload or other.payload
    return Frame(
        task=task,
        attempt=other.attempt,
        step=other.step,
        sequence=other.sequence,
        payload=body,
        last=other.last,
    )


def add_link_to_server(behaviour: Behaviour, server: grpc.aio.Server) -> None:
    """Offer the link: ``behaviour`` takes and gives messages as bytes."""
    links: dict[tuple[str, object], _Streams] = {}

    async def greeted(
        requests: AsyncIterator[bytes], context: Any
    ) -> AsyncGenerator[bytes]:
        # Nobody else may add to a link: its name is random, and goes with the caller's
        # certificate.
        said = str(dict(context.invocation_metadata()).get(_LINK, "1"))
        caller = context.auth_context().get("x509_pem_cert", [None])[0]
        name, _, stream = said.partition(" ")
        if stream:
            await context.send_initial_metadata(mutual_tls.GREETING)
            if (name, caller) not in links or stream not in _STREAM_NUMBERS[:-1]:
                await context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION, "a stream of no link"
                )
            await links[name, caller].fill(int(stream), requests)
            return
        own = secrets.token_hex(16), caller
        links[own] = streams = _Streams(int(name) if name in _STREAM_NUMBERS else 1)
        await context.send_initial_metadata((*mutual_tls.GREETING, (_LINK, own[0])))
        try:
            async with aclosing(
                behaviour(streams.messages(requests), context)
            ) as messages:
                async for message in messages:
                    yield message
        finally:
            del links[own]
            streams.over = True

    handler: grpc.RpcMethodHandler[bytes, bytes] = (
        grpc.stream_stream_rpc_method_handler(greeted)
    )
    offered = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})
    server.add_generic_rpc_handlers((offered,))


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
