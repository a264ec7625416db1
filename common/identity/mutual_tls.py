"""Ports and channels with mutual TLS 1.3 alone; who is at the other end, or why nobody is.

Both ends say the version of what crosses the wire, equal or refused: a caller with
every call, behind gRPC's own words in ``user-agent``; who is called in its first
answer, so that a newer caller refuses an older server too. Versions before 2 said none.
"""

import os
import re
import socket
import ssl
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio
from cryptography import x509

from precad import TLS13_ALONE
from precad.common import clock
from precad.common.errors import (
    AccessDenied,
    Denial,
    Misconfiguration,
    Misidentified,
    PeerUnavailable,
    PeerViolation,
    RejectedSubmission,
    Rejection,
    one_line,
)
from precad.common.identifiers import Role
from precad.common.identity import party_certificate as certificates
from precad.common.identity.credentials import CA_FILE, Identity
from precad.common.identity.party_certificate import Principal
from precad.common.process_settings import (
    HttpProxy,
    address_fault,
    proxy_of,
    split_address,
)

WIRE_VERSION = 5
FIRST_VERSION = 1
_GREETS = "precad-wire"
USER_AGENT = ("grpc.secondary_user_agent", f"{_GREETS}/{WIRE_VERSION}")
"""A channel's option."""
GREETING = ((_GREETS, str(WIRE_VERSION)),)
"""Initial metadata of whoever answers on a stream; elsewhere a field of the first reply
says it."""
_OPTIONS = (
    # Identity alone: some versions of gRPC inflate a message before they look at its
    # size.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # gRPC backs off for up to two minutes by default: a server that comes back would be
    # missed.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A machine that lost power or a cut cable says no goodbye: without pings, whoever
    # only listens (a client for notices) would wait for ever. Servers allow one every 5
    # s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", 1 << 20),
    # As at the servers' ports. A server's slot for a model ends when it has left the
    # server, and not when gRPC has taken it whole for a client that asked for megabytes
    # at once.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 19),
    # The environment's proxy: one that is there for web pages would be waited for in
    # silence.
    ("grpc.enable_http_proxy", 0),
)

_READ_BYTES = 1 << 19
_BULK = {
    # gRPC reads 8 KiB at first and seldom more than 64: a fifth of the time that bodies
    # take.
    "grpc.experimental.tcp_read_chunk_size": _READ_BYTES,
    "grpc.experimental.tcp_min_read_chunk_size": _READ_BYTES,
    "grpc.http2.lookahead_bytes": 1 << 22,
}


def greeted_version(metadata: Iterable[tuple[str, str | bytes]] | None) -> int:
    """Return the version that a stream's initial metadata says; 0 where they say none."""
    said = dict(metadata or ()).get(_GREETS, "")
    return int(said) if isinstance(said, str) and re.fullmatch(r"\d{1,9}", said) else 0


def check_version(who: str, theirs: int) -> None:
    """Refuse whoever was called and speaks another version; 0 where it says none.

    Raises PeerViolation.
    """
    theirs = theirs or FIRST_VERSION
    if theirs != WIRE_VERSION:
        raise PeerViolation(
            f"{who} speaks wire version {theirs}, this side {WIRE_VERSION}: upgrade"
            f" precad {'on this side' if theirs > WIRE_VERSION else f'at {who}'}"
        )


def open_channel(
    address: str,
    identity: Identity,
    expect: Role,
    *,
    bulk: bool = False,
) -> grpc.Channel:
    """A channel to the server of that role, which connects lazily.

    Raises as ``dialling``.

    A server whose certificate isn't ``expect``'s ends every call in ``UNAVAILABLE``,
    whatever its address. ``bulk``: megabytes come in over it without a pause.
    """
    target, credentials, options = dialling(address, identity, expect)
    chosen = dict(options) | (_BULK if bulk else {})
    return grpc.secure_channel(target, credentials, list(chosen.items()))


