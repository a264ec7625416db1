"""Who a party is, and what its certificate says: whose, when valid, and what for.

A party's DNS name is ``server-a.precad``, ``server-b.precad``, ``dealer.precad``,
``operator.precad`` or ``<name>.client.precad``. Chains of certificates are verified by
the library. Names, purposes and keys are checked here, so that errors say what is wrong
in words that help.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from precad.common import (
    ClientId,
    Misconfiguration,
    Role,
    Secret,
    clock,
    frozen_dataclass,
    read_regular,
)

DOMAIN = "precad"
"""The top-level domain of every party's DNS name."""
SERVING_ROLES = frozenset({Role.SERVER_A, Role.SERVER_B, Role.DEALER})
"""Roles that listen at a port."""
_SINGULAR_ROLES = {
    f"{role.value}.{DOMAIN}": role for role in Role if role is not Role.CLIENT
}
"""Roles of one party alone, by its DNS name."""
_CLIENT_SUFFIX = f".{Role.CLIENT.value}.{DOMAIN}"
_REMEDY = (
    "give exactly one of server-a.precad, server-b.precad, dealer.precad,"
    " operator.precad or <name>.client.precad"
)


@frozen_dataclass
class Principal:
    """A party: its role, and a client's name; any other is named like its role.

    Raises Misconfiguration: it has another name.
    """

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
        """Return the client of that name.

        Raises Misconfiguration: it is no client's name.
        """
        return cls(Role.CLIENT, name)

    @classmethod
    def service(cls, role: Role) -> Self:
        """Return the one party of a role.

        Raises Misconfiguration: the role is the clients', who have names of their own.
        """
        return cls(role, role.value)

    @classmethod
    def named(cls, role: str, name: str = "") -> Self:
        """Return the party of a command's words: role, and for a client its name.

        Raises Misconfiguration: the name isn't one of that role.
        """
        if role == Role.CLIENT.value:
            return cls.client(name)
        return cls(Role(role), name or role)

    @classmethod
    def from_dns_names(cls, dns_names: Iterable[str]) -> Self:
        """Return the one party among a certificate's DNS names.

        Names outside our domain don't count.

        Raises Misconfiguration: not exactly one name is in our domain, or it has
        neither form.
        """
        # Looser than the two forms, so that a near miss is refused and never ignored.
        ours = [
            name
            for name in dns_names
            if name.casefold().rstrip(".").split(".")[-1] == DOMAIN
        ]
        if len(ours) != 1:
            raise Misconfiguration("DNS names in .precad", ours, _REMEDY)
        (dns_name,) = ours
        role = _SINGULAR_ROLES.get(dns_name)
        if role:
            return cls.service(role)
        if dns_name.endswith(_CLIENT_SUFFIX):
            return cls.client(dns_name.removesuffix(_CLIENT_SUFFIX))
        raise Misconfiguration("DNS name", dns_name, _REMEDY)

    @property
    def dns_name(self) -> str:
        """Return the name that the party's certificate carries."""
        is_client = self.role is Role.CLIENT
        return self.name + (_CLIENT_SUFFIX if is_client else f".{DOMAIN}")

    def __str__(self) -> str:
        return self.dns_name


def check_serving(role: Role) -> None:
    """Check that a role listens at a port. Raises Misconfiguration for any other."""
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
"""What the library raises for malformed bytes: some of it at once, some when a part is
asked for."""
# Not the web's rules: a company's own authority needn't write the extensions that
# browsers ask for.
_PARTIES = verification.ExtensionPolicy.permit_all()
_AUTHORITIES = _PARTIES.require_present(
    x509.BasicConstraints, verification.Criticality.AGNOSTIC, None
)
_proven: dict[object, tuple[datetime, datetime]] = {}
"""Chains that were verified (a party's certificate, intermediate ones, and the
authorities that are believed), each with the time from and until which that holds: every
call and every signature brings the same few again. A chain that failed isn't kept, so
that only our authorities can add to it."""
_MOST_PROVEN = 4096
"""Entries of ``_proven`` at which it is emptied."""
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----(.+?)-----END \1-----", re.DOTALL)
_base64_runs = re.compile(rb"[A-Za-z0-9+/=]+").findall
"""Finds runs of Base64's letters. In an encrypted key they include its headers, so that
it can't be parsed any more."""


