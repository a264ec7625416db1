"""gRPC's health protocol, ``grpc.health.v1.Health``: whether a part serves, for who restarts it."""

from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, HealthStub, add_HealthServicer_to_server

from precad.common.errors import NotOnOffer
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel, require
from precad.common.wire.calls import errors_of
from precad.common.wire.serving import Context, Refusing


class _Health(HealthServicer):  # type: ignore[misc]
    """Answers ``Check`` about the whole part; ``Watch`` isn't offered, callers ask again."""

    def __init__(self, identity: Identity, serves: Callable[[], bool]) -> None:
        self._identity = identity
        self._serves = serves

    async def Check(  # noqa: N802 -- gRPC's name
        self, request: HealthCheckRequest, context: Context
    ) -> HealthCheckResponse:
        """Say whether the part serves, to itself and to operators."""
        async with Refusing(context):
            require(context, self._identity, self._identity.principal.role, Role.OPERATOR)
            if request.service:
                raise NotOnOffer("ask about the empty name: a part is well as a whole")
        well = self._serves()
        return HealthCheckResponse(
            status=HealthCheckResponse.SERVING if well else HealthCheckResponse.NOT_SERVING
        )


def add_health(server: grpc.aio.Server, identity: Identity, serves: Callable[[], bool]) -> None:
    """Answer ``Check`` on a server's port.

    Args:
        identity: what its port is opened with; the same certificate may ask.
        serves: False once the part is stopping or has stopped its work.
    """
    add_HealthServicer_to_server(_Health(identity, serves), server)


def is_serving(address: str, role: Role, identity: Identity, *, timeout_s: float) -> bool:
    """Return whether the part at ``address`` says that it serves.

    Raises:
        PeerUnavailable: it doesn't answer within ``timeout_s``.
        AccessDenied: it doesn't answer this identity.
    """
    with open_channel(address, identity, role) as channel, errors_of(role.value, address):
        reply = HealthStub(channel).Check(HealthCheckRequest(), timeout=timeout_s)
    return bool(reply.status == HealthCheckResponse.SERVING)
