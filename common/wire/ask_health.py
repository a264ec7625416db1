"""Asking a part whether it serves, by gRPC's health protocol."""

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.wire.health import SERVICE, SERVING
from precad.common.wire.status import error_of


def is_serving(address: str, role: Role, identity: Identity, *, timeout_s: float) -> bool:
    """Whether the part at ``address`` says that it serves.

    Raises:
        PeerUnavailable: it doesn't answer within ``timeout_s``.
        AccessDenied: it doesn't answer this identity.
    """
    with open_channel(address, identity, role) as channel:
        check = channel.unary_unary(
            f"/{SERVICE}/Check",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=Int32Value.FromString,
        )
        try:
            reply = check(StringValue(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of(role.value, address, error) from None
    return bool(reply.value == SERVING)
