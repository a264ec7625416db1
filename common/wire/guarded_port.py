"""A part's port: whatever listens for gRPC is made here, with one guard over what callers may take.

The guard knows a caller by its certificate when a call begins, before anything of its
message has come, whatever the method, and whether or not the call will be refused. What
a caller takes is the same at the servers, the dealer and the workers.
"""

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from precad.common.clock import CLOCK, Clock
from precad.common.errors import TooManyCalls
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import FIRST_VERSION, WIRE_VERSION, add_port
from precad.common.identity.party_certificate import SERVING_ROLES, Principal
from precad.common.wire.connections import Caller, Connections, connections_for
from precad.common.wire.serving import SERVER_OPTIONS, Refusing, end_call

log = logging.getLogger("precad")

BURST = 200
"""Calls that a caller may begin at once."""
PER_S = 50.0
"""Calls that it may begin, in the long run."""
REFUSED = 32
"""Calls beyond those, until its connection ends."""
REFUSED_S = 1.0
"""How long a refusal waits: who asks without end is busy waiting."""
UNFINISHED = 8
"""Calls of one caller whose message hasn't come whole."""
REQUEST_S = 10.0
"""How long a message may take to come whole."""
_REMEMBERED = 10_000
_SAID = re.compile(r"\bprecad-wire/(\d{1,9})(?!\S)")


class CallRate:
    """How often callers begin calls.

    Used on the event loop alone, hence without a lock.
    """

    def __init__(
        self, clock: Clock = CLOCK, *, burst: int = BURST, per_s: float = PER_S
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._begun: dict[Caller, tuple[float, float]] = {}
        """How many calls a caller has begun that aren't forgiven yet, and when it was
        so."""

    def begin(self, caller: Caller) -> float:
        """One more call begins: return how many are beyond the caller's rate.

        Those that are refused count too, up to ``REFUSED``.
        """
        now = self._clock.now()
        begun, at = self._begun.get(caller, (0.0, now))
        begun = max(0.0, begun - (now - at) * self._per_s) + 1
        self._begun[caller] = min(begun, self._burst + REFUSED), now
        if len(self._begun) > _REMEMBERED:
            # Names that called long ago take no memory.
            spent = (self._burst + REFUSED) / self._per_s
            self._begun = {k: v for k, v in self._begun.items() if now - v[1] < spent}
        return max(0.0, begun - self._burst)

    def text(self, caller: Caller) -> str:
        """What a refused caller reads."""
        return (
            f"{caller} makes more than {self._per_s:g} calls a second; ask less often"
        )


class Guard(grpc.aio.ServerInterceptor):
    """Around every call to a port, those that no service offers too."""

    def __init__(self, connections: Connections, rate: CallRate | None = None) -> None:
        self._connections = connections
        self._rate = rate or CallRate()
        self._unfinished: Counter[Caller | None] = Counter()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the call's handler, which begins before the call's message comes."""
        handler = await continuation(handler_call_details)
        if handler is None:
            handler = grpc.stream_unary_rpc_method_handler(_unknown)
        shapes = handler.request_streaming, handler.response_streaming
        kind = "_".join("stream" if streams else "unary" for streams in shapes)
        behaviour = getattr(handler, kind)

        async def begin(requests: AsyncIterator[Any], context: Any) -> Any:
            async with Refusing(context):
                caller = self._connections.called(context)
                await self._in_its_rate(caller, context)
                if handler.request_streaming:
                    return requests
                return await self._message(caller, requests, context)

        async def answer(requests: AsyncIterator[Any], context: Any) -> Any:
            return await behaviour(await begin(requests, context), context)

        async def stream(
            requests: AsyncIterator[Any], context: Any
        ) -> AsyncIterator[Any]:
            request = await begin(requests, context)
            async with contextlib.aclosing(behaviour(request, context)) as messages:
                async for message in messages:
                    yield message

        begins = {"stream_stream": stream} if shapes[1] else {"stream_unary": answer}
        return handler._replace(**{"request_streaming": True, kind: None} | begins)

    async def _in_its_rate(self, caller: Caller | None, context: Any) -> None:
        served = isinstance(caller, Principal) and caller.role in SERVING_ROLES
        if caller is None or served or not (beyond := self._rate.begin(caller)):
            return
        if beyond >= REFUSED:
            self._connections.end(context)
        await asyncio.sleep(REFUSED_S)
        raise TooManyCalls(self._rate.text(caller))

    async def _message(
        self, caller: Caller | None, requests: AsyncIterator[Any], context: Any
    ) -> Any:
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
    """Refuses every call of another wire version, but for gRPC's own health protocol, unread."""

    def __init__(self, who: str) -> None:
        self._who = who

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the call's handler, or one that refuses."""
        agent = dict(handler_call_details.invocation_metadata).get("user-agent", "")
        found = _SAID.search(agent)
        theirs = int(found[1]) if found else FIRST_VERSION
        if theirs == WIRE_VERSION or handler_call_details.method.startswith(
            "/grpc.health."
        ):
            return await continuation(handler_call_details)
        behind = "the caller" if theirs < WIRE_VERSION else self._who
        versions = (
            f"the caller speaks wire version {theirs}, {self._who} {WIRE_VERSION}"
        )
        text = f"{versions}: upgrade precad at {behind}"

        async def refuse(_requests: object, context: Any) -> None:
            log.warning("a call from %s was refused: %s", context.peer(), text)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

        return grpc.stream_unary_rpc_method_handler(refuse)


async def _unknown(_requests: object, context: Any) -> None:
    await end_call(context, grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


class GuardedPort:
    """One port of ``who``, such as "server B", where so many clients have business.

    Services are added to ``server``, then it listens.
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
        options = dict(SERVER_OPTIONS) | {"grpc.max_allowed_incoming_connections": most}
        self.server = grpc.aio.server(
            interceptors=[Guard(self._connections, rate), RefusingOtherVersions(who)],
            options=list(options.items()),
        )
        self._watch: asyncio.Task[None] | None = None

    async def listen(self, address: str) -> int:
        """Take callers, and return the port.

        Raises Misconfiguration as ``add_port``.
        """
        port = add_port(self.server, address, self._identity)
        await self.server.start()
        self._watch = asyncio.create_task(self._connections.keep_watch(port))
        return port

    async def stop(self, grace_s: float) -> None:
        """Let calls end for so long, then end them."""
        await self.server.stop(grace=grace_s)
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
