"""Ports with mutual TLS 1.3, and nothing else."""

import grpc
import grpc.aio

from precad.common.errors import Misconfiguration
from precad.common.identity.credentials import Identity
from precad.common.identity.principal import check_serving
from precad.common.tls13 import check_tls13


def add_port(server: grpc.Server | grpc.aio.Server, address: str, identity: Identity) -> int:
    """Listen, for callers only whose certificate the identity's authorities issued.

    Args:
        server: a synchronous or an asyncio server, not yet started.
        address: ``host:port``; port 0 takes a free one.
        identity: a server's or the dealer's.

    Returns:
        The port.

    Raises:
        Misconfiguration: an identity that may not serve, TLS 1.3 not in force, or an address that
            can't be bound.
    """
    check_serving(identity.principal.role)
    check_tls13()
    credentials = grpc.ssl_server_credentials(
        [(identity.key.reveal(), identity.cert)],
        root_certificates=identity.ca,
        require_client_auth=True,
    )
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise Misconfiguration("address", address, "can't be bound: taken, or not of this machine")
    return port
