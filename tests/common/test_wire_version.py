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
UNARY = "/precad.v1.Aggregation/Describe"


async def _link(requests: AsyncIterator[bytes], _context: Any) -> Any:
    """Server B's end."""
    async for message in ServedTransport(asyncio.get_running_loop(), WAIT_S).serve(requests):
        yield message


async def _first_versions_link(_requests: AsyncIterator[bytes], _context: Any) -> Any:
    """As servers before version 2: no greeting, and its position at once."""
    yield b"{}"
    await asyncio.Event().wait()


@contextmanager
def server(*, greets: bool = True, called: list[str] | None = None) -> Iterator[str]:
    """A server of this version, or of the one before, and its address."""

    async def answer(request: bytes, _context: Any) -> bytes:
        (called if called is not None else []).append("answered")
        return request

    def make() -> grpc.aio.Server:
        interceptors = [RefusingOtherVersions("server B")] if greets else []
        started = grpc.aio.server(interceptors=interceptors)
        unary: Any = grpc.unary_unary_rpc_method_handler(answer)
        for service, method in (UNARY[1:].split("/"), ("grpc.health.v1.Health", "Check")):
            handler = grpc.method_handlers_generic_handler(service, {method: unary})
            started.add_generic_rpc_handlers((handler,))
        if greets:
            add_link_to_server(_link, started)
        else:
            service, method = METHOD[1:].split("/")
            link: Any = grpc.stream_stream_rpc_method_handler(_first_versions_link)
            handler = grpc.method_handlers_generic_handler(service, {method: link})
            started.add_generic_rpc_handlers((handler,))
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
    with server(called=called) as address, grpc.insecure_channel(address, option) as channel:
        unary: Any = channel.unary_unary(UNARY)
        stream: Any = channel.stream_stream(METHOD)
        health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
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


def test_server_a_says_nothing_to_an_older_server_b() -> None:
    with (
        server(greets=False) as address,
        grpc.insecure_channel(address, (USER_AGENT,)) as channel,
        pytest.raises(PeerViolation) as refused,
    ):
        DialledTransport(channel, address, WAIT_S)
    assert str(refused.value) == (
        f"server B at {address} speaks wire version 1, this side {WIRE_VERSION}: upgrade precad "
        f"at server B at {address}"
    )


def test_an_older_server_a_hears_why_its_link_ends() -> None:
    with (
        server() as address,
        grpc.insecure_channel(address) as channel,
        pytest.raises(PeerViolation, match=f"wire version 1, server B {WIRE_VERSION}: upgrade"),
    ):
        DialledTransport(channel, address, WAIT_S)


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


@pytest.mark.parametrize(
    ("metadata", "version"),
    [(None, 0), ((), 0), ([("precad-wire", "7")], 7), ([("precad-wire", "x")], 0)],
)
def test_what_a_stream_greets_with_is_a_number_or_nothing(metadata: Any, version: int) -> None:
    assert greeted_version(metadata) == version
