"""gRPC's health protocol, ``grpc.health.v1.Health``: whether a part serves, for who restarts it.

Its two messages have one field each, with number 1: a service's name and a status. Protobuf's
wrappers of a string and an int32 are the same bytes, so that the protocol needs no generated code
and no further package. ``Watch`` isn't offered; callers ask again.
"""

from collections.abc import Callable

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from precad.common.errors import NotOnOffer
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import require
from precad.common.wire.serving import Context, Refusing

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
"""As the protocol numbers them."""


def add_health(server: grpc.aio.Server, identity: Identity, serves: Callable[[], bool]) -> None:
    """Answer ``Check``, about the whole part (the empty name), to the part itself and operators.

    Args:
        server: not yet started.
        identity: what its port is opened with; the same certificate may ask.
        serves: False once the part is stopping or has stopped its work.
    """

    async def check(request: StringValue, context: Context) -> Int32Value:
        async with Refusing(context):
            require(context, identity, identity.principal.role, Role.OPERATOR)
            if request.value:
                raise NotOnOffer("ask about the empty name: a part is well as a whole")
        return Int32Value(value=SERVING if serves() else NOT_SERVING)

    handler = grpc.unary_unary_rpc_method_handler(
        check,
        request_deserializer=StringValue.FromString,
        response_serializer=Int32Value.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Check": handler}),)
    )