def dialling(
    address: str, identity: Identity, expect: Role
) -> tuple[str, grpc.ChannelCredentials, list[tuple[str, Any]]]:
    """What a channel to the port of role ``expect`` is made from, whichever of gRPC's kinds it is.

    Raises Misconfiguration: no ``host:port``, a role that doesn't serve, or TLS 1.3 not
    in force.
    """
    certificates.check_serving(expect)
    fault = address_fault(address)
    if fault:
        raise Misconfiguration("address", address, fault)
    _check_tls13()
    credentials = grpc.ssl_channel_credentials(
        root_certificates=identity.ca,
        private_key=identity.key.reveal(),
        certificate_chain=identity.cert,
    )
    options: list[tuple[str, Any]] = [
        # gRPC shares connections between channels of one process; never across
        # identities.
        ("grpc.use_local_subchannel_pool", 1),
        # The name that the server's certificate must carry, in place of the address.
        ("grpc.ssl_target_name_override", Principal.service(expect).dns_name),
        USER_AGENT,
        *_OPTIONS,
    ]
    proxy = proxy_of(address)
    if proxy is None:
        return address, credentials, options
    # By these two gRPC's own proxy mapper works, which would ask the environment.
    options.append(("grpc.http_connect_server", str(address)))
    if proxy.authorization is not None:
        header = f"Proxy-Authorization:{proxy.authorization.reveal().decode()}"
        options.append(("grpc.http_connect_headers", header))
    return proxy.address, credentials, options


def _check_tls13() -> None:
    """Refuse where gRPC was imported before precad and may speak TLS 1.2."""
    variable, wanted = TLS13_ALONE
    value = os.environ.get(variable)
    if value != wanted:
        remedy = (
            "gRPC was imported before precad and would still speak TLS 1.2: import"
            f" precad first, or start the process with {variable}={wanted}"
        )
        raise Misconfiguration(variable, value, remedy)


def add_port(
    server: grpc.Server | grpc.aio.Server, address: str, identity: Identity
) -> int:
    """Listen, and return the port, for callers whose certificate the identity's authorities issued.

    Where the address has port 0 it is a free one.

    Raises Misconfiguration: an identity that may not serve, TLS 1.3 not in force, or an
    address that can't be bound.
    """
    certificates.check_serving(identity.principal.role)
    # gRPC takes a port beyond the last one for another.
    fault = address_fault(address, least_port=0)
    if fault:
        raise Misconfiguration("address", address, fault)
    _check_tls13()
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
        raise Misconfiguration(
            "address", address, "can't be bound: taken, or not of this machine"
        )
    return port


Context = grpc.ServicerContext | grpc.aio.ServicerContext[Any, Any]


def require(context: Context, identity: Identity, *roles: Role) -> Principal:
    """The party at the other end of a call, from its certificate and never from a message.

    The handshake checked the certificate when the connection began; connections live
    for weeks, hence expiry and revocation are checked again here. Raises AccessDenied.
    """
    certificate, principal = of_connection(context)
    if principal is None:
        raise AccessDenied(
            "the certificate names no single precad party", Denial.MALFORMED_NAME
        )
    fault = certificates.validity_fault(certificate)
    if fault is not None:
        denial = Denial.EXPIRED if fault == "expired" else Denial.NOT_YET_VALID
        by = f"by the clock there, {clock.wall():%Y-%m-%d %H:%M} UTC"
        raise AccessDenied(f"the certificate of {principal} is {fault} {by}", denial)
    if identity.revocations.revokes(certificate):
        raise AccessDenied(
            f"the certificate of {principal} was revoked", Denial.REVOKED
        )
    if principal.role not in roles:
        allowed = ", ".join(role.value for role in roles) or "nobody"
        raise AccessDenied(f"{principal} called what is for {allowed}")
    return principal


def of_connection(context: Context) -> tuple[x509.Certificate, Principal | None]:
    """The certificate at the other end of a call, and who it names.

    Raises AccessDenied.
    """
    pem = list(context.auth_context().get("x509_pem_cert", ()))
    if len(pem) != 1:
        raise AccessDenied(
            "call over a connection with mutual TLS", Denial.NO_CERTIFICATE
        )
    return _parse(pem[0])


@lru_cache(maxsize=4096)
def _parse(pem: bytes) -> tuple[x509.Certificate, Principal | None]:
    try:
        certificate = certificates.read_certificates(pem, source="connection")[0]
    except Misconfiguration:
        # TLS let it pass, so an authority of ours signed it.
        raise AccessDenied(
            "the certificate can't be parsed", Denial.MALFORMED_NAME
        ) from None
    try:
        return certificate, certificates.principal_of(certificate)
    except Misconfiguration:
        return certificate, None


TIMEOUT_S = 3.0
_LONGEST_ANSWER = 8192
_EXPIRED, _NOT_YET_VALID = 10, 9
"""OpenSSL's verify codes."""


