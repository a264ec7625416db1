"""Who is at the other end: certificates, mutual TLS 1.3, and what each role may call."""

from precad.common.identity.access import caller, require
from precad.common.identity.channel import (
    ADDRESS_PATTERN,
    add_port,
    open_aio_channel,
    open_channel,
)
from precad.common.identity.credentials import Identity, load_identity
from precad.common.identity.principal import Principal

__all__ = [
    "ADDRESS_PATTERN",
    "Identity",
    "Principal",
    "add_port",
    "caller",
    "load_identity",
    "open_aio_channel",
    "open_channel",
    "require",
]
