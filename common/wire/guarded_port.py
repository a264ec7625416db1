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
from collections.abc import AsyncIterator, Awaitable, Callable
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
UNFINISHED = 8
"""Calls of one caller whose message hasn't come whole, at most."""
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


class CallRate:
    """Counts how often callers begin calls.

    A caller may begin ``burst`` calls at once, and ``per_s`` a second in the long run.
    Used on the event loop alone, hence without a lock.
    """

    def __init__(
        self, clock: Clock = CLOCK, *, burst: int = BURST, per_s: float = PER_S
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._begun: dict[Caller, tuple[float, float]] = {}
        """How many calls a caller has begun that aren't forgiven yet, and when that was
        counted."""

    def begin(self, caller: Caller) -> float:
        """Count one more call, and return how many are beyond the caller's rate.

        Calls that are refused count too, up to ``REFUSED``.
        """
        now = self._clock.now()
        begun, counted_at = self._begun.get(caller, (0.0, now))
        forgiven = (now - counted_at) * self._per_s
        begun = max(0.0, begun - forgiven) + 1
        most = self._burst + REFUSED
        self._begun[caller] = min(begun, most), now
        if len(self._begun) > _MOST_REMEMBERED:
            # Callers that called long ago take no memory: all their calls are forgiven.
            forgiven_after_s = most / self._per_s
            self._begun = {
                other: (count, at)
                for other, (count, at) in self._begun.items()
                if now - at < forgiven_after_s
            }
        return max(0.0, begun - self._burst)

    def text(self, caller: Caller) -> str:
        """Return what a refused caller reads."""
        return (
            f"{caller} makes more than {self._per_s:g} calls a second; ask less often"
        )


class Guard(grpc.aio.ServerInterceptor):
    """Stands around every call to a port, also around those that no service offers.

    A call beyond its caller's ``rate`` is refused, and so is one more call of a caller
    that has ``UNFINISHED`` calls whose message hasn't come.
    """

    def __init__(self, connections: Connections, rate: CallRate | None) -> None:
        self._connections = connections
        self._rate = rate or CallRate()
        self._unfinished: Counter[Caller | None] = Counter()
        """Each caller's calls whose message hasn't come whole."""

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
        requests_kind = "stream" if handler.request_streaming else "unary"
        answers_kind = "stream" if handler.response_streaming else "unary"
        kind = f"{requests_kind}_{answers_kind}"
        behaviour = getattr(handler, kind)

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

        guarded: dict[str, object] = {"request_streaming": True, kind: None}
        if handler.response_streaming:
            guarded["stream_stream"] = stream
        else:
            guarded["stream_unary"] = answer
        return handler._replace(**guarded)

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
        raise TooManyCalls(self._rate.text(caller))

    async def _message(
        self, caller: Caller | None, requests: AsyncIterator[object], context: Context
    ) -> object:
        """Return the one message of a call that takes one, once it has come whole.

        A call whose message doesn't come within ``REQUEST_S`` seconds, or that holds
        none, ends.

        Raises TooManyCalls: the caller has ``UNFINISHED`` such calls open.
        """
        if self._unfinished[caller] >= UNFINISHED:
            raise TooManyCalls(
                f"{caller} has {UNFINISHED} calls open whose message hasn't come, the"
                " most that one caller may; let one end first"
            )
        self._unfinished[caller] += 1
        try:
            async with asyncio.timeout(REQUEST_S):
                return await anext(requests)
        except TimeoutError:
            text = f"the call's message didn't come whole within {REQUEST_S:g} s"
            await end_call(context, grpc.StatusCode.DEADLINE_EXCEEDED, text)
        except StopAsyncIteration:
            await end_call(
                context, grpc.StatusCode.INVALID_ARGUMENT, "the call holds no message"
            )
        finally:
            self._unfinished[caller] -= 1
            if not self._unfinished[caller]:
                del self._unfinished[caller]


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
