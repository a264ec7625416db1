"""One server's pen, and its eye for what either server has signed."""

from dataclasses import dataclass, field
from typing import TypeVar

from precad.aggregator.rounds.server_messages import Message, SealMessage
from precad.common.errors import PeerViolation, RejectedSubmission
from precad.common.identifiers import Digest, Role
from precad.common.identity.signatures import (
    ServerSigned,
    ServerVerifier,
    SignedKind,
    check_server_signed,
    sign_as_server,
)
from precad.common.share.header import Signature, Signer

Body = TypeVar("Body", bound=Message)


@dataclass(frozen=True, slots=True)
class ServerSignatures:
    """What ``role`` signs for ``task``, and how it checks seals, its own ones too."""

    task: Digest
    role: Role
    signer: Signer = field(repr=False)
    verifier: ServerVerifier = field(repr=False)

    @property
    def other(self) -> Role:
        """The other server."""
        return Role.SERVER_B if self.role is Role.SERVER_A else Role.SERVER_A

    def write(self, kind: SignedKind, body: Message) -> SealMessage:
        """Sign ``body``."""
        made = sign_as_server(self.signer, self.role, kind, body.to_bytes())
        return SealMessage(
            body=made.body.hex(),
            signature=made.signature.value.hex(),
            certificates=tuple(each.hex() for each in made.signature.certificates),
        )

    def read(
        self,
        role: Role,
        kind: SignedKind,
        message: SealMessage,
        body: type[Body],
        *,
        kept: bool = False,
    ) -> Body:
        """What ``role`` signed as a ``kind``. Raises PeerViolation.

        A server meets its own seals only as evidence of what it has done, and may read the other's
        ``kept`` in its database: they stand although certificates have been renewed since.
        """
        try:
            certificates = tuple(bytes.fromhex(each) for each in message.certificates)
            signature = Signature(bytes.fromhex(message.signature), certificates)
        except RejectedSubmission as error:
            raise PeerViolation(f"a seal of {role.value}: {error.detail}") from None
        earlier = kept or role is self.role
        sealed = ServerSigned(bytes.fromhex(message.body), signature)
        data = check_server_signed(self.verifier, role, kind, sealed, kept=earlier)
        return read_body(data, body) if earlier else body.from_bytes(data)


def read_body(data: bytes, body: type[Body]) -> Body:
    """Return what was signed, now or before wire version 2, when it was JSON.

    Raises PeerViolation.
    """
    return body.from_json(data) if data.startswith(b"{") else body.from_bytes(data)
