"""Why a server can't be reached: gRPC says so in words that change, or in none.

One TCP connection and one TLS handshake of our own tell a refused port, a machine that isn't
there, another authority and another party apart.
"""

import socket
import ssl

from precad.common.errors import Misidentified, PeerUnavailable
from precad.common.identifiers import Role
from precad.common.identity.certificate import dns_names, read_certificates
from precad.common.identity.credentials import CA_FILE, Identity
from precad.common.identity.principal import Principal

TIMEOUT_S = 3.0
_EXPIRED, _NOT_YET_VALID = 10, 9
"""OpenSSL's verify codes."""


def why_unreachable(address: str, identity: Identity, expect: Role) -> PeerUnavailable | None:
    """What keeps a connection from coming about, in a sentence that says what to mend.

    Args:
        address: ``host:port``.
        identity: the own one: its authorities are believed.
        expect: whose port this should be.

    Returns:
        ``Misidentified`` where waiting won't help: another party or authority. Another
        ``PeerUnavailable`` where it may. None where nothing is wrong, as seen from here.
    """
    who = f"{_called(expect)} at {address}"
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as connection:
            return _handshake(connection, identity, expect, who, address)
    except ConnectionRefusedError:
        return PeerUnavailable(
            f"{who} refuses connections: nothing listens on that port; check that it runs, and "
            "its address"
        )
    except socket.gaierror as error:
        return PeerUnavailable(f"{who}: there is no such host ({error.strerror}); check the name")
    except OSError as error:
        return PeerUnavailable(
            f"{who} doesn't answer ({error.strerror or 'no answer in time'}); check that its "
            "machine runs, its address, and the network between"
        )


def _handshake(
    connection: socket.socket, identity: Identity, expect: Role, who: str, address: str
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
        with context.wrap_socket(connection, server_hostname=expected) as secured:
            shown = secured.getpeercert(binary_form=True) or b""
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
            return PeerUnavailable(
                f"{who} has a certificate that is expired or not yet valid; its operator renews "
                "it (precad keys renew), and both sides check their clocks"
            )
        return Misidentified(
            f"{who} has a certificate of another authority than those in "
            f"{identity.path / CA_FILE}: both sides use TLS with the same root certificate; take "
            f"{CA_FILE} from that server's operator, or mend the address"
        )
    except (ssl.SSLError, ConnectionError):
        return PeerUnavailable(
            f"{who} answers, but not in TLS 1.3; check its address, and that nothing between "
            "takes TLS apart"
        )
    certificate = read_certificates(ssl.DER_cert_to_PEM_cert(shown).encode(), source=who)[0]
    names = dns_names(certificate)
    if expected in names:
        return None
    other = {Role.SERVER_A: Role.SERVER_B, Role.SERVER_B: Role.SERVER_A}.get(expect)
    swapped = other is not None and Principal.service(other).dns_name in names
    return Misidentified(
        f"{_called(expect)} isn't at {address}: whoever answers there has another party's "
        f"certificate ({', '.join(names) or 'without a name'}); mend the address"
        + ("; server_a and server_b seem to be swapped" if swapped else "")
    )


def _called(role: Role) -> str:
    return role.value if role is Role.DEALER else f"server {role.value[-1].upper()}"
