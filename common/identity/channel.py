"""Ports and channels with mutual TLS 1.3; plaintext on loopback alone."""

import ipaddress
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.certificate import SERVING_ROLES
from precad.common.identity.credentials import Identity, Plaintext
from precad.common.identity.principal import Principal
from precad.common.tls13 import check_tls13

ROLE_METADATA = "precad-role"
NAME_METADATA = "precad-name"
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
Options = Sequence[tuple[str, Any]]
Claim = tuple[Role, str]


def add_port(
    server: grpc.Server | grpc.aio.Server, address: str, identity: Identity | Plaintext
) -> int:
    """Listen; with an identity only for callers whose certificate its authorities issued.

    Args:
        server: a synchronous or an asyncio server, not yet started.
        address: ``host:port``; port 0 takes a free one.
        identity: ``Plaintext`` only where the host is loopback.

    Returns:
        The port.

    Raises:
        Misconfiguration: plaintext beyond loopback, an identity that may not serve, TLS 1.3 not
            in force, or an address that can't be bound.
    """
    try:
        if isinstance(identity, Plaintext):
            _check_loopback(address)
            port = server.add_insecure_port(address)
        else:
            _check_serving(identity.principal.role)
            check_tls13()
            credentials = grpc.ssl_server_credentials(
                [(identity.key.reveal(), identity.cert)],
                root_certificates=identity.ca,
                require_client_auth=True,
            )
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise Misconfiguration("address", address, "can't be bound: taken, or not of this machine")
    return port


def open_channel(
    address: str,
    identity: Identity | Plaintext,
    expect: Role,
    *,
    claim: Claim | None = None,
    options: Options = (),
) -> grpc.Channel:
    """A synchronous channel to the server of that role; connects lazily.

    With an identity, a server whose certificate isn't ``expect``'s ends every call in
    ``UNAVAILABLE``, whatever its address.

    Args:
        address: ``host:port``.
        identity: the own one.
        expect: whose port this is: a server's or the dealer's.
        claim: role and name to state in plaintext, in each call's metadata; unused with an
            identity, whose certificate states them.
        options: further gRPC channel options.

    Raises:
        Misconfiguration: plaintext beyond loopback, a role that doesn't serve, or TLS 1.3 not in
            force.
    """
    _check_serving(expect)
    if isinstance(identity, Plaintext):
        _check_loopback(address)
        channel = grpc.insecure_channel(address, _channel_options(options))
        if claim is None:
            return channel
        return grpc.intercept_channel(channel, _SyncClaim(claim))
    check_tls13()
    return grpc.secure_channel(
        address, _channel_credentials(identity), _channel_options(options, expect)
    )


def open_aio_channel(
    address: str,
    identity: Identity | Plaintext,
    expect: Role,
    *,
    claim: Claim | None = None,
    options: Options = (),
) -> grpc.aio.Channel:
    """The asyncio twin of :func:`open_channel`."""
    _check_serving(expect)
    if isinstance(identity, Plaintext):
        _check_loopback(address)
        claims = [] if claim is None else _aio_claims(claim)
        return grpc.aio.insecure_channel(address, _channel_options(options), interceptors=claims)
    check_tls13()
    return grpc.aio.secure_channel(
        address, _channel_credentials(identity), _channel_options(options, expect)
    )


def _channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=identity.ca,
        private_key=identity.key.reveal(),
        certificate_chain=identity.cert,
    )


def _channel_options(options: Options, expect: Role | None = None) -> list[tuple[str, Any]]:
    # gRPC shares connections between channels of one process; never across identities.
    ours: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1), *_RECONNECT]
    if expect is not None:
        # The name that the server's certificate must carry, in place of the address.
        ours.append(("grpc.ssl_target_name_override", Principal.service(expect).dns_name))
    taken = {key for key, _ in ours}
    return [*((key, value) for key, value in options if key not in taken), *ours]


def _check_serving(role: Role) -> None:
    if role not in SERVING_ROLES:
        raise Misconfiguration("role", role.value, "only server-a, server-b and the dealer serve")


def _check_loopback(address: str) -> None:
    host, separator, port = address.rpartition(":")
    if not (separator and port.isascii() and port.isdigit() and _is_loopback(host)):
        raise Misconfiguration(
            "address",
            address,
            "insecure_plaintext is for 127.0.0.0/8, [::1] and localhost only, as host:port; "
            "elsewhere use an identity from precad keys",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        parsed = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return False
    if bracketed:
        return parsed == ipaddress.IPv6Address("::1")
    return isinstance(parsed, ipaddress.IPv4Address) and parsed.is_loopback


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


def _metadata(claim: Claim) -> tuple[tuple[str, str], ...]:
    principal = Principal(*claim)
    return (ROLE_METADATA, principal.role.value), (NAME_METADATA, principal.name)


class _SyncClaim(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Says who calls, where no certificate does. One body serves the four kinds of call."""

    def __init__(self, claim: Claim) -> None:
        self._metadata = _metadata(claim)

    def _forward(self, continuation: Any, details: Any, request: Any) -> Any:
        claiming = _CallDetails(
            details.method,
            details.timeout,
            [*(details.metadata or ()), *self._metadata],
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(claiming, request)

    intercept_unary_unary: Any = _forward
    intercept_unary_stream: Any = _forward
    intercept_stream_unary: Any = _forward
    intercept_stream_stream: Any = _forward


class _AioClaim:
    """As :class:`_SyncClaim`; an asyncio channel takes one interceptor per kind of call."""

    def __init__(self, claim: Claim) -> None:
        self._metadata = _metadata(claim)

    async def forward(self, continuation: Any, details: Any, request: Any) -> Any:
        """The call, with the claim in its metadata."""
        claiming = grpc.aio.ClientCallDetails(
            details.method,
            details.timeout,
            grpc.aio.Metadata(*(details.metadata or ()), *self._metadata),
            details.credentials,
            details.wait_for_ready,
        )
        return await continuation(claiming, request)


class _AioUnaryUnary(_AioClaim, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary: Any = _AioClaim.forward


class _AioUnaryStream(_AioClaim, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream: Any = _AioClaim.forward


class _AioStreamUnary(_AioClaim, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary: Any = _AioClaim.forward


class _AioStreamStream(_AioClaim, grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream: Any = _AioClaim.forward


def _aio_claims(claim: Claim) -> list[grpc.aio.ClientInterceptor]:
    return [
        _AioUnaryUnary(claim),
        _AioUnaryStream(claim),
        _AioStreamUnary(claim),
        _AioStreamStream(claim),
    ]