def read_pem(path: Path, field: str, remedy: str) -> bytes:
    """Return a file's PEM blocks in one plain form; without one, the file's bytes.

    People's editors and mail programs leave marks of an encoding, text before,
    indentation and other ends of lines. Some readers of PEM take these and gRPC's
    doesn't.

    Raises Misconfiguration, which names ``field``, the file and ``remedy``: the file
    can't be read, or it ends within a block.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise Misconfiguration(
            field, path, f"can't be read ({error.strerror}); {remedy}"
        ) from None
    text = data
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16", errors="replace").encode("ascii", errors="replace")
    blocks = [
        b"-----BEGIN %b-----\n%b\n-----END %b-----\n"
        % (kind, b"\n".join(_base64_runs(body)), kind)
        for kind, body in _BLOCK.findall(text)
    ]
    if blocks and len(blocks) != text.count(b"-----BEGIN "):
        # Of a copy that was cut short: what it lacks mustn't go unnoticed.
        raise Misconfiguration(
            field, path, "has a block without an end; copy the whole file again"
        )
    return b"".join(blocks) or data


def read_certificates(pem: bytes, source: object) -> list[x509.Certificate]:
    """Return the certificates of PEM, one or more, in its order.

    Raises Misconfiguration, which names ``source``: there is none, or one is malformed.
    """
    try:
        chain = x509.load_pem_x509_certificates(pem)
        for certificate in chain:
            require_whole(certificate)
    except MALFORMED as error:
        raise Misconfiguration(
            "certificate", source, f"not a PEM certificate ({error})"
        ) from None
    return chain


def certificates_in(path: Path, field: str, remedy: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, one or more.

    Raises Misconfiguration: as ``read_pem`` or ``read_certificates``.
    """
    return read_certificates(read_pem(path, field, remedy), path)


def require_whole(certificate: x509.Certificate) -> None:
    """Parse every part of a certificate that the library leaves for later.

    So damage shows where bytes come in, and not wherever a part is used first.

    Raises one of ``MALFORMED``: a part is damaged.
    """
    _ = (
        certificate.version,
        certificate.issuer,
        certificate.subject,
        certificate.extensions,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        certificate.public_key(),
    )


def principal_of(certificate: x509.Certificate) -> Principal:
    """Return the party that a certificate's subject alternative names state.

    The common name never counts.

    Raises Misconfiguration: no precad party, several, or a malformed name or extension.
    """
    return Principal.from_dns_names(dns_names(certificate))


