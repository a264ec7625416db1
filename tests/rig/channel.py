"""Asyncio channels, for crowds of clients in one process."""

import grpc.aio

from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import dialling


def open_aio_channel(address: str, identity: Identity, expect: Role) -> grpc.aio.Channel:
    """The asyncio twin of ``open_channel``."""
    return grpc.aio.secure_channel(*dialling(address, identity, expect))
