"""What a server signs for an owner, as protobuf messages, and back."""

from precad.common.errors import PeerViolation, RejectedSubmission
from precad.common.identifiers import Role
from precad.common.identity.signatures import (
    ServerSigned,
    ServerVerifier,
    SignedKind,
    check_server_signed,
    sign_as_server,
)
from precad.common.share.header import Signature, Signer
from precad.protos import precad_pb2 as pb

Body = pb.OpeningBody | pb.StatementBody
_BLOCK = 2048
_PADDING_HEADER, _LEAST = 3, 128
"""Tag and length of a padding of 128 bytes or more: sizes tell nothing of counts."""
_KINDS = {pb.OpeningBody: SignedKind.OPENING, pb.StatementBody: SignedKind.STATEMENT}


def sign_body(signer: Signer, role: Role, body: Body) -> pb.Signed:
    """``body``, signed by the server ``role``."""
    sealed = sign_as_server(
        signer, role, _KINDS[type(body)], body.SerializeToString(deterministic=True)
    )
    return signed_to_wire(sealed)


def signed_to_wire(sealed: ServerSigned) -> pb.Signed:
    """A seal as a message."""
    signature = sealed.signature
    message = pb.Signed(
        body=sealed.body, signature=signature.value, certificates=signature.certificates
    )
    padding = -(message.ByteSize() + _PADDING_HEADER) % _BLOCK
    message.padding = bytes(padding if padding >= _LEAST else padding + _BLOCK)
    return message


def check_opening(
    verifier: ServerVerifier, role: Role, message: pb.Signed, *, kept: bool = False
) -> pb.OpeningBody:
    """What ``role`` has signed for an attempt's opening, now or earlier. Raises PeerViolation."""
    return pb.OpeningBody.FromString(
        _checked(verifier, role, SignedKind.OPENING, message, kept=kept)
    )


def check_statement(
    verifier: ServerVerifier, role: Role, message: pb.Signed, *, kept: bool = False
) -> pb.StatementBody:
    """What ``role`` has signed of an owner's account, now or earlier. Raises PeerViolation."""
    return pb.StatementBody.FromString(
        _checked(verifier, role, SignedKind.STATEMENT, message, kept=kept)
    )


def _checked(
    verifier: ServerVerifier, role: Role, kind: SignedKind, message: pb.Signed, *, kept: bool
) -> bytes:
    try:
        sealed = ServerSigned(
            message.body, Signature(message.signature, tuple(message.certificates))
        )
    except RejectedSubmission as error:
        raise PeerViolation(f"what {role.value} is to have signed: {error.detail}") from None
    return check_server_signed(verifier, role, kind, sealed, kept=kept)
