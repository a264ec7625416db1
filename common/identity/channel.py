"""Ports and channels with mutual TLS 1.3, and nothing else."""

import re
from typing import Any

import grpc
import grpc.aio

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.certificate import SERVING_ROLES
from precad.common.identity.credentials import Identity
from precad.common.identity.principal import Principal
from precad.common.tls13 import check_tls13

ADDRESS_PATTERN = r"^[^\s:]+:\d{1,5}$|^\[[0-9a-fA-F:]+\]:\d{1,5}$"
_RECONNECT = (
    # gRPC backs off for up to two minutes by default: a server that comes back would be missed.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A machine that lost power or a cut cable says no goodbye: without pings, whoever only
    # listens (a client for notices) would wait for ever. Servers allow one every 5 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


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
    _check_serving(identity.principal.role)
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


def open_channel(address: str, identity: Identity, expect: Role) -> grpc.Channel:
    """A synchronous channel to the server of that role; connects lazily.

    A server whose certificate isn't ``expect``'s ends every call in ``UNAVAILABLE``, whatever its
    address.

    Args:
        address: ``host:port``.
        identity: the own one.
        expect: whose port this is: a server's or the dealer's.

    Raises:
        Misconfiguration: no address, a role that doesn't serve, or TLS 1.3 not in force.
    """
    return grpc.secure_channel(*_prepare(address, identity, expect))


def open_aio_channel(address: str, identity: Identity, expect: Role) -> grpc.aio.Channel:
    """The asyncio twin of :func:`open_channel`."""
    return grpc.aio.secure_channel(*_prepare(address, identity, expect))


def _prepare(
    address: str, identity: Identity, expect: Role
) -> tuple[str, grpc.ChannelCredentials, list[tuple[str, Any]]]:
    """What both kinds of channel are made from."""
    _check_serving(expect)
    if not re.fullmatch(ADDRESS_PATTERN, address):
        raise Misconfiguration("address", address, "give host:port, such as 127.0.0.1:7301")
    check_tls13()
    credentials = grpc.ssl_channel_credentials(
        root_certificates=identity.ca,
        private_key=identity.key.reveal(),
        certificate_chain=identity.cert,
    )
    options: list[tuple[str, Any]] = [
        # gRPC shares connections between channels of one process; never across identities.
        ("grpc.use_local_subchannel_pool", 1),
        # The name that the server's certificate must carry, in place of the address.
        ("grpc.ssl_target_name_override", Principal.service(expect).dns_name),
        *_RECONNECT,
    ]
    return address, credentials, options


def _check_serving(role: Role) -> None:
    if role not in SERVING_ROLES:
        raise Misconfiguration("role", role.value, "only server-a, server-b and the dealer serve")
