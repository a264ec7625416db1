"""Calls to a server: repeated while it isn't there, and failing with precad's errors.

``OperatorConnection`` is an operator's access to one server: status and permissions.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc
from grpc import StatusCode as Code
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from precad.common import (
    CLOCK,
    NOT_IN_TIME,
    AccessDenied,
    Clock,
    Misidentified,
    NameInUse,
    NotOnOffer,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Retries,
    RetryPolicy,
    Role,
    frozen_kw_only_dataclass,
    log,
    one_line,
    start_thread,
)
from precad.common.identity import Identity, Why, check_version, open_channel
from precad.common.wire import NOT_NOW, FieldValue, values_of
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import OperationStub

StreamCall = Any
"""A call whose answers come as a stream: iterated, or cancelled.

gRPC has no public type for it.
"""
_WRONG_NAME = ("Hostname Verification Check failed", "is not in peer certificate")
"""How gRPC says, from version to version, that a certificate isn't the expected
party's."""
LINKED = "server A is linked already; its older link goes on"
"""What server B says to a second server A."""
_NOT_IN_TIME = tuple(f"{reason.value}: " for reason in NOT_IN_TIME)
"""How a refusal begins whose reason is a clock, or a certificate that has expired."""


def error_of(who: str, address: str, error: grpc.RpcError) -> PrecadError:
    """Return what went wrong on a call, in words for the side that can act.

    ``who`` is the party that was called, such as "server A". Which error it is follows
    from gRPC's status code; an unexpected code is a PeerViolation.
    """
    code = error.code()
    detail = one_line(error.details() or "")
    peer = f"{who} at {address}"
    match code:
        case Code.UNAVAILABLE:
            return _why_unavailable(who, address, detail)
        case Code.CANCELLED:
            # What a server that is being stopped does to the calls in flight.
            return PeerUnavailable(f"{peer} broke the call off; it may be restarting")
        case Code.DEADLINE_EXCEEDED:
            remedy = "check that it runs, its address, and the network between"
            return PeerUnavailable(
                f"{peer} didn't answer within the deadline; {remedy}"
            )
        case Code.NOT_FOUND:
            return NotOnOffer(f"{peer}: {detail}")
        case Code.ALREADY_EXISTS:
            return NameInUse(f"{peer}: {detail}")
        case Code.RESOURCE_EXHAUSTED:
            return PeerUnavailable(f"{peer} has no room for this call now: {detail}")
        case Code.PERMISSION_DENIED | Code.UNAUTHENTICATED:
            return AccessDenied(f"{peer} refuses: {detail}")
    return PeerViolation(f"{peer}: {detail or code.name}")


def _why_unavailable(who: str, address: str, detail: str) -> PeerUnavailable:
    """Return why a call ended in gRPC's status UNAVAILABLE, for ``error_of``.

    ``detail`` is what gRPC or the server says with it. Misidentified where another
    party answers.
    """
    if any(phrase in detail for phrase in _WRONG_NAME):
        return Misidentified(
            f"{who} isn't at {address}: whoever answers there has another party's"
            " certificate; mend the address"
        )
    if detail in (LINKED, NOT_NOW):
        return PeerUnavailable(f"{who} at {address}: {detail}")
    if detail.startswith(_NOT_IN_TIME):
        return PeerUnavailable(
            f"{who} at {address} refuses for now: {detail}; both sides look at their"
            " clocks, and a certificate that has expired is renewed (precad keys"
            " renew)"
        )
    return PeerUnavailable(
        f"{who} at {address} can't be reached ({detail[:200]}); check that it runs, its"
        " address, and that both sides use TLS with the same root certificate"
    )


@contextmanager
def errors_of(who: str, address: str) -> Iterator[None]:
    """Raise gRPC's errors inside the block as ``error_of`` says them."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(who, address, error) from None


WAITS = RetryPolicy(0.2, 0.2)
"""Between two tries to reach a server; the first value is a try's shortest timeout."""
LOOK_S = 10.0
"""Seconds between lines in the log about a server that isn't there yet."""
Reply = TypeVar("Reply")
"""What a call returns."""


def call_with_retries(
    call: Callable[[float], Reply],
    within_s: float,
    clock: Clock = CLOCK,
    *,
    why: Why = lambda: None,
    waiting: Callable[[float], object] = lambda _: None,
) -> Reply:
    """Make an idempotent call, again and again while the other side can't be reached.

    ``call`` gets its timeout, in seconds; ``within_s`` are the seconds for all tries
    together. gRPC's own way of waiting (``wait_for_ready``) ends in a bare deadline;
    this ends in what kept the connection from coming about: refused, or a certificate
    of another party.

    ``why`` looks for that reason, at the first failure, and then every ``LOOK_S``. Its
    answer goes to the log, with the time that is left; where it knows none twice in a
    row, the log has what gRPC says. ``waiting`` is told the seconds that are left,
    before each wait.

    Raises RpcError: of the last try that says something; Misidentified: ``why`` says
    that waiting won't help.
    """
    look_at = clock.now()
    retries = Retries(
        total_s=within_s,
        policy=WAITS,
        clock=clock,
        counted_from_now=True,
    )
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
                cause = why()
                if isinstance(cause, Misidentified):
                    raise cause from None
                if cause is None and unexplained:
                    # In TLS 1.3 a refused certificate shows only after its owner's
                    # handshake.
                    detail = one_line(error.details() or "")
                    cause = PeerUnavailable(
                        f"no call comes through ({detail[:200]}), and nothing is wrong"
                        " as seen from here: the other side may refuse this one's"
                        " certificate, for its clock or another root certificate"
                    )
                unexplained = cause is None
                if cause is not None:
                    left_s = max(0.0, retries.remaining())
                    log.warning("%s; trying again for %.0f s", cause, left_s)
            waiting(retries.remaining())
            retries.wait(error)


