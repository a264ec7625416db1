"""A part's port for gRPC, with one guard over what callers may take.

Every part (server A, server B, the dealer, each worker) opens its port here. What a
caller may take is the same at all of them.

The guard knows a caller by its certificate when a call begins, before anything of its
message has come, whatever the method, and whether or not the call will be refused.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import grpc
import grpc.aio

from precad.common import CLOCK, Clock, Role, TooManyCalls, log
from precad.common.identity import (
    FIRST_VERSION,
    SERVING_ROLES,
    WIRE_VERSION,
    Identity,
    Principal,
    add_port,
    of_connection,
)
from precad.common.wire import (
    SERVER_OPTIONS,
    Caller,
    Connections,
    Context,
    connections_for,
    end_call,
    refusing,
)

BURST = 200
"""Calls that a caller may begin at once."""
PER_S = 50.0
"""Calls a second that a caller may begin, in the long run."""
REFUSED = 32
"""Calls beyond those that are refused one by one; then the caller's connection ends."""
REFUSED_S = 1.0
"""Seconds that a refusal waits: a caller that asks without end is busy waiting."""
REQUEST_S = 10.0
"""Seconds that a message may take to come whole."""
_MOST_REMEMBERED = 10_000
"""Callers whose rates are kept before those who called long ago are forgotten."""
_CALLERS_VERSION = re.compile(r"\bprecad-wire/(\d{1,9})(?!\S)")
"""The wire version in a caller's ``user-agent``."""
_Handler = Any
"""gRPC's handler of one method: what kind of method it is, and what answers it.

A named tuple, which gRPC's types don't show.
"""
_Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]]
"""Finds a call's handler, as the port would without this interceptor."""


@dataclass(eq=False, repr=False)
class CallRate:
    """Counts how often callers begin calls.

    A caller may begin ``burst`` calls at once, and ``per_s`` a second in the long run.
    Used on the event loop alone, hence without a lock.
    """

    _clock: Clock = CLOCK
    burst: int = BURST
    per_s: float = PER_S
    _begun: dict[Caller, tuple[float, float]] = field(default_factory=dict, init=False)
    """How many calls a caller has begun that aren't forgiven yet, and when that was
    counted."""

    def begin(self, caller: Caller) -> float:
        """Count one more call, and return how many are beyond the caller's rate.

        Calls that are refused count too, up to ``REFUSED``.
        """
        now = self._clock.now()
        begun, counted_at = self._begun.get(caller, (0.0, now))
        forgiven = (now - counted_at) * self.per_s
        begun = max(0.0, begun - forgiven) + 1
        most = self.burst + REFUSED
        self._begun[caller] = min(begun, most), now
        if len(self._begun) > _MOST_REMEMBERED:
            # Callers that called long ago take no memory: all their calls are forgiven.
            forgiven_after_s = most / self.per_s
            self._begun = {
                other: (count, at)
                for other, (count, at) in self._begun.items()
                if now - at < forgiven_after_s
            }
        return max(0.0, begun - self.burst)


class Call(Enum):
    """The kinds of calls that stay open, or that cost a server seconds."""

    WATCH = "watch"
    SUBMIT = "submission"
    FETCH = "model fetch"
    CLAIM = "claim with a new rate"
    """A claim with a rate whose account is being computed."""
    MESSAGE = "unfinished message"
    """A call whose message hasn't come whole."""


MOST_OPEN = {
    Call.WATCH: 2,
    Call.SUBMIT: 2,
    Call.FETCH: 4,
    Call.CLAIM: 1,
    Call.MESSAGE: 8,
}
"""How many calls of each kind one caller may have open.

A client that reconnects has its old call beside the new one for a moment.
"""


class OpenCalls:
    """Counts each caller's open calls by kind, and refuses more than ``MOST_OPEN``.

    Used on the event loop alone, hence without a lock.
    """

    def __init__(self) -> None:
        self._open: Counter[tuple[Caller | None, Call]] = Counter()

    @contextlib.contextmanager
    def one_more(self, caller: Caller | None, call: Call) -> Iterator[None]:
        """Count one more call of ``caller`` until the block ends.

        Raises TooManyCalls: the caller has as many calls of this kind as it may.
        """
        calls = self._open
        key = (caller, call)
        most = MOST_OPEN[call]
        if calls[key] >= most:
            raise TooManyCalls(
                f"{caller} has {most} calls of kind {call.value} open, the most that"
                " one caller may; let one end first"
            )
        calls[key] += 1
        try:
            yield
        finally:
            calls[key] -= 1
            if calls[key] == 0:
                # A caller without open calls takes no memory.
                del calls[key]

    def __len__(self) -> int:
        """Return how many calls are open, over all callers."""
        return self._open.total()


