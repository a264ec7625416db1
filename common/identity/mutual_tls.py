"""Ports and channels with mutual TLS 1.3 alone; who is at the other end, or why nobody.

Both ends state the version of what crosses the wire, which must be equal. A caller
states it with every call, behind gRPC's own words in ``user-agent``. The called party
states it in its first answer, so that a newer caller refuses an older server too.
Versions before 2 stated none.
"""

import os
import re
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio
from cryptography import x509

from precad import TLS13_ALONE
from precad.common import (
    AccessDenied,
    Denial,
    HttpProxy,
    MayPass,
    Misconfiguration,
    Misidentified,
    PeerUnavailable,
    PeerViolation,
    RejectedSubmission,
    Rejection,
    Role,
    address_fault,
    clock,
    one_line,
    proxy_of,
    split_address,
)
from precad.common.identity import (
    CA_FILE,
    Identity,
    Principal,
    check_serving,
    dns_names,
    how_to_renew,
    principal_of,
    read_certificates,
    validity_fault,
)

WIRE_VERSION = 5
"""This precad's version of what crosses the wire."""
FIRST_VERSION = 1
"""The version of a party that states none."""
_GREETS = "precad-wire"
USER_AGENT = ("grpc.secondary_user_agent", f"{_GREETS}/{WIRE_VERSION}")
"""A channel's option: states the version with every call."""
GREETING = ((_GREETS, str(WIRE_VERSION)),)
"""Initial metadata of a party that answers on a stream; elsewhere a field of the first
reply states the version."""
BOTH_ENDS = (
    # Identity alone: some versions of gRPC inflate a message before they look at its
    # size.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # What one upload or model may have on the way. Without it gRPC lets a fast one have
    # megabytes, times the number of clients. A server's slot for a model ends when it
    # has left the server, and not when gRPC has taken it whole for a client that asked
    # for megabytes at once.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 19),
    # A machine that lost power or a cut cable says no goodbye: without pings, a party
    # that only listens (a client for notices) would wait for ever. Servers allow one
    # every 5 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
"""gRPC's options that ports and channels have alike."""
_OPTIONS = (
    *BOTH_ENDS,
    # gRPC backs off for up to two minutes by default: a server that comes back would be
    # missed.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", 1 << 20),
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
"""Options of a channel over which megabytes come in without a pause."""
ChannelOption = tuple[str, str | int]
"""Name and value of one of gRPC's options."""


def greeted_version(metadata: Iterable[tuple[str, str | bytes]] | None) -> int:
    """Return the version that a stream's initial metadata state; 0 where they don't."""
    version = dict(metadata or ()).get(_GREETS, "")
    if isinstance(version, str) and re.fullmatch(r"\d{1,9}", version):
        return int(version)
    return 0


def check_version(who: str, theirs: int) -> None:
    """Check that the party ``who``, which was called, speaks this side's wire version.

    ``theirs`` is the version that it stated, 0 where it stated none.

    Raises PeerViolation: it is another one.
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
    """Return a channel to the server of role ``expect``, which connects lazily.

    Whatever its address, a server whose certificate isn't that role's ends every call
    in ``UNAVAILABLE``. ``bulk``: megabytes come in over the channel without a pause.

    Raises Misconfiguration: as ``dialling``.
    """
    target, credentials, options = dialling(address, identity, expect)
    chosen = dict(options)
    if bulk:
        chosen |= _BULK
    return grpc.secure_channel(target, credentials, list(chosen.items()))


def dialling(
    address: str, identity: Identity, expect: Role
) -> tuple[str, grpc.ChannelCredentials, list[ChannelOption]]:
    """Return target, credentials and options of a channel to the role ``expect``.

    They are the same for gRPC's blocking channels and its asynchronous ones.

    Raises Misconfiguration: no ``host:port``, a role that doesn't serve, or TLS 1.3 not
    in force.
    """
    shown = _shown_at(address, expect, identity)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=shown.ca,
        private_key=shown.key.reveal(),
        certificate_chain=shown.cert,
    )
    options: list[ChannelOption] = [
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
    # gRPC's own proxy mapper, which would ask the environment, works by these two.
    options.append(("grpc.http_connect_server", str(address)))
    if proxy.authorization is not None:
        header = f"Proxy-Authorization:{proxy.authorization.reveal().decode()}"
        options.append(("grpc.http_connect_headers", header))
    return proxy.address, credentials, options


def _shown_at(
    address: str, serving: Role, identity: Identity, least_port: int = 1
) -> Identity:
    """Return what ``identity`` shows now, for a call to a role or for its own port.

    Raises Misconfiguration: no ``host:port``, a role that doesn't serve, or TLS 1.3 not
    in force.
    """
    check_serving(serving)
    fault = address_fault(address, least_port=least_port)
    if fault:
        raise Misconfiguration("address", address, fault)
    _check_tls13()
    return identity.current()


def _check_tls13() -> None:
    """Check that gRPC speaks TLS 1.3 alone.

    Raises Misconfiguration: gRPC was imported before precad and may speak TLS 1.2.
    """
    variable, required = TLS13_ALONE
    value = os.environ.get(variable)
    if value != required:
        raise Misconfiguration(
            variable,
            value,
            "gRPC was imported before precad and would still speak TLS 1.2: import"
            f" precad first, or start the process with {variable}={required}",
        )


def add_port(
    server: grpc.Server | grpc.aio.Server, address: str, identity: Identity
) -> int:
    """Have a server listen at an address, and return the port.

    Callers need a certificate of the identity's authorities. They are shown the
    identity's own one, as its folder has it when they connect. Where the address has
    port 0, the port is a free one.

    Raises Misconfiguration: an identity that may not serve, or TLS 1.3 not in force;
    MayPass: an address that can't be bound.
    """
    # gRPC takes a port beyond the last one for another.
    shown = _shown_at(address, identity.principal.role, identity, least_port=0)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Return what connections from now on are shown; None: the same as before."""
        nonlocal shown
        newest = identity.current()
        if newest is shown:
            return None
        shown = newest
        return _shown_to_callers(newest)

    credentials = grpc.dynamic_ssl_server_credentials(
        _shown_to_callers(shown),
        # gRPC takes None for the same as before, which its types don't say.
        renewed,  # type: ignore[arg-type]
        require_client_authentication=True,
    )
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise MayPass(
            "address", address, "can't be bound: taken, or not of this machine"
        )
    return port


def _shown_to_callers(identity: Identity) -> grpc.ServerCertificateConfiguration:
    """Return a port's certificate and key, and whom it lets in."""
    return grpc.ssl_server_certificate_configuration(
        [(identity.key.reveal(), identity.cert)], root_certificates=identity.ca
    )


Context = grpc.ServicerContext | grpc.aio.ServicerContext[Any, Any]
"""gRPC's context of a call, for any types of request and reply."""


def require(context: Context, identity: Identity, *roles: Role) -> Principal:
    """Return the party at the other end of a call, which must have one of ``roles``.

    It is taken from the certificate, never from a message. The handshake checked the
    certificate when the connection began; connections live for weeks, hence expiry and
    revocation are checked again here.

    Raises AccessDenied: the certificate names no precad party, isn't valid now or was
    revoked, or the party has another role.
    """
    certificate, principal = of_connection(context)
    if principal is None:
        raise AccessDenied(
            "the certificate names no single precad party", Denial.MALFORMED_NAME
        )
    fault = validity_fault(certificate)
    if fault is not None:
        denial = Denial.EXPIRED if fault == "expired" else Denial.NOT_YET_VALID
        clock_there = f"by the clock there, {clock.wall():%Y-%m-%d %H:%M} UTC"
        raise AccessDenied(
            f"the certificate of {principal} is {fault} {clock_there}:"
            f" {how_to_renew(principal)}",
            denial,
        )
    if identity.revocations.revokes(certificate):
        raise AccessDenied(
            f"the certificate of {principal} was revoked", Denial.REVOKED
        )
    if principal.role not in roles:
        allowed = ", ".join(role.value for role in roles) or "nobody"
        raise AccessDenied(f"{principal} called what is for {allowed}")
    identity.met[principal] = certificate.not_valid_after_utc
    return principal


def of_connection(context: Context) -> tuple[x509.Certificate, Principal | None]:
    """Return the certificate at the other end of a call, and the party that it names.

    The party is None where it names no single one.

    Raises AccessDenied: the connection has no certificate, or one that can't be parsed.
    """
    pems = list(context.auth_context().get("x509_pem_cert", ()))
    if len(pems) != 1:
        raise AccessDenied(
            "call over a connection with mutual TLS", Denial.NO_CERTIFICATE
        )
    return _parse(pems[0])


@lru_cache(maxsize=4096)
def _parse(pem: bytes) -> tuple[x509.Certificate, Principal | None]:
    """Return a connection's certificate, parsed; see ``of_connection``."""
    try:
        certificate = read_certificates(pem, "connection")[0]
    except Misconfiguration:
        # TLS let it pass, so an authority of ours signed it.
        raise AccessDenied(
            "the certificate can't be parsed", Denial.MALFORMED_NAME
        ) from None
    try:
        return certificate, principal_of(certificate)
    except Misconfiguration:
        return certificate, None


Why = Callable[[], PeerUnavailable | None]
"""Looks for what keeps a connection from coming about: ``why_unreachable`` of it."""
TIMEOUT_S = 3.0
"""Seconds that ``why_unreachable`` waits for each answer."""
_LONGEST_ANSWER = 8192
"""Most bytes that are read of a proxy's answer."""
_EXPIRED = 10
"""OpenSSL's verify code of an expired certificate."""
_NOT_YET_VALID = 9
"""OpenSSL's verify code of a certificate that isn't valid yet."""


def why_unreachable(
    address: str, identity: Identity, expect: Role
) -> PeerUnavailable | None:
    """Return what keeps a connection from coming about, as an error that isn't raised.

    Its text says what to mend. ``Misidentified`` where waiting won't help, because
    another party or authority answers; None where nothing is wrong, as seen from here.
    """
    who = f"{expect.title} at {address}"
    proxy = proxy_of(address)
    if proxy is None:
        dialled = address
        answerer = who
        remedy = "check that it runs, and its address"
        hint = _unused_proxy()
    else:
        dialled = proxy.address
        answerer = f"the proxy at {proxy.address}"
        remedy = "check proxy in the settings"
        hint = ""
    try:
        with socket.create_connection(split_address(dialled), TIMEOUT_S) as connection:
            refusal = "" if proxy is None else _refused(proxy, connection, address)
            if refusal:
                return PeerUnavailable(
                    f"{answerer} doesn't connect to {address} ({refusal}): ask who runs"
                    " it to allow that, and check the address"
                )
            return _handshake(
                connection,
                identity,
                expect,
                who=who,
                address=address,
            )
    except ConnectionRefusedError:
        fault = " refuses connections: nothing listens on that port"
    except socket.gaierror as error:
        fault = f": there is no such host ({error.strerror})"
    except OSError as error:
        fault = f" doesn't answer ({error.strerror or 'no answer in time'})"
        remedy += ", and the network between"
    return PeerUnavailable(f"{answerer}{fault}; {remedy}{hint}")


def _refused(proxy: HttpProxy, connection: socket.socket, address: str) -> str:
    """Ask a proxy to connect to ``address``; return its refusal, empty if it did."""
    connection.sendall(proxy.request(address))
    answer = b""
    # A byte at a time: what follows the answer is TLS's.
    while not answer.endswith(b"\r\n\r\n") and len(answer) < _LONGEST_ANSWER:
        byte = connection.recv(1)
        if not byte:
            break
        answer += byte
    status_line = answer.partition(b"\r\n")[0].decode("latin-1")
    if re.match(r"HTTP/1\.[01] 2\d\d", status_line):
        return ""
    return one_line(status_line[:100]).strip() or "no answer"


def _unused_proxy() -> str:
    """Return a hint that a proxy of the environment isn't used; empty without one."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        if os.environ.get(name):
            return (
                f"; the proxy that {name} names isn't used: where there is no other"
                ' way, name it in the settings, proxy = "http://host:port"'
            )
    return ""


def _handshake(
    connection: socket.socket,
    identity: Identity,
    expect: Role,
    *,
    who: str,
    address: str,
) -> PeerUnavailable | None:
    """Try a TLS handshake for ``why_unreachable``; return what went wrong, if any.

    ``who`` names the party that was called, as errors do.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate's name is looked at below: here the question is who signed it.
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
                f"{who} has a certificate that is expired or not yet valid: both sides"
                f" check their clocks, or {how_to_renew(Principal.service(expect))}"
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
    certificate = read_certificates(ssl.DER_cert_to_PEM_cert(shown).encode(), who)[0]
    names = dns_names(certificate)
    if expected in names:
        identity.met[Principal.service(expect)] = certificate.not_valid_after_utc
        return None
    text = (
        f"{expect.title} isn't at {address}: whoever answers there has another party's "
        f"certificate ({', '.join(names) or 'without a name'}); mend the address"
    )
    other = {Role.SERVER_A: Role.SERVER_B, Role.SERVER_B: Role.SERVER_A}.get(expect)
    if other is not None and Principal.service(other).dns_name in names:
        text += "; server_a and server_b seem to be swapped"
    return Misidentified(text)


def _require_connected(connection: socket.socket) -> None:
    """Raise ConnectionResetError where a connection was reset.

    ``wrap_socket`` would leave it open then.
    """
    try:
        connection.getpeername()
    except OSError as error:
        raise ConnectionResetError from error


def check_own_key(context: Context, signer: x509.Certificate) -> None:
    """Check that a signer's key is the connection's: the caller holds what signed.

    Raises RejectedSubmission: BAD_SIGNATURE; AccessDenied: the connection has no
    certificate.
    """
    certificate, _ = of_connection(context)
    if signer.public_key() != certificate.public_key():
        raise RejectedSubmission(
            Rejection.BAD_SIGNATURE,
            "signed with another key than this connection's certificate has",
        )
