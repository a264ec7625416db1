"""Calls that wait for a server which isn't there yet, and say in the end why it wasn't."""

import logging
from collections.abc import Callable
from typing import TypeVar

import grpc

from precad.common.clock import CLOCK, Clock, Retries, RetryPolicy
from precad.common.errors import Misidentified, PeerUnavailable

log = logging.getLogger("precad")

WAITS = RetryPolicy(0.2, 0.2)
LOOK_S = 10.0
"""Between lines in the log about a server that isn't there yet."""
Reply = TypeVar("Reply")


def call_patiently(
    call: Callable[[float], Reply],
    patience_s: float,
    clock: Clock = CLOCK,
    *,
    why: Callable[[], PeerUnavailable | None] = lambda: None,
    waiting: Callable[[float], object] = lambda _: None,
) -> Reply:
    """Make an idempotent call, again and again while the other side can't be reached.

    gRPC's own way of waiting (``wait_for_ready``) ends in a bare deadline; this ends in what
    kept the connection from coming about: refused, or a certificate of another party.

    Args:
        call: makes the call with a timeout in seconds.
        patience_s: how long to try.
        clock: passes the time.
        why: looks at what keeps the connection from coming about; asked at the first failure, and
            then now and again. Its answer goes to the log, with the time that is left.
        waiting: told the seconds that are left, before each wait.

    Raises:
        grpc.RpcError: of the last try that says something.
        Misidentified: ``why`` says that waiting won't help.
    """
    look_at = clock.now()
    patience = Retries(patience_s, WAITS, clock, counted_from_now=True)
    unreachable: grpc.RpcError | None = None
    while True:
        try:
            return call(max(patience.remaining(), WAITS.first_s))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and unreachable is not None:
                raise unreachable from None
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            unreachable = error
            if clock.now() >= look_at:
                look_at = clock.now() + LOOK_S
                _say(why(), patience)
            waiting(patience.remaining())
            patience.wait(error)


def _say(cause: PeerUnavailable | None, patience: Retries) -> None:
    if isinstance(cause, Misidentified):
        raise cause
    if cause is not None:
        log.warning("%s; trying again for %.0f s", cause, max(0.0, patience.remaining()))
