"""The servers' link: messages whole and in order, whatever carries them; and CrypTen's
words."""

import asyncio
import math
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TypeAlias, cast

import grpc
import grpc.aio
import pytest
import torch
from tests.rig.connections import Proxy
from tests.rig.documents import Document
from tests.rig.loop import LoopThread
from tests.rig.memory_link import MemoryTransport, memory_pair
from tests.rig.parties import at_both
from tests.rig.waiting import DEADLINE_S, until
from torch.distributed import ReduceOp

from precad.aggregator.peer_link import (
    PIECES_AHEAD,
    Frame,
    FrameTransport,
    PeerLink,
)
from precad.aggregator.rpc import peer_transport
from precad.aggregator.training.session import EventLog, TrainingStopped
from precad.aggregator.validate.crypten_comparisons import LinkCommunicator
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    TaskMismatch,
)
from precad.common.identifiers import Digest
from precad.common.identity.mutual_tls import GREETING, USER_AGENT
from precad.common.submission import MESSAGE_BYTES
from precad.common.wire.serving import Context
from precad.dealer.dealing_service import Outbox
from precad.protos import precad_pb2 as pb

TASK = Digest(b"\1" * 32)


Call: TypeAlias = "grpc.StreamStreamMultiCallable[bytes, bytes]"
Ends = tuple[MemoryTransport, MemoryTransport]


@pytest.fixture
def ends() -> Ends:
    return memory_pair()


