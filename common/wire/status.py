"""What went wrong on a call, as an error that says what to do."""

import grpc

from precad.common.errors import (
    AccessDenied,
    Misidentified,
    NameInUse,
    NotOnOffer,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
)
from precad.common.wire.serving import NOT_NOW

_WRONG_NAME = ("Hostname Verification Check failed", "is not in peer certificate")
"""How gRPC says, from version to version, that a certificate isn't the expected party's."""


LINKED = "server A is linked already; its older link goes on"
"""What server B says to a second server A."""
_ITS_OWN_WORDS = (LINKED, NOT_NOW)


def error_of(who: str, address: str, error: grpc.RpcError) -> PrecadError:
    """What went wrong on a call, for the side that can act.

    Args:
        who: the party that was called, such as "server B".
        address: where it was looked for.
        error: gRPC's error of the call.
    """
    code = error.code()
    detail = error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and any(words in detail for words in _WRONG_NAME):
        return Misidentified(
            f"{who} isn't at {address}: whoever answers there has another party's certificate; "
            "mend the address"
        )
    if code is grpc.StatusCode.UNAVAILABLE and detail in _ITS_OWN_WORDS:
        return PeerUnavailable(f"{who} at {address}: {detail}")
    if code is grpc.StatusCode.UNAVAILABLE:
        return PeerUnavailable(
            f"{who} at {address} can't be reached ({_short(detail)}); check that it runs, its "
            "address, and that both sides use TLS with the same root certificate"
        )
    if code is grpc.StatusCode.CANCELLED:
        # What a server that is being stopped does to the calls in flight.
        return PeerUnavailable(f"{who} at {address} broke the call off; it may be restarting")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerUnavailable(
            f"{who} at {address} didn't answer within the deadline; "
            "check that it runs, its address, and the network between"
        )
    if code is grpc.StatusCode.NOT_FOUND:
        return NotOnOffer(f"{who} at {address}: {detail}")
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return NameInUse(f"{who} at {address}: {detail}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return PeerUnavailable(f"{who} at {address} has no room for this call now: {detail}")
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return AccessDenied(f"{who} at {address} refuses: {detail}")
    return PeerViolation(f"{who} at {address}: {detail or code.name}")


def _short(detail: str) -> str:
    return detail.split("\n", 1)[0][:200]
