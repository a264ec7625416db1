"""What a server signs for an owner, as protobuf messages, and back."""

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

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
from precad.common.wire.protobuf import values_of
from precad.protos import precad_pb2 as pb

Body = pb.OpeningBody | pb.StatementBody
_BLOCK = 2048
_PADDING_HEADER, _LEAST = 3, 128
"""Tag and length of a padding of 128 bytes or more: sizes tell nothing of counts."""
_KINDS = {pb.OpeningBody: SignedKind.OPENING, pb.StatementBody: SignedKind.STATEMENT}


@dataclass(frozen=True, slots=True)
class Opening:
    """What a server has signed for an attempt; see OpeningBody in protos/precad.proto."""

    task_digest: bytes
    client: str
    version: int
    attempt: int
    charges: int
    opened: int
    model_digest: bytes
    proof_opening: bytes
    seed_holder: str


@dataclass(frozen=True, slots=True)
class Statement:
    """What a server has signed of an owner's account; see StatementBody in protos/precad.proto."""

    task_digest: bytes
    client: str
    version: int
    model_digest: bytes
    attempt: int
    charged: tuple[int, ...]
    opened: int
    counted: bool


def sign_body(signer: Signer, role: Role, body: Body) -> pb.Signed:
    """``body``, signed by the server ``role``."""
    data = body.SerializeToString(deterministic=True)
    sealed = sign_as_server(signer, role, _KINDS[type(body)], data)
    signature = sealed.signature
    message = pb.Signed(body=data, signature=signature.value, certificates=signature.certificates)
    padding = -(message.ByteSize() + _PADDING_HEADER) % _BLOCK
    message.padding = bytes(padding if padding >= _LEAST else padding + _BLOCK)
    return message


def read_opening(message: bytes) -> Opening:
    """Return what a Signed says of an attempt, unchecked. Raises DecodeError."""
    return Opening(**values_of(pb.OpeningBody.FromString(pb.Signed.FromString(message).body)))


def read_statement(message: bytes) -> Statement:
    """Return what a Signed says of an account, unchecked. Raises DecodeError."""
    return Statement(**values_of(pb.StatementBody.FromString(pb.Signed.FromString(message).body)))


def check_opening(
    verifier: ServerVerifier, role: Role, message: bytes, *, kept: bool = False
) -> Opening:
    """What ``role`` has signed for an attempt's opening, now or earlier. Raises PeerViolation."""
    return Opening(**_checked(verifier, role, pb.OpeningBody, message, kept=kept))


def check_statement(
    verifier: ServerVerifier, role: Role, message: bytes, *, kept: bool = False
) -> Statement:
    """What ``role`` has signed of an owner's account, now or earlier. Raises PeerViolation."""
    return Statement(**_checked(verifier, role, pb.StatementBody, message, kept=kept))


def _checked(
    verifier: ServerVerifier, role: Role, body: type[Body], message: bytes, *, kept: bool
) -> dict[str, Any]:
    try:
        signed = pb.Signed.FromString(message)
        sealed = ServerSigned(signed.body, Signature(signed.signature, tuple(signed.certificates)))
        checked = check_server_signed(verifier, role, _KINDS[body], sealed, kept=kept)
        return values_of(body.FromString(checked))
    except RejectedSubmission as error:
        raise PeerViolation(f"what {role.value} is to have signed: {error.detail}") from None
    except DecodeError:
        raise PeerViolation(f"{role.value} signed what is no statement") from None
