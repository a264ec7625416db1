"""Parties of two wire versions refuse each other in one sentence, before anything else."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.rig.loop import LoopThread

from precad.aggregator.rpc.peer_transport import (
    METHOD,
    DialledTransport,
    ServedTransport,
    add_link_to_server,
)
from precad.common.errors import PeerViolation
from precad.common.identity.mutual_tls import (
    USER_AGENT,
    WIRE_VERSION,
    check_version,
    greeted_version,
)
from precad.common.wire.guarded_port import RefusingOtherVersions

WAIT_S = 60.0
NEWER = ("grpc.secondary_user_agent", f"precad-wire/{WIRE_VERSION + 1}")
UNARY, HEALTH = "/precad.v1.Aggregation/Describe", "/grpc.health.v1.Health/Check"


async def _link(requests: AsyncIterator[bytes], _context: Any) -> Any:
    """Server B's end."""
    async for message in ServedTransport(asyncio.get_running_loop(), WAIT_S).serve(requests):
        yield message


async def _first_versions_link(_requests: AsyncIterator[bytes], _context: Any) -> Any:
    """As servers before version 2: no greeting, and its position at once."""
    yield b"{}"
    await asyncio.Event().wait()


@contextmanager
def server(called: list[str], *, greets: bool = True) -> Iterator[str]:
    """A server of this version, or of the one before, and its address."""

    async def answer(request: bytes, _context: Any) -> bytes:
        called.append("answered")
        return request

    def make() -> grpc.aio.Server:
        started = grpc.aio.server(
            interceptors=[RefusingOtherVersions("server B")] if greets else []
        )
        unary: Any = grpc.unary_unary_rpc_method_handler(answer)
        link: Any = grpc.stream_stream_rpc_method_handler(_first_versions_link)
        handlers = {UNARY: unary, HEALTH: unary} if greets else {METHOD: link}
        for name, handler in handlers.items():
            service, method = name[1:].split("/")
            generic = grpc.method_handlers_generic_handler(service, {method: handler})
            started.add_generic_rpc_handlers((generic,))
        if greets:
            add_link_to_server(_link, started)
        return started

    with LoopThread() as loop:
        yield loop.serve(make, None)


@pytest.mark.parametrize(
    ("option", "said", "behind"),
    [((), 1, "the caller"), ((NEWER,), WIRE_VERSION + 1, "server B")],
    ids=["before version 2", "newer"],
)
def test_a_caller_of_another_version_is_refused_and_nothing_looks_at_its_request(
    option: Any, said: int, behind: str
) -> None:
    called: list[str] = []
    with server(called) as address, grpc.insecure_channel(address, option) as channel:
        unary: Any = channel.unary_unary(UNARY)
        stream: Any = channel.stream_stream(METHOD)
        health: Any = channel.unary_unary(HEALTH)
        for call in (unary.with_call, lambda _, timeout: next(stream(iter(()), timeout=timeout))):
            with pytest.raises(grpc.RpcError) as refused:
                call(b"x", timeout=WAIT_S)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert refused.value.details() == (
                f"the caller speaks wire version {said}, server B {WIRE_VERSION}: "
                f"upgrade precad at {behind}"
            )
        # Whoever watches over processes asks in gRPC's own protocol, from other software.
        assert health(b"x", timeout=WAIT_S) == b"x"
    assert called == ["answered"]


@pytest.mark.parametrize(
    ("greets", "option", "said"),
    [
        (False, (USER_AGENT,), "{} speaks wire version 1, this side {}: upgrade precad at {}"),
        (True, (), "wire version 1, server B {1}: upgrade"),
    ],
    ids=["an older server B", "an older server A"],
)
def test_on_a_link_to_an_older_server_nothing_is_said_but_why_it_ends(
    option: Any, said: str, *, greets: bool
) -> None:
    with (
        server([], greets=greets) as address,
        grpc.insecure_channel(address, option) as channel,
        pytest.raises(PeerViolation) as refused,
    ):
        DialledTransport(channel, address, WAIT_S)
    b = f"server B at {address}"
    assert said.format(b, WIRE_VERSION, b) in str(refused.value)


def test_the_sentence_names_both_numbers_and_who_must_upgrade() -> None:
    check_version("the dealer", WIRE_VERSION)
    for said, where in (
        (0, "at the dealer"),
        (1, "at the dealer"),
        (WIRE_VERSION + 1, "on this side"),
    ):
        with pytest.raises(PeerViolation) as refused:
            check_version("the dealer", said)
        assert str(refused.value) == (
            f"the dealer speaks wire version {said or 1}, this side {WIRE_VERSION}: "
            f"upgrade precad {where}"
        )
    # What a stream greets with is a number or nothing.
    greetings = (None, (), [("precad-wire", "7")], [("precad-wire", "x")])
    assert [greeted_version(each) for each in greetings] == [0, 0, 7, 0]
