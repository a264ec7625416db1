"""The servers' link takes several connections from A to B, and stays one ordered link."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.rig.loop import LoopThread
from tests.rig.waiting import until

from precad.aggregator.peer_link import Frame
from precad.aggregator.rpc.peer_transport import (
    METHOD,
    STREAMS,
    Behaviour,
    DialledTransport,
    ServedTransport,
    add_link_to_server,
    frame_from_wire,
)
from precad.aggregator.training.session import EventLog, TrainingPaused
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest
from precad.common.identity.mutual_tls import GREETING, USER_AGENT
from precad.dealer.dealing_service import Outbox

WAIT_S = 60.0
TASK = Digest(bytes(32))


def server_of(behaviour: Behaviour) -> grpc.aio.Server:
    server = grpc.aio.server()
    add_link_to_server(behaviour, server)
    return server


class Echo:
    """Server B's end: says again what it hears."""

    def __init__(self) -> None:
        self.heard: list[Frame] = []
        self.ended = False

    async def link(self, requests: AsyncIterator[bytes], _context: Any) -> Any:
        async for message in requests:
            self.heard.append(frame_from_wire(message))
            yield message
        self.ended = True


@contextmanager
def served(behaviour: Behaviour) -> Iterator[str]:
    with LoopThread() as loop:
        yield loop.serve(lambda: server_of(behaviour), None)


@contextmanager
def dialled(address: str, others: list[str]) -> Iterator[DialledTransport]:
    with ExitStack() as stack:
        first, *further = (
            # Else gRPC takes one connection for all channels to an address.
            stack.enter_context(
                grpc.insecure_channel(each, (USER_AGENT, ("grpc.use_local_subchannel_pool", 1)))
            )
            for each in (address, *others)
        )
        yield stack.enter_context(closing(DialledTransport(first, address, WAIT_S, others=further)))


def frames(number: int) -> list[Frame]:
    """Some long and some short, so that streams would overtake each other."""
    sizes = (1, 1 << 18, 0, 1 << 16, 7)
    return [
        Frame(TASK, 0, "step", each, bytes([each % 251]) * sizes[each % len(sizes)], last=True)
        for each in range(number)
    ]


@pytest.mark.parametrize("streams", range(1, STREAMS + 1))
def test_frames_come_in_the_order_in_which_they_were_sent(streams: int) -> None:
    echo, sent = Echo(), frames(41)
    with served(echo.link) as address, dialled(address, [address] * (streams - 1)) as link:
        for frame in sent:
            link.put(frame)
            # Both ways at once would end where neither reads.
            assert link.get(WAIT_S) == frame
    assert [each.sequence for each in echo.heard] == list(range(41))


@pytest.mark.parametrize("number", [*range(1, 2 * STREAMS + 1), 41])
def test_what_was_sent_before_the_link_was_closed_arrives_whole(number: int) -> None:
    echo = Echo()
    with served(echo.link) as address:
        with dialled(address, [address] * (STREAMS - 1)) as link:
            for frame in frames(number):
                link.put(frame)
        until(lambda: echo.ended, "the link's end at B")
    assert [each.sequence for each in echo.heard] == list(range(number))


@pytest.mark.parametrize("call", ["put", "require_alive"])
def test_who_sends_or_waits_for_others_hears_that_a_stream_of_the_link_is_lost(call: str) -> None:
    def lost() -> bool:
        try:
            getattr(link, call)(*frames(1)[: call == "put"])
        except PeerUnavailable as error:
            return "closed a stream of the link" in str(error)
        return False

    with served(Echo().link) as address, dialled(address, ["localhost:1"]) as link:
        until(lost, "the loss")


@pytest.mark.parametrize("said", ["", "x", "{0}", "{1} 1", "{0} 0", f"{{0}} {STREAMS}", "{0} x"])
def test_a_call_that_names_no_stream_of_a_link_carries_nothing_to_it(said: str) -> None:
    """Nor one with another certificate: ``integration/hostile/test_hostile_clients.py``."""
    echo, (frame,) = Echo(), frames(1)
    with served(echo.link) as address, dialled(address, []) as link:
        own = dict(link._call.initial_metadata())["precad-link"]
        assert len(own) == 32
        told = said.format(own, "0" * 32)
        with grpc.insecure_channel(address, (USER_AGENT,)) as channel:
            stranger: Any = channel.stream_stream(METHOD)
            call = stranger(iter([b"\0"]), metadata=(("precad-link", told),), timeout=WAIT_S)
            with pytest.raises(grpc.RpcError) as refused:
                next(call)
            # Or a link of its own, for the behaviour to refuse: here it ends by its bad frame.
            if " " in told:
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        link.put(frame)
        assert link.get(WAIT_S) == frame
    assert echo.heard == [frame]


def test_a_link_that_is_refused_takes_nothing_over_its_other_streams() -> None:
    """Whoever isn't server A may know its link's name for a moment, and never fills B's memory."""
    drawn, refuse = 0, threading.Event()

    async def refusing(_requests: AsyncIterator[bytes], _context: Any) -> Any:
        await asyncio.to_thread(refuse.wait)
        raise PeerUnavailable("not server A")
        yield b""

    def flood() -> Iterator[bytes]:
        nonlocal drawn
        while True:
            drawn += 1
            yield bytes(1 << 16)

    with served(refusing) as address, grpc.insecure_channel(address, (USER_AGENT,)) as channel:
        call: Any = channel.stream_stream(METHOD)
        first = call(iter([]), metadata=(("precad-link", "2"),))
        name = dict(first.initial_metadata())["precad-link"]
        other = call(flood(), metadata=(("precad-link", f"{name} 1"),))
        # More than may be on the way: B reads it.
        until(lambda: drawn > 500, "a flood")
        refuse.set()
        until(other.done, "its end")


def test_a_server_b_that_names_no_link_is_refused_in_a_sentence() -> None:
    async def nameless(_requests: AsyncIterator[bytes], context: Any) -> Any:
        await context.send_initial_metadata(GREETING)
        await asyncio.Event().wait()
        yield b""

    def make() -> grpc.aio.Server:
        server, (service, method) = grpc.aio.server(), METHOD[1:].split("/")
        handler: Any = grpc.stream_stream_rpc_method_handler(nameless)
        handlers = grpc.method_handlers_generic_handler(service, {method: handler})
        server.add_generic_rpc_handlers((handlers,))
        return server

    with LoopThread() as loop:
        address = loop.serve(make, None)
        with pytest.raises(PeerViolation, match="names no link"), dialled(address, [address]):
            pass


def test_a_training_that_outlasts_its_loop_hears_that_the_link_is_closed() -> None:
    """A server that is told to stop ends its loop first: no bug, and nobody is called."""
    loop = asyncio.new_event_loop()
    transport, events = ServedTransport(loop, WAIT_S), EventLog(loop)
    loop.close()
    with pytest.raises(PeerUnavailable, match="closed"):
        transport.put(frames(1)[0])
    transport.close()
    events.publish(TrainingPaused())

    async def waiting() -> Outbox:
        return Outbox()

    # A dealer that has answered for it goes on.
    outbox = asyncio.run(waiting())
    outbox.put(b"context", 1)
    assert len(outbox) == 1
