"""Who a party is, and what its certificate says: whose it is, from when until when, for what.

Its DNS name is ``server-a.precad``, ``server-b.precad``, ``dealer.precad``,
``operator.precad`` or ``<name>.client.precad``. Chains are the library's to verify;
names, purposes and keys are checked here, so that what is wrong is said in words that
help.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from precad.common import clock
from precad.common.errors import Misconfiguration
from precad.common.files import read_regular
from precad.common.identifiers import ClientId, Role, Secret

DOMAIN = "precad"
SERVING_ROLES = frozenset({Role.SERVER_A, Role.SERVER_B, Role.DEALER})
_SINGULAR_ROLES = {
    f"{role.value}.{DOMAIN}": role for role in Role if role is not Role.CLIENT
}
_CLIENT_SUFFIX = f".{Role.CLIENT.value}.{DOMAIN}"
_REMEDY = (
    "give exactly one of server-a.precad, server-b.precad, dealer.precad,"
    " operator.precad or <name>.client.precad"
)


@dataclass(frozen=True, slots=True)
class Principal:
    """A party. Of every role but client there is one, named like its role."""

    role: Role
    name: str

    def __post_init__(self) -> None:
        if self.role is Role.CLIENT:
            ClientId(self.name)
        elif self.name != self.role.value:
            raise Misconfiguration(
                "name", self.name, f"the {self.role.value} is named like that"
            )

    @classmethod
    def client(cls, name: str) -> Self:
        """The client of that name.

        Raises Misconfiguration where it is no client's name.
        """
        return cls(Role.CLIENT, name)

    @classmethod
    def service(cls, role: Role) -> Self:
        """The one party of a role; Misconfiguration for clients, who have names of their own."""
        return cls(role, role.value)

    @classmethod
    def named(cls, role: str, name: str = "") -> Self:
        """The party of a command's words: only clients need a name.

        Raises Misconfiguration.
        """
        return (
            cls.client(name)
            if role == Role.CLIENT.value
            else cls(Role(role), name or role)
        )

    @classmethod
    def from_dns_names(cls, dns_names: Iterable[str]) -> Self:
        """The one party among a certificate's DNS names; names outside our domain don't count.

        Raises Misconfiguration: not exactly one name in our domain, in one of the two
        forms.
        """
        # Looser than the two forms, so that a near miss is refused and never ignored.
        ours = [
            name
            for name in dns_names
            if name.casefold().rstrip(".").split(".")[-1] == DOMAIN
        ]
        if len(ours) != 1:
            raise Misconfiguration("DNS names in .precad", ours, _REMEDY)
        role = _SINGULAR_ROLES.get(ours[0])
        if role:
            return cls.service(role)
        if ours[0].endswith(_CLIENT_SUFFIX):
            return cls.client(ours[0].removesuffix(_CLIENT_SUFFIX))
        raise Misconfiguration("DNS name", ours[0], _REMEDY)

    @property
    def dns_name(self) -> str:
        """The name that the certificate carries."""
        return self.name + (
            _CLIENT_SUFFIX if self.role is Role.CLIENT else f".{DOMAIN}"
        )

    def __str__(self) -> str:
        return self.dns_name


def check_serving(role: Role) -> None:
    """Only some roles have a port. Raises Misconfiguration for any other."""
    if role not in SERVING_ROLES:
        raise Misconfiguration(
            "role", role.value, "only server-a, server-b and the dealer serve"
        )


MALFORMED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for bytes from outside: some at once, some when a part is
asked for."""
# Not the web's rules: a company's own authority needn't write the extensions that
# browsers ask for.
_PARTIES = verification.ExtensionPolicy.permit_all()
_AUTHORITIES = _PARTIES.require_present(
    x509.BasicConstraints, verification.Criticality.AGNOSTIC, None
)
_Chain = tuple[
    x509.Certificate, tuple[x509.Certificate, ...], tuple[x509.Certificate, ...]
]
_proven: dict[_Chain, tuple[datetime, datetime]] = {}
"""Chains that were verified, from when and until when that holds: every call and every
signature brings the same few again. None that wasn't: only our authorities can add to
it."""
_MOST_PROVEN = 4096
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----(.+?)-----END \1-----", re.DOTALL)
_LETTERS = re.compile(rb"[A-Za-z0-9+/=]+").findall
"""Base64's; an encrypted key's headers make it one that can't be parsed."""


def read_pem(path: Path, field: str, remedy: str) -> bytes:
    """The PEM blocks of a file, as programs write them; where there is none, the file's bytes.

    People's editors and mail leave marks of an encoding, text before, indentation and
    other ends of lines, which some of PEM's readers take and gRPC's doesn't. Raises
    Misconfiguration.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        reason = f"can't be read ({error.strerror}); {remedy}"
        raise Misconfiguration(field, str(path), reason) from None
    text = data
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16", errors="replace").encode("ascii", errors="replace")
    blocks = [
        b"-----BEGIN %b-----\n%b\n-----END %b-----\n"
        % (kind, b"\n".join(_LETTERS(body)), kind)
        for kind, body in _BLOCK.findall(text)
    ]
    return b"".join(blocks) or data


def read_certificates(pem: bytes, *, source: str) -> list[x509.Certificate]:
    """The certificates of a PEM file, one or more, in its order.

    Raises Misconfiguration.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
        for each in found:
            require_whole(each)
    except MALFORMED as error:
        raise Misconfiguration(
            "certificate", source, f"not a PEM certificate ({error})"
        ) from None
    return found


