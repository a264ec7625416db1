"""Calls to a server: tried again while it isn't there; what went wrong as an error of precad's."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc
from grpc import StatusCode as Code
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from precad.common import errors
from precad.common.clock import CLOCK, Clock, Retries, RetryPolicy
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.wire.serving import NOT_NOW

log = logging.getLogger("precad")

_WRONG_NAME = ("Hostname Verification Check failed", "is not in peer certificate")
"""How gRPC says, from version to version, that a certificate isn't the expected party's."""
LINKED = "server A is linked already; its older link goes on"
"""What server B says to a second server A."""
_ITS_OWN_WORDS = (LINKED, NOT_NOW)
_TIMES = tuple(f"{reason.value}: " for reason in errors.NOT_IN_TIME)


def error_of(who: str, address: str, error: grpc.RpcError) -> errors.PrecadError:
    """What went wrong on a call, for the side that can act."""
    code = error.code()
    detail = errors.one_line(error.details() or "")
    there = f"{who} at {address}"
    match code:
        case Code.UNAVAILABLE:
            return _why_unavailable(who, address, detail)
        case Code.CANCELLED:
            # What a server that is being stopped does to the calls in flight.
            return errors.PeerUnavailable(f"{there} broke the call off; it may be restarting")
        case Code.DEADLINE_EXCEEDED:
            remedy = "check that it runs, its address, and the network between"
            return errors.PeerUnavailable(f"{there} didn't answer within the deadline; {remedy}")
        case Code.NOT_FOUND:
            return errors.NotOnOffer(f"{there}: {detail}")
        case Code.ALREADY_EXISTS:
            return errors.NameInUse(f"{there}: {detail}")
        case Code.RESOURCE_EXHAUSTED:
            return errors.PeerUnavailable(f"{there} has no room for this call now: {detail}")
        case Code.PERMISSION_DENIED | Code.UNAUTHENTICATED:
            return errors.AccessDenied(f"{there} refuses: {detail}")
    return errors.PeerViolation(f"{there}: {detail or code.name}")


def _why_unavailable(who: str, address: str, detail: str) -> errors.PeerUnavailable:
    if any(words in detail for words in _WRONG_NAME):
        return errors.Misidentified(
            f"{who} isn't at {address}: whoever answers there has another party's certificate; "
            "mend the address"
        )
    if detail in _ITS_OWN_WORDS:
        return errors.PeerUnavailable(f"{who} at {address}: {detail}")
    if detail.startswith(_TIMES):
        return errors.PeerUnavailable(
            f"{who} at {address} refuses for now: {detail}; both sides look at their clocks, and a "
            "certificate that has expired is renewed (precad keys renew)"
        )
    return errors.PeerUnavailable(
        f"{who} at {address} can't be reached ({detail[:200]}); check that it runs, its "
        "address, and that both sides use TLS with the same root certificate"
    )


@contextmanager
def errors_of(who: str, address: str) -> Iterator[None]:
    """Around a call: gRPC's errors as ``error_of`` says them."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(who, address, error) from None


WAITS = RetryPolicy(0.2, 0.2)
LOOK_S = 10.0
"""Between lines in the log about a server that isn't there yet."""
Reply = TypeVar("Reply")


def call_with_retries(
    call: Callable[[float], Reply],
    within_s: float,
    clock: Clock = CLOCK,
    *,
    why: Callable[[], errors.PeerUnavailable | None] = lambda: None,
    waiting: Callable[[float], object] = lambda _: None,
) -> Reply:
    """Make an idempotent call, again and again while the other side can't be reached.

    gRPC's own way of waiting (``wait_for_ready``) ends in a bare deadline; this ends in what
    kept the connection from coming about: refused, or a certificate of another party.

    ``why`` looks at that, at the first failure, and then now and again. Its answer goes to the log,
    with the time that is left; where it twice knows none, what gRPC says does. ``waiting`` is told
    the seconds that are left, before each wait.

    Raises RpcError: of the last try that says something; Misidentified: ``why`` says that waiting
    won't help.
    """
    look_at = clock.now()
    retries = Retries(within_s, WAITS, clock, counted_from_now=True)
    unreachable: grpc.RpcError | None = None
    unexplained = False
    while True:
        try:
            return call(max(retries.remaining(), WAITS.first_s))
        except grpc.RpcError as error:
            if error.code() is Code.DEADLINE_EXCEEDED and unreachable is not None:
                raise unreachable from None
            if error.code() is not Code.UNAVAILABLE:
                raise
            unreachable = error
            if clock.now() >= look_at:
                look_at = clock.now() + LOOK_S
                if isinstance(cause := why(), errors.Misidentified):
                    raise cause from None
                if cause is None and unexplained:
                    # In TLS 1.3 a refused certificate shows only after its owner's handshake.
                    cause = errors.PeerUnavailable(
                        f"no call comes through ({errors.one_line(error.details() or '')[:200]}), "
                        "and nothing is wrong as seen from here: the other side may refuse this "
                        "one's certificate, for its clock or another root certificate"
                    )
                unexplained = cause is None
                if cause is not None:
                    left = max(0.0, retries.remaining())
                    log.warning("%s; trying again for %.0f s", cause, left)
            waiting(retries.remaining())
            retries.wait(error)


def is_serving(address: str, role: Role, identity: Identity, *, timeout_s: float) -> bool:
    """Return whether the part at ``address`` says that it serves.

    Raises PeerUnavailable: no answer within ``timeout_s``; AccessDenied: none to this identity.
    """
    with open_channel(address, identity, role) as channel, errors_of(role.value, address):
        reply = HealthStub(channel).Check(HealthCheckRequest(), timeout=timeout_s)
    return bool(reply.status == HealthCheckResponse.SERVING)