def is_serving(
    address: str,
    role: Role,
    identity: Identity,
    *,
    timeout_s: float,
) -> bool:
    """Return whether the part at ``address`` says that it serves.

    A part is a server or the dealer, as ``role`` says. It is asked again until it
    answers: on a busy machine a first connection may break off.

    Raises PeerUnavailable: no answer within ``timeout_s``; AccessDenied: the part
    doesn't answer this identity.
    """
    with (
        open_channel(address, identity, role) as channel,
        errors_of(role.value, address),
    ):
        check = partial(HealthStub(channel).Check, HealthCheckRequest())
        reply = call_with_retries(
            lambda left_s: check(timeout=left_s),
            timeout_s,
        )
    return bool(reply.status == HealthCheckResponse.SERVING)


CALL_TIMEOUT_S = 30.0
"""Seconds within which an operator's call must be answered."""


ServerStatus = pb.StatusReply
"""Where a server's training stands."""
RoundReport = pb.RoundReport
"""A finished round, as a server reports it."""


@frozen_kw_only_dataclass
class StepCost:
    """What a step of an attempt cost on a server.

    ``StepCost`` in protos/precad.proto describes each field.
    """

    step: str
    seconds: float
    cpu_seconds: float
    ended: float
    cpu_ended: float


def printable(value: FieldValue) -> FieldValue:
    """Return a reply's value with its texts as people may see them.

    Every text is one line, without control characters: the server may be bad.
    """
    match value:
        case str():
            return one_line(value)
        case dict():
            return {name: printable(inner) for name, inner in value.items()}
        case tuple():
            return tuple(map(printable, value))
    return value


class OperatorConnection:
    """A channel to ``role`` at ``address`` with an operator's identity.

    Calls raise PeerUnavailable, AccessDenied, PeerViolation.
    """

    def __init__(self, address: str, role: Role, identity: Identity) -> None:
        self._who = role.title
        self._errors = partial(errors_of, role.title, address)
        self._channel = open_channel(address, identity, role)
        self._operation = OperationStub(self._channel)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def status(
        self, timeout_s: float = CALL_TIMEOUT_S, *, wait: bool = False
    ) -> ServerStatus:
        """Return where the training stands.

        With ``wait`` the call waits for a server that isn't there yet, as long as
        ``timeout_s``.
        """
        with self._errors():
            reply = self._operation.Status(
                pb.StatusRequest(), timeout=timeout_s, wait_for_ready=wait
            )
        check_version(self._who, reply.wire_version)
        return ServerStatus(**printable(values_of(reply)))

    def allow(self, word: str, version: int) -> int:
        """Give the operators' permission for the version that waits.

        ``word`` names the permission. Returns the newest attempt that it reaches.

        Raises PeerViolation: there is no such permission, or another version is open.
        """
        request = pb.AllowRequest(
            task_digest=self.status().task_digest,
            word=word,
            version=version,
        )
        with self._errors():
            return self._operation.Allow(request, timeout=CALL_TIMEOUT_S).until


def collected(
    pieces: StreamCall,
    served_by: str,
    *,
    most: int,
    idle_s: float | None,
) -> bytearray:
    """Return the bytes of a model or a step that ``served_by`` serves.

    ``idle_s`` is how long nothing may come; None for any time.

    Raises PeerViolation: they are more than ``most``. PeerUnavailable: nothing came in
    that time. And grpc.RpcError.
    """
    data = bytearray()
    ended = threading.Event()
    idle = threading.Event()

    def cancel_when_idle() -> None:
        """Cancel the call once no byte has come for ``idle_s``."""
        length = 0
        while not ended.wait(idle_s):
            if len(data) == length:
                idle.set()
                pieces.cancel()
                return
            length = len(data)

    if idle_s is not None:
        start_thread("fetch", cancel_when_idle)
    try:
        for piece in pieces:
            data += piece.data
            if len(data) > most:
                pieces.cancel()
                raise PeerViolation(
                    f"{served_by} served a model longer than {most} bytes"
                )
    except grpc.RpcError:
        if idle.is_set():
            raise PeerUnavailable(
                f"{served_by} served nothing for {idle_s:g} s"
            ) from None
        raise
    finally:
        ended.set()
    return data