def link(
    end: FrameTransport,
    *,
    task: Digest = TASK,
    limit: int = 1 << 24,
    wait_s: float = 0.05,
) -> PeerLink:
    return PeerLink(transport=end, task=task, max_message_bytes=limit, timeout_s=wait_s)


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        *(MESSAGE_BYTES + more for more in (-1, 0, 1)),
        3 * MESSAGE_BYTES,
        3 * MESSAGE_BYTES + 7,
    ],
)
def test_messages_arrive_whole_in_however_many_pieces(ends: Ends, size: int) -> None:
    sender, receiver = link(ends[0]), link(ends[1])
    message = (bytes(range(251)) * (size // 251 + 1))[:size]
    sender.send("step", message)
    assert receiver.receive("step") == message
    assert sender.bytes_sent == size
    assert sender._sent == max(1, math.ceil(size / MESSAGE_BYTES))


class Narrow(MemoryTransport):
    """An end with room for few frames: who sends more waits for its reader."""

    def put(self, frame: Frame) -> None:
        until(lambda: self._outgoing.qsize() <= PIECES_AHEAD, "room for a frame")
        super().put(frame)


def test_long_messages_pass_each_other_where_there_is_room_for_few_pieces(
    ends: Ends,
) -> None:
    """Each end reads what comes while it sends, or both would wait for ever."""
    narrow = [Narrow(end._outgoing, end._incoming) for end in ends]
    messages = [bytes([n]) * (n * PIECES_AHEAD * MESSAGE_BYTES + n) for n in (3, 2)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        sent = zip(narrow, messages, strict=True)
        both = [
            pool.submit(link(end, wait_s=DEADLINE_S).exchange, "step", message)
            for end, message in sent
        ]
        assert [each.result() for each in both] == messages[::-1]


@pytest.mark.parametrize(
    ("messages", "order", "fine"),
    [
        *(((b"0", b"1", b"2"), order, 0) for order in ((1,), (1, 0))),
        *(((b"0", b"1", b"2"), order, 1) for order in ((0, 0), (0, 2))),
        ((b"\1" * MESSAGE_BYTES + b"\2" * MESSAGE_BYTES + b"\3",), (1, 0, 2), 0),
    ],
)
def test_lost_repeated_and_reordered_frames_are_a_desync(
    ends: Ends, messages: tuple[bytes, ...], order: tuple[int, ...], fine: int
) -> None:
    sender, receiver = link(ends[0]), link(ends[1])
    for message in messages:
        sender.send("step", message)
    frames = [ends[1].get(1) for _ in range(sender._sent)]
    for place in order:
        ends[0].put(frames[place])
    for _ in range(fine):
        receiver.receive("step")
    with pytest.raises(PeerViolation, match="out of step"):
        receiver.receive("step")


@pytest.mark.parametrize("rounds", [(None, None), (0, 1), (1, 0), (None, 0), (0, None)])
def test_the_wrong_step_round_or_task_is_a_desync(
    ends: Ends, rounds: tuple[int | None, int | None]
) -> None:
    sender, receiver = link(ends[0]), link(ends[1])
    for attempt, end in zip(rounds, (sender, receiver), strict=True):
        if attempt is not None:
            end.begin_attempt(attempt)
    step = "another" if rounds == (None, None) else "step"
    sender.send(step, b"")
    with pytest.raises(PeerViolation, match=rf"out of step.*step.*{step}"):
        receiver.receive("step")
    # And another task names both digests.
    other = Digest(b"\2" * 32)
    link(ends[0], task=other).send("step", b"")
    with pytest.raises(TaskMismatch, match=f"ours {TASK}, theirs {other}"):
        link(ends[1]).receive("step")


def test_a_message_above_the_limit_is_refused_while_it_arrives(ends: Ends) -> None:
    link(ends[0]).send("step", bytes(3 * MESSAGE_BYTES))
    with pytest.raises(PeerViolation, match="has more than"):
        link(ends[1], limit=2 * MESSAGE_BYTES - 1).receive("step")
    # The third piece was not even asked for; after it silence ends at the deadline.
    assert ends[1].get(1).sequence == 2
    with pytest.raises(PeerUnavailable, match=r"0\.05 s"):
        link(ends[1]).receive("step")
    with pytest.raises(PeerUnavailable, match=r"0\.01 s"):
        link(ends[1]).receive("step", timeout_s=0.01)


def frame(payload: bytes, *, last: bool = False) -> Frame:
    return Frame(
        task=TASK, attempt=-1, step="body/0123", sequence=7, payload=payload, last=last
    )


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 1 << 19, 1 << 21])
def test_a_frame_is_read_as_it_was_written_and_as_protobuf_reads_it(
    length: int,
) -> None:
    sent = frame(b"ABCD" * (length // 4) + bytes(length % 4), last=True)
    message = peer_transport.frame_to_wire(sent)
    found = peer_transport.frame_from_wire(message)
    assert found == sent
    # No copy, and it doesn't show.
    view = cast("memoryview", found.payload)
    assert length == 0 or view.obj is message
    for shown in (repr(sent), f"{sent}", repr(replace(found, attempt=4))):
        assert "ABCD" not in shown
        assert f"{length} bytes" in shown
    written = pb.LinkFrame(
        task_digest=TASK.value, attempt=-1, step="body/0123", sequence=7
    )
    written.payload, written.last = bytes(sent.payload), True
    assert pb.LinkFrame.FromString(message) == written
    assert peer_transport.frame_from_wire(written.SerializeToString()) == sent


@pytest.mark.parametrize(
    "message",
    [
        *(
            peer_transport.frame_to_wire(frame(b"p" * 200))[:end]
            for end in (150, 2, -1)
        ),
        *(b"\x2a", b"\x2a\xff\xff\xff\xff\x0f", b"\x2a\x80\x80\x80\x80\x80"),
        *(b"", b"not protobuf"),
        peer_transport.frame_to_wire(frame(b"one"))
        + pb.LinkFrame(payload=b"two").SerializeToString(),
        pb.LinkFrame(task_digest=b"short", payload=b"p").SerializeToString(),
    ],
)
def test_what_is_no_frame_is_refused(message: bytes) -> None:
    with pytest.raises(Misconfiguration):
        peer_transport.frame_from_wire(message)


X = torch.tensor([[1, -2], [2**63 - 1, 5]])
Y = torch.tensor([[3, 7], [1, -5]])


def pair(
    patience_s: float = 30.0,
) -> tuple[LinkCommunicator, LinkCommunicator, PeerLink]:
    """Both communicators, and B's link to misbehave on."""
    a, b = (link(end, wait_s=patience_s) for end in memory_pair())
    return LinkCommunicator(0, a, "t"), LinkCommunicator(1, b, "t"), b


@pytest.mark.parametrize(
    ("op", "expected"),
    [(ReduceOp.SUM, X + Y), (ReduceOp.BXOR, X ^ Y)],
    ids=["sum", "xor"],
)
def test_reductions_wrap_in_the_ring_and_keep_shapes(
    op: ReduceOp.RedOpType, expected: torch.Tensor
) -> None:
    a, b, link = pair()
    for found in at_both(
        lambda: a.all_reduce(X, op=op), lambda: b.all_reduce(Y, op=op)
    ):
        assert torch.equal(found, expected)
    for batch in at_both(
        lambda: a.all_reduce([X, X[0]], op=op, batched=True),
        lambda: b.all_reduce([Y, Y[0]], op=op, batched=True),
    ):
        assert torch.equal(batch[0], expected)
        assert torch.equal(batch[1], expected[0])
    # One message a batch; 8 bytes a ring element, nothing around them.
    assert (link._sent, link.bytes_sent) == (2, 8 * (4 + 4 + 2))
    assert X.tolist() == [[1, -2], [2**63 - 1, 5]]


@pytest.mark.parametrize("length", [0, 1, 31, 33, 40, 24])
def test_another_operation_length_or_message_is_a_violation(length: int) -> None:
    a, b, _ = pair()
    for error in at_both(
        lambda: a.all_reduce(X), lambda: b.all_reduce(X, op=ReduceOp.BXOR)
    ):
        assert isinstance(error, PeerViolation)
        assert "out of step" in str(error)
    a, _, link = pair()
    link.send("t/all-reduce-sum/0", bytes(32))
    a.all_reduce(X)
    link.send("t/all-reduce-sum/1", bytes(length))
    with pytest.raises(PeerViolation, match=f"got {length} bytes, expected 32"):
        a.all_reduce(X)
    link.send("t/all-reduce-sum/0", bytes(32))
    with pytest.raises(PeerViolation, match="out of step"):
        a.all_reduce(X)


@pytest.mark.parametrize(
    ("handed", "how"),
    [
        (X.double(), {}),
        ([X], {}),
        (X, {"batched": True}),
        ([X, X.int()], {"batched": True}),
    ],
)
def test_what_are_no_ring_elements_is_an_error(
    handed: torch.Tensor, how: Document
) -> None:
    a, _, link = pair()
    with pytest.raises(TypeError, match="only ring elements"):
        a.all_reduce(handed, **how)
    assert not link._received
    # Nothing that pickles exists.
    for method in ("send_obj", "recv_obj", "broadcast_obj", "gather", "scatter"):
        assert not hasattr(LinkCommunicator, method)


WAIT_S = 60.0


@contextmanager
def served(behaviour: peer_transport.Behaviour) -> Iterator[str]:
    def make() -> grpc.aio.Server:
        server = grpc.aio.server()
        peer_transport.add_link_to_server(behaviour, server)
        return server

    with LoopThread() as loop:
        yield loop.serve(make, None)


class Echo:
    def __init__(self) -> None:
        self.heard: list[Frame] = []
        self.ended = False

    async def link(
        self, requests: AsyncIterator[bytes], _context: object
    ) -> AsyncGenerator[bytes]:
        async for message in requests:
            self.heard.append(peer_transport.frame_from_wire(message))
            yield message
        self.ended = True


@contextmanager
def dialled(
    address: str, others: list[str]
) -> Iterator[peer_transport.DialledTransport]:
    # Else gRPC takes one connection for all channels to an address.
    options = (USER_AGENT, ("grpc.use_local_subchannel_pool", 1))
    with ExitStack() as stack:
        channels = (grpc.insecure_channel(each, options) for each in (address, *others))
        first, *further = map(stack.enter_context, channels)
        link = peer_transport.DialledTransport(
            [first, *further], address, WAIT_S, lambda: None
        )
        yield stack.enter_context(closing(link))


def frames(number: int) -> list[Frame]:
    """Some long and some short, so that streams would overtake each other."""
    sizes = (1, 1 << 18, 0, 1 << 16, 7)
    return [
        Frame(
            task=TASK,
            attempt=0,
            step="step",
            sequence=each,
            payload=bytes([each % 251]) * sizes[each % len(sizes)],
            last=True,
        )
        for each in range(number)
    ]


class FirstBreaksOff(Proxy):
    """As a port may do that is busy, or a handshake that takes too long."""

    def _connect(self, near: socket.socket) -> None:
        if (
            near is self._sockets[1]
        ):  # The first behind the listener's, whoever else has come
            near.close()
        else:
            super()._connect(near)


DIRECT = [("direct",) * others for others in range(peer_transport.STREAMS)]


@pytest.mark.parametrize(
    "others", [*DIRECT, ("first breaks off", "direct", "first breaks off")]
)
def test_frames_come_in_the_order_in_which_they_were_sent(
    others: tuple[str, ...],
) -> None:
    """And a stream whose first connection breaks off is connected again."""
    echo, sent = Echo(), frames(41)
    with served(echo.link) as address, FirstBreaksOff(address) as behind:
        ways = [address if each == "direct" else behind.address for each in others]
        with dialled(address, ways) as link:
            for frame in sent:
                link.put(frame)
                # Both ways at once would end where neither reads.
                assert link.get(WAIT_S) == frame
    assert [each.sequence for each in echo.heard] == list(range(41))


@pytest.mark.parametrize("number", [*range(1, 2 * peer_transport.STREAMS + 1), 41])
def test_what_was_sent_before_the_link_was_closed_arrives_whole(number: int) -> None:
    echo = Echo()
    with served(echo.link) as address:
        with dialled(address, [address] * (peer_transport.STREAMS - 1)) as link:
            for frame in frames(number):
                link.put(frame)
        until(lambda: echo.ended, "the link's end at B")
    assert [each.sequence for each in echo.heard] == list(range(number))


@pytest.mark.parametrize("call", ["put", "require_alive"])
def test_who_sends_or_waits_for_others_hears_that_a_stream_of_the_link_is_lost(
    call: str,
) -> None:
    def lost() -> bool:
        try:
            getattr(link, call)(*frames(1)[: call == "put"])
        except PeerUnavailable as error:
            # Or B closes the link before: it misses the message whose turn it is.
            return "closed" in str(error)
        return False

    with (
        served(Echo().link) as address,
        Proxy(address) as behind,
        dialled(address, [behind.address]) as link,
    ):
        behind.close()
        until(lost, "the loss")


@pytest.mark.parametrize(
    "said",
    ["", "x", "{0}", "{1} 1", "{0} 0", f"{{0}} {peer_transport.STREAMS}", "{0} x"],
)
def test_a_call_that_names_no_stream_of_a_link_carries_nothing_to_it(said: str) -> None:
    """Nor one with another certificate:
    ``integration/hostile/test_hostile_clients.py``."""
    echo, (frame,) = Echo(), frames(1)
    with served(echo.link) as address, dialled(address, []) as link:
        own = dict(link._call.initial_metadata())["precad-link"]
        assert len(own) == 32
        told = said.format(own, "0" * 32)
        with grpc.insecure_channel(address, (USER_AGENT,)) as channel:
            stranger: Call = channel.stream_stream(peer_transport.METHOD)
            call = stranger(
                iter([b"\0"]), metadata=(("precad-link", told),), timeout=WAIT_S
            )
            with pytest.raises(grpc.RpcError) as refused:
                next(call)
            # Or a link of its own, for the behaviour to refuse: here it ends by its bad
            # frame.
            if " " in told:
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        link.put(frame)
        assert link.get(WAIT_S) == frame
    assert echo.heard == [frame]


def test_a_link_that_is_refused_takes_nothing_over_its_other_streams() -> None:
    """Whoever isn't server A may know its link's name for a moment, and never fills B's
    memory."""
    drawn, refuse = 0, threading.Event()

    async def refusing(
        _requests: AsyncIterator[bytes], _context: object
    ) -> AsyncGenerator[bytes]:
        await asyncio.to_thread(refuse.wait)
        raise PeerUnavailable("not server A")
        yield b""

    def flood() -> Iterator[bytes]:
        nonlocal drawn
        while True:
            drawn += 1
            yield bytes(1 << 16)

    with (
        served(refusing) as address,
        grpc.insecure_channel(address, (USER_AGENT,)) as channel,
    ):
        call: Call = channel.stream_stream(peer_transport.METHOD)
        first = call(iter([]), metadata=(("precad-link", "2"),))
        name = cast("str", dict(first.initial_metadata())["precad-link"])
        further = call(flood(), metadata=(("precad-link", f"{name} 1"),))
        other = cast("grpc.Future[object]", further)
        # More than may be on the way: B reads it.
        until(lambda: drawn > 500, "a flood")
        refuse.set()
        until(other.done, "its end")


def test_a_server_b_that_names_no_link_is_refused_in_a_sentence() -> None:
    async def nameless(
        _requests: AsyncIterator[bytes], context: Context
    ) -> AsyncGenerator[bytes]:
        await context.send_initial_metadata(GREETING)
        await asyncio.Event().wait()
        yield b""

    def make() -> grpc.aio.Server:
        server, (service, method) = (
            grpc.aio.server(),
            peer_transport.METHOD[1:].split("/"),
        )
        handler: grpc.RpcMethodHandler[bytes, bytes] = (
            grpc.stream_stream_rpc_method_handler(nameless)
        )
        handlers = grpc.method_handlers_generic_handler(service, {method: handler})
        server.add_generic_rpc_handlers((handlers,))
        return server

    with LoopThread() as loop:
        address = loop.serve(make, None)
        with (
            pytest.raises(PeerViolation, match="names no link"),
            dialled(address, [address]),
        ):
            pass


def test_a_training_that_outlasts_its_loop_hears_that_the_link_is_closed() -> None:
    """A server that is told to stop ends its loop first: no bug, and nobody is
    called."""
    loop = asyncio.new_event_loop()
    transport, events = peer_transport.ServedTransport(loop, WAIT_S), EventLog(loop)
    loop.close()
    with pytest.raises(PeerUnavailable, match="closed"):
        transport.put(frames(1)[0])
    transport.close()
    events.publish(TrainingStopped())

    async def waiting() -> Outbox:
        return Outbox()

    # A dealer that has answered for it goes on.
    outbox = asyncio.run(waiting())
    outbox.put(b"context", 1)
    assert len(outbox) == 1
