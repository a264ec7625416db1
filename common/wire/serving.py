"""What every gRPC server of the system sets and answers alike.

Options of the port, how errors become status codes, and the health check.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import grpc.aio
from google.protobuf.message import DecodeError
from grpc import StatusCode as Code
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server

from precad.common import (
    NOT_IN_TIME,
    STOP_S,
    AccessDenied,
    Denial,
    Misconfiguration,
    NameInUse,
    NotOnOffer,
    PeerUnavailable,
    PrecadError,
    Role,
    Task,
    TaskMismatch,
    TooManyCalls,
    end_within,
    log,
)
from precad.common.identity import Identity, require

MAX_REQUEST_BYTES = 1 << 19
"""Largest message that a server takes: 512 KiB.

No message is longer, since shares and openings travel in pieces. So a caller makes a
server hold no more than this for each call, whatever it sends.
"""
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # Identity alone: some versions of gRPC inflate a message before they look at its
    # size.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_connection_idle_ms", 30_000),
    # A client needs a handful of calls at once, server A one link.
    ("grpc.max_concurrent_streams", 32),
    # What one upload may have on the way. Without it gRPC lets a fast one have
    # megabytes, times the number of clients.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 19),
    # Without it a connection that has brought a body keeps buffers as long as it could
    # read at once.
    ("grpc.experimental.tcp_max_read_buffer_size", 1 << 13),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
STREAMED_BYTES = 1 << 17
"""Bytes in one message of a model or of dealt words: 128 KiB.

A piece or two wait for a slow reader.
"""
_CODES: dict[type[PrecadError], Code] = {
    TaskMismatch: Code.FAILED_PRECONDITION,
    Misconfiguration: Code.INVALID_ARGUMENT,
    AccessDenied: Code.PERMISSION_DENIED,
    TooManyCalls: Code.RESOURCE_EXHAUSTED,
    NameInUse: Code.ALREADY_EXISTS,
    NotOnOffer: Code.NOT_FOUND,
    PeerUnavailable: Code.UNAVAILABLE,
}
"""Status codes of the errors whose texts are about the caller itself, and go to it.

Of all other errors the caller hears ``NOT_NOW``.
"""
NOT_NOW = "this server can't answer now; its operators know why"
"""What a caller hears of an error that isn't about itself."""
Context = grpc.aio.ServicerContext[object, object]
"""gRPC's context of one call, with requests and answers of any type."""


def status_of(error: PrecadError) -> Code:
    """Return the status code that a caller sees for ``error``.

    A certificate out of its time is UNAVAILABLE: a clock or a renewal may mend it.
    """
    if isinstance(error, AccessDenied) and error.reason is not Denial.NOT_ALLOWED:
        if error.reason in NOT_IN_TIME:
            return Code.UNAVAILABLE
        return Code.UNAUTHENTICATED
    return _CODES.get(type(error), Code.UNAVAILABLE)


def told(error: PrecadError) -> str:
    """Return what a caller reads of ``error``: its text, or ``NOT_NOW``."""
    return str(error) if type(error) in _CODES else NOT_NOW


async def end_call(context: Context, code: Code, text: str) -> NoReturn:
    """End a call with this status, by raising.

    A call that is over already, as by a message too long, ends in silence: gRPC would
    log a trace of each, and a caller mustn't fill the log.
    """
    try:
        await context.abort(code, text)
    except (grpc.aio.InternalError, grpc.aio.UsageError):
        raise asyncio.CancelledError from None
    raise AssertionError("abort raises")


@asynccontextmanager
async def refusing(context: Context) -> AsyncGenerator[None]:
    """End a call whose handler raises inside the block.

    An error of precad's that is about the caller ends it with its status code and its
    text, any other error with ``NOT_NOW``. gRPC's own errors and cancellations go on as
    they are. Errors that are no refusal are logged, those that may be bugs with a
    trace.
    """
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except DecodeError:
        # Any caller can send such bytes, without end: no line of it in the log.
        text = "the message can't be read as this call's"
        await end_call(context, Code.INVALID_ARGUMENT, text)
    except Exception as error:
        if isinstance(error, PrecadError) and type(error) in _CODES:
            await end_call(context, status_of(error), told(error))
        # What precad itself refuses is nobody's bug: a caller mustn't fill the log with
        # traces.
        trace = None if isinstance(error, PrecadError) else error
        log.log(logging.ERROR, "a call failed: %r", error, exc_info=trace)
        await end_call(context, Code.UNAVAILABLE, NOT_NOW)


def check_task(task: Task, digest: bytes) -> None:
    """Refuse a message whose task has another ``digest``.

    Raises TaskMismatch, with both digests.
    """
    if digest != task.digest.value:
        raise TaskMismatch(str(task.digest), digest[:64].hex() or "none")


class _Health(HealthServicer):  # type: ignore[misc]
    """Answers gRPC's health protocol for a whole part.

    Only ``Check`` is offered, and not ``Watch``: callers ask again.
    """

    def __init__(self, identity: Identity, serves: Callable[[], bool]) -> None:
        self._identity = identity
        self._serves = serves

    async def Check(  # noqa: N802 -- gRPC's name
        self, request: HealthCheckRequest, context: Context
    ) -> HealthCheckResponse:
        """Return whether the part serves, to itself and to operators.

        The call ends with AccessDenied for anybody else, and with NotOnOffer where it
        asks about one of the part's services.
        """
        async with refusing(context):
            require(
                context, self._identity, self._identity.principal.role, Role.OPERATOR
            )
            if request.service:
                raise NotOnOffer("ask about the empty name: a part is well as a whole")
        status = HealthCheckResponse.NOT_SERVING
        if self._serves():
            status = HealthCheckResponse.SERVING
        return HealthCheckResponse(status=status)


def add_health(
    server: grpc.aio.Server, identity: Identity, serves: Callable[[], bool]
) -> None:
    """Offer gRPC's health check on a server's port.

    It answers operators, and whoever has the part's own certificate (``identity``).
    ``serves`` returns False once the part is stopping or has stopped its work.
    """
    add_HealthServicer_to_server(_Health(identity, serves), server)


def set_when_told_to_stop(*events: asyncio.Event) -> None:
    """Set these events at SIGTERM or SIGINT.

    From then on the process ends within ``STOP_S`` seconds, whatever its work does.
    """

    def stop() -> None:
        end_within(STOP_S, 0)
        for event in events:
            event.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop)
