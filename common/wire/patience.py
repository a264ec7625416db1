"""Calls that wait for a server which isn't there yet, and say in the end why it wasn't."""

import time
from collections.abc import Callable
from typing import TypeVar

import grpc

RETRY_S = 0.2
Reply = TypeVar("Reply")


def call_patiently(call: Callable[[float], Reply], patience_s: float) -> Reply:
    """Make an idempotent call, again and again while the other side can't be reached.

    gRPC's own way of waiting (``wait_for_ready``) ends in a bare deadline; this ends in what
    kept the connection from coming about: refused, or a certificate of another party.

    Args:
        call: makes the call with a timeout in seconds.
        patience_s: how long to try.

    Raises:
        grpc.RpcError: of the last try that says something.
    """
    deadline = time.monotonic() + patience_s
    unreachable: grpc.RpcError | None = None
    while True:
        remaining = deadline - time.monotonic()
        try:
            return call(max(remaining, RETRY_S))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and unreachable is not None:
                raise unreachable from None
            if error.code() is not grpc.StatusCode.UNAVAILABLE or remaining <= RETRY_S:
                raise
            unreachable = error
        time.sleep(RETRY_S)
