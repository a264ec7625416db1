"""Channels with mutual TLS 1.3, and nothing else."""

import re
from typing import Any

import grpc

from precad.common.errors import Misconfiguration
from precad.common.identifiers import ADDRESS_PATTERN, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.principal import Principal, check_serving
from precad.common.tls13 import check_tls13

_OPTIONS = (
    # Identity alone: some versions of gRPC inflate a message before they look at its size.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # gRPC backs off for up to two minutes by default: a server that comes back would be missed.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A machine that lost power or a cut cable says no goodbye: without pings, whoever only
    # listens (a client for notices) would wait for ever. Servers allow one every 5 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", 1 << 20),
)

_READ_BYTES = 1 << 19
_BULK = (
    # gRPC reads 8 KiB at first and seldom more than 64: a fifth of the time that bodies take.
    ("grpc.experimental.tcp_read_chunk_size", _READ_BYTES),
    ("grpc.experimental.tcp_min_read_chunk_size", _READ_BYTES),
)


def open_channel(
    address: str, identity: Identity, expect: Role, *, bulk: bool = False
) -> grpc.Channel:
    """A synchronous channel to the server of that role; connects lazily.

    A server whose certificate isn't ``expect``'s ends every call in ``UNAVAILABLE``, whatever its
    address.

    Args:
        address: as for :func:`dialling`, and so are the others.
        identity: the own one.
        expect: whose port this is.
        bulk: whether megabytes come in over it without a pause.

    Raises:
        Misconfiguration: as for :func:`dialling`.
    """
    target, credentials, options = dialling(address, identity, expect)
    return grpc.secure_channel(target, credentials, [*options, *(_BULK if bulk else ())])


def dialling(
    address: str, identity: Identity, expect: Role
) -> tuple[str, grpc.ChannelCredentials, list[tuple[str, Any]]]:
    """What a channel is made from, whichever of gRPC's kinds it is.

    Args:
        address: ``host:port``.
        identity: the own one.
        expect: whose port this is: a server's or the dealer's.

    Raises:
        Misconfiguration: no address, a role that doesn't serve, or TLS 1.3 not in force.
    """
    check_serving(expect)
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
        *_OPTIONS,
    ]
    return address, credentials, options
