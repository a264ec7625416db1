"""The version of what crosses the wires: said in the greeting on every link, and equal or refused.

A caller says it with every call, behind gRPC's own words in ``user-agent``. Who is called refuses
another version before it looks at anything else, and says its own in its first answer, so that a
newer caller refuses an older server too. Versions before 2 said none.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from precad.common.errors import PeerViolation

log = logging.getLogger("precad")

WIRE_VERSION = 5
_FIRST = 1
_SAID = re.compile(r"\bprecad-wire/(\d{1,9})(?!\S)")
_KEY = "precad-wire"

USER_AGENT = ("grpc.secondary_user_agent", f"precad-wire/{WIRE_VERSION}")
"""A channel's option."""
GREETING = ((_KEY, str(WIRE_VERSION)),)
"""Initial metadata of whoever answers on a stream; elsewhere a field of the first reply says it."""

Metadata = Iterable[tuple[str, str | bytes]] | None


def greeted_version(metadata: Metadata) -> int:
    """Return the version that a stream's initial metadata says; 0 where they say none."""
    said = dict(metadata or ()).get(_KEY, "")
    return int(said) if isinstance(said, str) and re.fullmatch(r"\d{1,9}", said) else 0


def check_version(who: str, theirs: int) -> None:
    """Refuse whoever was called and speaks another version; 0 where it says none.

    Raises PeerViolation.
    """
    theirs = theirs or _FIRST
    if theirs != WIRE_VERSION:
        raise PeerViolation(
            f"{who} speaks wire version {theirs}, this side {WIRE_VERSION}: upgrade precad "
            f"{'on this side' if theirs > WIRE_VERSION else f'at {who}'}"
        )


class RefusingOtherVersions(grpc.aio.ServerInterceptor):
    """Refuses every call of another version to a port, but for gRPC's own health protocol."""

    def __init__(self, who: str) -> None:
        self._who = who

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the call's handler, or one that refuses."""
        agent = dict(handler_call_details.invocation_metadata).get("user-agent", "")
        found = _SAID.search(agent)
        theirs = int(found[1]) if found else _FIRST
        health = handler_call_details.method.startswith("/grpc.health.")
        if theirs == WIRE_VERSION or health:
            return await continuation(handler_call_details)
        behind = "the caller" if theirs < WIRE_VERSION else self._who
        text = (
            f"the caller speaks wire version {theirs}, {self._who} {WIRE_VERSION}: upgrade precad "
            f"at {behind}"
        )

        async def refuse(_requests: object, context: Any) -> None:
            log.warning("a call from %s was refused: %s", context.peer(), text)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

        return grpc.stream_unary_rpc_method_handler(refuse)