def why_unreachable(
    address: str, identity: Identity, expect: Role
) -> PeerUnavailable | None:
    """What keeps a connection from coming about, in a sentence that says what to mend.

    ``Misidentified`` where waiting won't help: another party or authority. None where
    nothing is wrong, as seen from here.
    """
    who = f"{expect.title} at {address}"
    proxy = proxy_of(address)
    via = who
    remedy = "check that it runs, and its address"
    hint = _unused_proxy()
    if proxy is not None:
        via = f"the proxy at {proxy.address}"
        remedy = "check proxy in the settings"
        hint = ""
    try:
        to = split_address(address if proxy is None else proxy.address)
        with socket.create_connection(to, TIMEOUT_S) as connection:
            if proxy is not None and (refused := _refused(proxy, connection, address)):
                remedy = "ask who runs it to allow that, and check the address"
                return PeerUnavailable(
                    f"{via} doesn't connect to {address} ({refused}): {remedy}"
                )
            return _handshake(
                connection,
                identity,
                expect,
                who=who,
                address=address,
            )
    except ConnectionRefusedError:
        found = " refuses connections: nothing listens on that port"
    except socket.gaierror as error:
        found = f": there is no such host ({error.strerror})"
    except OSError as error:
        found = f" doesn't answer ({error.strerror or 'no answer in time'})"
        remedy += ", and the network between"
    return PeerUnavailable(f"{via}{found}; {remedy}{hint}")


def _refused(proxy: HttpProxy, connection: socket.socket, address: str) -> str:
    """What the proxy says instead of leading the connection to ``address``; empty where it does."""
    connection.sendall(proxy.request(address))
    answer = b""
    # A byte at a time: what follows is TLS's.
    while not answer.endswith(b"\r\n\r\n") and len(answer) < _LONGEST_ANSWER:
        byte = connection.recv(1)
        if not byte:
            break
        answer += byte
    first = answer.partition(b"\r\n")[0].decode("latin-1")
    if re.match(r"HTTP/1\.[01] 2\d\d", first):
        return ""
    return one_line(first[:100]).strip() or "no answer"


def _unused_proxy() -> str:
    """A word for whoever has a proxy in the environment, which isn't asked."""
    names = ("grpc_proxy", "https_proxy", "http_proxy")
    name = next(filter(os.environ.get, names), None)
    if name is None:
        return ""
    return (
        f"; the proxy that {name} names isn't used: where there is no other way, name"
        ' it in the settings, proxy = "http://host:port"'
    )


def _handshake(
    connection: socket.socket,
    identity: Identity,
    expect: Role,
    *,
    who: str,
    address: str,
) -> PeerUnavailable | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Whose it is, is looked at below: here the question is who signed it.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=identity.ca.decode())
    context.set_alpn_protocols(["h2"])
    expected = Principal.service(expect).dns_name
    try:
        _require_connected(connection)
        with context.wrap_socket(connection, server_hostname=expected) as secured:
            shown = secured.getpeercert(binary_form=True) or b""
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
            return PeerUnavailable(
                f"{who} has a certificate that is expired or not yet valid; its"
                " operator renews it (precad keys renew), and both sides check their"
                " clocks"
            )
        return Misidentified(
            f"{who} has a certificate of another authority than those in"
            f" {identity.path / CA_FILE}: both sides use TLS with the same root"
            f" certificate; take {CA_FILE} from that server's operator, or mend the"
            " address"
        )
    except (ssl.SSLError, ConnectionError):
        return PeerUnavailable(
            f"{who} answers, but not in TLS 1.3; check its address, and that nothing"
            " between takes TLS apart"
        )
    pem = ssl.DER_cert_to_PEM_cert(shown).encode()
    names = certificates.dns_names(certificates.read_certificates(pem, source=who)[0])
    if expected in names:
        return None
    other = {Role.SERVER_A: Role.SERVER_B, Role.SERVER_B: Role.SERVER_A}.get(expect)
    swapped = other is not None and Principal.service(other).dns_name in names
    return Misidentified(
        f"{expect.title} isn't at {address}: whoever answers there has another party's "
        f"certificate ({', '.join(names) or 'without a name'}); mend the address"
        + ("; server_a and server_b seem to be swapped" if swapped else "")
    )


def _require_connected(connection: socket.socket) -> None:
    """Raise ConnectionError where it was reset: ``wrap_socket`` would leave it open then."""
    try:
        connection.getpeername()
    except OSError as error:
        raise ConnectionResetError from error


def check_own_key(context: Context, signer: x509.Certificate) -> None:
    """A signer's key is the connection's: whoever calls now holds the key that signed.

    Raises RejectedSubmission: BAD_SIGNATURE; AccessDenied: the connection has no
    certificate.
    """
    if signer.public_key() != of_connection(context)[0].public_key():
        why = "signed with another key than this connection's certificate has"
        raise RejectedSubmission(Rejection.BAD_SIGNATURE, why)
