"""Who is at the other end: certificates, mutual TLS 1.3, and what each role may call."""

from precad.common.identity.access import require
from precad.common.identity.credentials import Identity
from precad.common.identity.port import add_port
from precad.common.identity.principal import Principal

__all__ = ["Identity", "Principal", "add_port", "require"]