def certificates_in(path: Path, field: str, remedy: str) -> list[x509.Certificate]:
    """Those of a PEM file. Raises Misconfiguration."""
    return read_certificates(read_pem(path, field, remedy), source=str(path))


def require_whole(certificate: x509.Certificate) -> None:
    """Parse every part that the library leaves for later.

    Raises one of ``MALFORMED``.
    """
    # Damage must show where bytes come in, not wherever a part is used first.
    _ = (
        certificate.version,
        certificate.issuer,
        certificate.subject,
        certificate.extensions,
    )
    _ = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    certificate.public_key()


def principal_of(certificate: x509.Certificate) -> Principal:
    """The party that the subject alternative names state; the common name never counts.

    Raises Misconfiguration: no precad party, several, or a malformed name or extension.
    """
    return Principal.from_dns_names(dns_names(certificate))


def dns_names(holder: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """The DNS names among the subject alternative names.

    Raises Misconfiguration: malformed.
    """
    try:
        names = holder.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return []
    except MALFORMED as error:
        raise Misconfiguration(
            "certificate", "extensions", f"malformed ({error})"
        ) from None
    return names.get_values_for_type(x509.DNSName)


def check_algorithm(public_key: object, *, source: str) -> None:
    """Refuse a party's key that isn't ECDSA on P-256: handshakes would fail without saying why."""
    curve = (
        public_key.curve if isinstance(public_key, ec.EllipticCurvePublicKey) else None
    )
    if not isinstance(curve, ec.SECP256R1):
        remedy = (
            "a party's key must be ECDSA on P-256 (gRPC's TLS refuses Ed25519 in"
            " handshakes); make one with precad keys request or precad keys issue"
        )
        raise Misconfiguration("key", source, remedy)


def private_key(pem: Secret, source: str) -> ec.EllipticCurvePrivateKey:
    """A private key. Raises Misconfiguration: not unencrypted PEM, or not on P-256."""
    try:
        key = serialization.load_pem_private_key(pem.reveal(), password=None)
    except MALFORMED:
        # The parser's own message may quote the input, hence it is dropped.
        raise Misconfiguration(
            "key", source, "not an unencrypted PEM private key"
        ) from None
    check_algorithm(key.public_key(), source=source)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def own_key(
    pem: Secret, certificate: x509.Certificate, *, source: str
) -> ec.EllipticCurvePrivateKey:
    """As ``private_key``, of a certificate; Misconfiguration where it is another's."""
    key = private_key(pem, source)
    if key.public_key() != certificate.public_key():
        remedy = (
            "belongs to another certificate than the one beside it; put the pair that"
            " was issued together in the folder, or renew"
        )
        raise Misconfiguration("key", source, remedy)
    return key


def purposes(principal: Principal) -> list[x509.ObjectIdentifier]:
    """The extended key usage that a party needs: all dial, and services serve."""
    # TLS itself then keeps a client from posing as a server.
    needed = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if principal.role in SERVING_ROLES:
        needed.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return needed


def check_purpose(
    certificate: x509.Certificate, principal: Principal, *, source: str
) -> None:
    """Refuse an extended key usage without clientAuth, or serverAuth for a server or the dealer."""
    needed = purposes(principal)
    try:
        usage = set(
            certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        )
    except x509.ExtensionNotFound:
        usage = set()
    if not usage.issuperset(needed):
        also = " and serverAuth" if len(needed) > 1 else ""
        remedy = f"its extended key usage must hold clientAuth{also}"
        raise Misconfiguration("certificate", source, remedy)


def validity_fault(
    certificate: x509.Certificate, now: datetime | None = None
) -> str | None:
    """``"not yet valid"``, ``"expired"``, or None while the certificate is valid."""
    now = now or clock.wall()
    if now < certificate.not_valid_before_utc:
        return "not yet valid"
    if now > certificate.not_valid_after_utc:
        return "expired"
    return None


def is_authority(certificate: x509.Certificate) -> bool:
    """True for a certificate that may issue others."""
    try:
        return certificate.extensions.get_extension_for_class(
            x509.BasicConstraints
        ).value.ca
    except x509.ExtensionNotFound:
        return False


def has_chain(
    own: x509.Certificate,
    *,
    intermediates: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    now: datetime | None = None,
) -> bool:
    """Whether valid authorities, over intermediate ones, lead to one that is believed."""
    now = now or clock.wall()
    chain = own, tuple(intermediates), tuple(authorities)
    since, until = _proven.get(chain, (now, now))
    if since <= now < until:
        return True
    policy = (
        verification.PolicyBuilder()
        .store(verification.Store(list(authorities)))
        .extension_policies(ca_policy=_AUTHORITIES, ee_policy=_PARTIES)
        # The library takes UTC without saying so.
        .time(now.astimezone(UTC).replace(tzinfo=None))
    )
    try:
        policy.build_client_verifier().verify(own, list(intermediates))
    except verification.VerificationError:
        return False
    if len(_proven) >= _MOST_PROVEN:
        _proven.clear()
    # Whatever is valid now stays so until the first of them expires.
    ends = (each.not_valid_after_utc for each in (own, *intermediates, *authorities))
    _proven[chain] = now, min(end for end in ends if end >= now)
    return True