class Guard(grpc.aio.ServerInterceptor):
    """Stands around every call to a port, also around those that no service offers.

    A call beyond its caller's ``rate`` is refused, and so is one more call of a caller
    that has too many calls whose message hasn't come.
    """

    def __init__(self, connections: Connections, rate: CallRate | None) -> None:
        self._connections = connections
        self._rate = rate or CallRate()
        self._unfinished = OpenCalls()

    async def intercept_service(
        self,
        continuation: _Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Return the call's handler, changed to begin before the call's message comes.

        gRPC is told that requests come as a stream: it then begins a call at its
        header. The guard looks at the caller, reads the one message itself where the
        method takes one, and goes on as the method's own handler.
        """
        handler = await continuation(handler_call_details)
        if handler is None:
            handler = grpc.stream_unary_rpc_method_handler(_unknown)
        # Of the four kinds of behaviour a handler has one.
        behaviour = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        async def begin(requests: AsyncIterator[object], context: Context) -> object:
            async with refusing(context):
                caller = self._connections.called(context)
                await self._check_rate(caller, context)
                if handler.request_streaming:
                    return requests
                return await self._message(caller, requests, context)

        async def answer(requests: AsyncIterator[object], context: Context) -> object:
            return await behaviour(await begin(requests, context), context)

        async def stream(
            requests: AsyncIterator[object], context: Context
        ) -> AsyncIterator[object]:
            request = await begin(requests, context)
            async with contextlib.aclosing(behaviour(request, context)) as messages:
                async for message in messages:
                    yield message

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                stream, handler.request_deserializer, handler.response_serializer
            )
        return grpc.stream_unary_rpc_method_handler(
            answer, handler.request_deserializer, handler.response_serializer
        )

    async def _check_rate(self, caller: Caller | None, context: Context) -> None:
        """Refuse a call beyond its caller's rate, after ``REFUSED_S`` seconds.

        A caller with ``REFUSED`` calls beyond it loses its connection. Servers, the
        dealer and callers without a certificate aren't counted.

        Raises TooManyCalls.
        """
        serves = isinstance(caller, Principal) and caller.role in SERVING_ROLES
        if caller is None or serves:
            return
        beyond = self._rate.begin(caller)
        if not beyond:
            return
        if beyond >= REFUSED:
            self._connections.end(context)
        await asyncio.sleep(REFUSED_S)
        raise TooManyCalls(
            f"{caller} makes more than {self._rate.per_s:g} calls a second; ask less"
            " often"
        )

    async def _message(
        self, caller: Caller | None, requests: AsyncIterator[object], context: Context
    ) -> object:
        """Return the one message of a call that takes one, once it has come whole.

        A call whose message doesn't come within ``REQUEST_S`` seconds, or that holds
        none, ends.

        Raises TooManyCalls: the caller has as many such calls open as it may.
        """
        with self._unfinished.one_more(caller, Call.MESSAGE):
            try:
                async with asyncio.timeout(REQUEST_S):
                    return await anext(requests)
            except TimeoutError:
                text = f"the call's message didn't come whole within {REQUEST_S:g} s"
                await end_call(context, grpc.StatusCode.DEADLINE_EXCEEDED, text)
            except StopAsyncIteration:
                text = "the call holds no message"
                await end_call(context, grpc.StatusCode.INVALID_ARGUMENT, text)


class RefusingOtherVersions(grpc.aio.ServerInterceptor):
    """Refuses every call of another wire version, before anything of it is read.

    Only gRPC's own health protocol is let through. ``who`` is the part whose port it
    is, such as "server B".
    """

    def __init__(self, who: str) -> None:
        self._who = who

    async def intercept_service(
        self,
        continuation: _Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Return the call's handler, or one that refuses the call."""
        metadata = dict(handler_call_details.invocation_metadata)
        version = _CALLERS_VERSION.search(str(metadata.get("user-agent", "")))
        theirs = int(version[1]) if version else FIRST_VERSION
        if theirs == WIRE_VERSION or handler_call_details.method.startswith(
            "/grpc.health."
        ):
            return await continuation(handler_call_details)

        async def refuse(_requests: object, context: Context) -> None:
            caller = _name_of(context)
            behind = caller if theirs < WIRE_VERSION else self._who
            text = (
                f"{caller} speaks wire version {theirs}, {self._who} {WIRE_VERSION}:"
                f" upgrade precad at {behind}"
            )
            log.warning("a call from %s was refused: %s", context.peer(), text)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

        return grpc.stream_unary_rpc_method_handler(refuse)


def _name_of(context: Context) -> str:
    """Return the calling party as people read it: ``server B``, ``client ward-1``."""
    _, party = of_connection(context)
    if party is None:
        return "the caller"
    name = f" {party.name}" if party.role is Role.CLIENT else ""
    return party.role.title + name


async def _unknown(_requests: object, context: Context) -> None:
    """Answer a call to a method that no service of the port offers."""
    await end_call(context, grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


class GuardedPort:
    """One port of the part ``who``, such as "server B".

    ``clients`` says how many clients may call it. Services are added to ``server``,
    then ``listen`` lets callers in.
    """

    def __init__(
        self,
        who: str,
        identity: Identity,
        clients: int = 0,
        rate: CallRate | None = None,
    ) -> None:
        self._identity = identity
        most = connections_for(clients)
        self._connections = Connections(most)
        self.server = grpc.aio.server(
            interceptors=[Guard(self._connections, rate), RefusingOtherVersions(who)],
            options=[*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most)],
        )
        self._watch: asyncio.Task[None] | None = None

    async def listen(self, address: str) -> int:
        """Listen on ``address``, and return the port.

        Raises Misconfiguration as ``add_port``.
        """
        port = add_port(self.server, address, self._identity)
        await self.server.start()
        self._watch = asyncio.create_task(self._connections.keep_watch(port))
        return port

    async def stop(self, grace_s: float) -> None:
        """Take no new calls; end open ones after ``grace_s`` seconds, if they last."""
        await self.server.stop(grace=grace_s)
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
