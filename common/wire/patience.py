"""Calls that wait for a server which isn't there yet, and say in the end why it wasn't."""

from collections.abc import Callable
from typing import TypeVar

import grpc

from precad.common.clock import CLOCK, Clock
from precad.common.retry import Patience, Waits

WAITS = Waits(0.2, 0.2)
Reply = TypeVar("Reply")


def call_patiently(
    call: Callable[[float], Reply], patience_s: float, clock: Clock = CLOCK
) -> Reply:
    """Make an idempotent call, again and again while the other side can't be reached.

    gRPC's own way of waiting (``wait_for_ready``) ends in a bare deadline; this ends in what
    kept the connection from coming about: refused, or a certificate of another party.

    Args:
        call: makes the call with a timeout in seconds.
        patience_s: how long to try.
        clock: passes the time.

    Raises:
        grpc.RpcError: of the last try that says something.
    """
    patience = Patience(patience_s, WAITS, clock, counted_from_now=True)
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
            patience.wait(error)
