"""Who is at the other end: certificates, mutual TLS 1.3, and what each role may call."""

from precad.common.identity.access import caller, require
from precad.common.identity.channel import (
    ADDRESS_PATTERN,
    add_port,
    open_aio_channel,
    open_channel,
)
from precad.common.identity.credentials import Identity, load_identity
from precad.common.identity.deployment import create_local_keys
from precad.common.identity.principal import Principal
from precad.common.identity.sign import CertificateSigner, CertificateVerifier, check_own_key

__all__ = [
    "ADDRESS_PATTERN",
    "CertificateSigner",
    "CertificateVerifier",
    "Identity",
    "Principal",
    "add_port",
    "caller",
    "check_own_key",
    "create_local_keys",
    "load_identity",
    "open_aio_channel",
    "open_channel",
    "require",
]
