"""Who is calling, and whether it may: asked by every servicer method before anything else."""

from datetime import datetime
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio
from cryptography import x509

from precad.common.errors import AccessDenied, Denial, Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.certificate import principal_of, read_certificates, validity_fault
from precad.common.identity.credentials import Identity
from precad.common.identity.principal import Principal

Context = grpc.ServicerContext | grpc.aio.ServicerContext[Any, Any]


def require(
    context: Context, identity: Identity, *roles: Role, now: datetime | None = None
) -> Principal:
    """The party at the other end of a call, from its certificate and never from a message.

    The handshake checked the certificate when the connection began; connections live for weeks,
    hence expiry and revocation are checked again here.

    Args:
        context: of a synchronous or an asyncio servicer.
        identity: what the port was opened with.
        roles: the party must have one of them.
        now: instead of the clock's time.

    Raises:
        AccessDenied: no certificate, no or several precad names, expired, not yet valid, revoked,
            or of another role.
    """
    certificate, principal = of_connection(context)
    if principal is None:
        raise AccessDenied("the certificate names no single precad party", Denial.MALFORMED_NAME)
    fault = validity_fault(certificate, now)
    if fault is not None:
        denial = Denial.EXPIRED if fault == "expired" else Denial.NOT_YET_VALID
        raise AccessDenied(f"the certificate of {principal} is {fault}", denial)
    if identity.revocations.revokes(certificate):
        raise AccessDenied(f"the certificate of {principal} was revoked", Denial.REVOKED)
    if principal.role not in roles:
        allowed = ", ".join(role.value for role in roles) or "nobody"
        raise AccessDenied(f"{principal} called what is for {allowed}")
    return principal


def of_connection(context: Context) -> tuple[x509.Certificate, Principal | None]:
    """The certificate at the other end of a call, and who it names.

    Raises:
        AccessDenied: none, or one that can't be parsed.
    """
    pem = list(context.auth_context().get("x509_pem_cert", ()))
    if len(pem) != 1:
        raise AccessDenied("call over a connection with mutual TLS", Denial.NO_CERTIFICATE)
    return _parse(pem[0])


@lru_cache(maxsize=4096)
def _parse(pem: bytes) -> tuple[x509.Certificate, Principal | None]:
    try:
        certificate = read_certificates(pem, source="connection")[0]
    except Misconfiguration:
        # TLS let it pass, so an authority of ours signed it.
        raise AccessDenied("the certificate can't be parsed", Denial.MALFORMED_NAME) from None
    try:
        return certificate, principal_of(certificate)
    except Misconfiguration:
        return certificate, None