def dns_names(holder: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """Return the DNS names among the subject alternative names.

    Raises Misconfiguration: the extensions are malformed.
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


def check_algorithm(public_key: object, source: object) -> None:
    """Check that a party's public key is ECDSA on P-256.

    With another key, handshakes would fail without saying why.

    Raises Misconfiguration, which names ``source``: it is another kind of key.
    """
    if not (
        isinstance(public_key, ec.EllipticCurvePublicKey)
        and isinstance(public_key.curve, ec.SECP256R1)
    ):
        raise Misconfiguration(
            "key",
            source,
            "a party's key must be ECDSA on P-256 (gRPC's TLS refuses Ed25519 in"
            " handshakes); make one with precad keys request or precad keys issue",
        )


PASSPHRASE_VARIABLE = "PRECAD_KEY_PASSPHRASE_FILE"  # noqa: S105 -- a name
"""The environment variable that names the file with the passphrase of keys."""
PASSPHRASE_CREDENTIAL = "key-passphrase"  # noqa: S105 -- a name
"""The systemd credential that is the passphrase of keys."""


def key_passphrase(path: Path | None = None) -> Secret | None:
    """Return the passphrase of key files, without its line's end; None without one.

    It is in the file ``path``, as settings name it, else in the one that
    ``PASSPHRASE_VARIABLE`` names, else a systemd credential.

    Raises Misconfiguration, which names the file: it can't be read, or is empty.
    """
    credential = Path(
        os.environ.get("CREDENTIALS_DIRECTORY", ""),
        PASSPHRASE_CREDENTIAL,
    )
    named = path or os.environ.get(PASSPHRASE_VARIABLE)
    if not named:
        if not credential.is_absolute() or not credential.exists():
            return None
        named = credential
    try:
        passphrase = read_regular(Path(named)).rstrip(b"\r\n")
    except OSError as error:
        raise Misconfiguration(
            "key_passphrase_file",
            named,
            f"can't be read ({error.strerror}); let this process's user read it",
        ) from None
    if not passphrase:
        raise Misconfiguration(
            "key_passphrase_file",
            named,
            "is empty; write the passphrase of key.pem there",
        )
    return Secret(passphrase)


def is_encrypted(pem: Secret) -> bool:
    """Return whether a key's PEM opens by a passphrase alone."""
    return b"-BEGIN ENCRYPTED" in pem.reveal()


def private_key(
    pem: Secret, source: object, passphrase_file: Path | None = None
) -> ec.EllipticCurvePrivateKey:
    """Return the private key of PEM; ``key_passphrase`` opens one that is encrypted.

    Raises Misconfiguration, which names ``source``: not a PEM private key, encrypted
    with another passphrase, or not on P-256.
    """
    password = None
    remedy = "not a PEM private key (PKCS #8)"
    if is_encrypted(pem):
        passphrase = key_passphrase(passphrase_file)
        if passphrase is None:
            raise Misconfiguration(
                "key",
                source,
                "is encrypted: name a file with its passphrase as key_passphrase_file in"
                f" the settings or by the variable {PASSPHRASE_VARIABLE}, or give"
                f" systemd's credential {PASSPHRASE_CREDENTIAL}",
            )
        password = passphrase.reveal()
        remedy = "is damaged, or encrypted with another passphrase than the one given"
    try:
        key = serialization.load_pem_private_key(pem.reveal(), password=password)
    except MALFORMED:
        # The parser's own message may quote the input, hence it is dropped.
        raise Misconfiguration("key", source, remedy) from None
    check_algorithm(key.public_key(), source)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def own_key(
    pem: Secret,
    certificate: x509.Certificate,
    *,
    source: object,
    passphrase_file: Path | None = None,
) -> ec.EllipticCurvePrivateKey:
    """Return the private key of PEM, which must be the certificate's.

    Raises Misconfiguration: as ``private_key``, or it is another certificate's key.
    """
    key = private_key(pem, source, passphrase_file)
    if key.public_key() != certificate.public_key():
        raise Misconfiguration(
            "key",
            source,
            "belongs to another certificate than the one beside it; put the pair that"
            " was issued together in the folder, or renew",
        )
    return key


def purposes(principal: Principal) -> list[x509.ObjectIdentifier]:
    """Return a party's extended key usages: all parties dial, and services serve."""
    # So TLS itself keeps a client from posing as a server.
    needed = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if principal.role in SERVING_ROLES:
        needed.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return needed


def check_purpose(
    certificate: x509.Certificate, principal: Principal, source: object
) -> None:
    """Check that a certificate's extended key usage is what its party needs.

    That is clientAuth, and for a server or the dealer serverAuth too.

    Raises Misconfiguration, which names ``source``: one of them is missing.
    """
    needed = purposes(principal)
    usage: set[x509.ObjectIdentifier] = set()
    with contextlib.suppress(x509.ExtensionNotFound):
        usage.update(
            certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        )
    if not usage.issuperset(needed):
        also = " and serverAuth" if len(needed) > 1 else ""
        raise Misconfiguration(
            "certificate", source, f"its extended key usage must hold clientAuth{also}"
        )


def validity_fault(
    certificate: x509.Certificate, now: datetime | None = None
) -> str | None:
    """Return ``"not yet valid"``, ``"expired"``, or None while a certificate is valid.

    ``now`` is the moment that is asked about, None for this machine's time.
    """
    now = now or clock.wall()
    if now < certificate.not_valid_before_utc:
        return "not yet valid"
    if now > certificate.not_valid_after_utc:
        return "expired"
    return None


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether a certificate may issue others."""
    try:
        return certificate.extensions.get_extension_for_class(
            x509.BasicConstraints
        ).value.ca
    except x509.ExtensionNotFound:
        return False


def has_chain(
    certificate: x509.Certificate,
    *,
    intermediates: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    now: datetime | None = None,
) -> bool:
    """Return whether valid authorities lead from a certificate to a believed one.

    ``authorities`` are believed; the chain may lead over ``intermediates``. ``now`` is
    the moment that is asked about, None for this machine's time.
    """
    now = now or clock.wall()
    chain = (certificate, tuple(intermediates), tuple(authorities))
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
        policy.build_client_verifier().verify(certificate, list(intermediates))
    except verification.VerificationError:
        return False
    if len(_proven) >= _MOST_PROVEN:
        _proven.clear()
    # What is valid now stays so until the first of these certificates expires.
    ends = [
        member.not_valid_after_utc
        for member in (certificate, *intermediates, *authorities)
    ]
    _proven[chain] = (now, min(end for end in ends if end >= now))
    return True
