"""Messages of protos/precad.proto as plain values by field, strictly back; submissions and notices.

What notices and servers' signed words to owners hold: Notice, OpeningBody and
StatementBody there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from precad.common.errors import (
    Misconfiguration,
    PeerViolation,
    RejectedSubmission,
    Rejection,
)
from precad.common.identifiers import Digest, Role
from precad.common.identity.signatures import (
    ServerSigned,
    ServerVerifier,
    SignedKind,
    check_server_signed,
    sign_as_server,
)
from precad.common.submission import (
    Signature,
    Signer,
)
from precad.protos import precad_pb2 as pb


def encode(name: str, values: Mapping[str, Any]) -> bytes:
    """Return the bytes of message ``name``, of its values by field.

    A message within is a mapping; bytes may be hex; None stands for what is absent.

    Raises ValueError: a value doesn't fit its field, or there is no such field.
    """
    message = getattr(pb, name)()
    _fill(message, values)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def decode(name: str, data: bytes) -> dict[str, Any]:
    """Return the values of message ``name`` by field; of optional ones those that are there.

    Raises PeerViolation: it isn't such a message, or holds anything besides its fields.
    """
    unreadable = f"unreadable {name} from the other server: {len(data)} bytes"
    try:
        message = getattr(pb, name).FromString(data)
    except DecodeError:
        raise PeerViolation(f"{unreadable} that aren't such a message") from None
    # Unknown fields, a field twice, a number in a longer form than its own: whatever a
    # writer of this version doesn't write takes other bytes than what was read of it.
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        raise PeerViolation(
            f"{unreadable}, of which its fields take {message.ByteSize()}"
        )
    return values_of(message)


def _fill(message: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise ValueError(f"{message.DESCRIPTOR.name} has no field {name}")
        if value is None:
            continue
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                inner = getattr(message, name)
                inner = inner.add() if field.is_repeated else inner
                inner.SetInParent()
                _fill(inner, each)
        elif field.is_repeated:
            getattr(message, name).extend(_scalar(field, each) for each in value)
        else:
            setattr(message, name, _scalar(field, value))


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str):
        return bytes.fromhex(value)
    return value


def values_of(message: Any) -> dict[str, Any]:
    """Return a message's values by field; of optional ones those that are there."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.is_repeated:
            inner = field.message_type is not None
            found[field.name] = tuple(map(values_of, value)) if inner else tuple(value)
        elif field.has_presence and not message.HasField(field.name):
            continue
        else:
            found[field.name] = (
                value if field.message_type is None else values_of(value)
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOpen:
    """An attempt started; A's opening of it may have come along."""

    attempt: int
    version: int
    model: Digest
    selected: bool
    collect_seconds: float
    """Until collection closes; anything, NaN too."""
    signed: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOver:
    """An attempt got done, and its version with it; A's newest statement may have come along.

    Why a drawn owner's submission didn't count is one of ``Rejection``'s values.
    """

    attempt: int
    version: int
    counted: bool
    rejection: str = ""
    signed: bytes | None = None


@dataclass(frozen=True, slots=True)
class TrainingOver:
    """θ_T is there."""

    version: int
    model: Digest


@dataclass(frozen=True, slots=True)
class TrainingPaused:
    """Server A stopped and may come back."""


Notice = RoundOpen | RoundOver | TrainingOver | TrainingPaused


def read_notice(message: pb.Notice) -> Notice:
    """Return what a notice says. Raises PeerViolation."""
    signed = message.word.SerializeToString() if message.HasField("word") else None
    try:
        match message.WhichOneof("event"):
            case "open":
                event = message.open
                return RoundOpen(
                    attempt=event.attempt,
                    version=event.version,
                    model=Digest(event.model_digest),
                    selected=event.selected,
                    collect_seconds=event.collect_seconds,
                    signed=signed,
                )
            case "over":
                over = message.over
                rejection_of(over.rejection)
                return RoundOver(
                    attempt=over.attempt,
                    version=over.version,
                    counted=over.counted,
                    rejection=over.rejection,
                    signed=signed,
                )
            case "finished":
                done = message.finished
                return TrainingOver(done.version, Digest(done.model_digest))
            case "paused":
                return TrainingPaused()
    except Misconfiguration as error:
        raise PeerViolation(f"a notice of server A's: {error}") from None
    raise PeerViolation("server A sent a notice without an event")


def serves_first(message: pb.Notice) -> Role:
    """Return from which server to fetch models first.

    Raises PeerViolation: of another party.
    """
    if message.serves_first not in (Role.SERVER_A.value, Role.SERVER_B.value):
        raise PeerViolation(
            f"a notice says that {message.serves_first!r} serves models"
        )
    return Role(message.serves_first)


def rejection_of(reason: str) -> Rejection | None:
    """Return the rejection that a server names; None for an empty reason.

    Raises PeerViolation.
    """
    try:
        return Rejection(reason) if reason else None
    except ValueError:
        raise PeerViolation(
            f"a server rejects for no reason that there is: {reason!r}"
        ) from None


Body = pb.OpeningBody | pb.StatementBody
_BLOCK = 2048
_PADDING_HEADER, _LEAST = 3, 128
"""Tag and length of a padding of 128 bytes or more: sizes tell nothing of counts."""
_KINDS = {pb.OpeningBody: SignedKind.OPENING, pb.StatementBody: SignedKind.STATEMENT}


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    message = pb.Signed(
        body=data,
        signature=signature.value,
        certificates=signature.certificates,
    )
    padding = -(message.ByteSize() + _PADDING_HEADER) % _BLOCK
    message.padding = bytes(padding if padding >= _LEAST else padding + _BLOCK)
    return message


def read_opening(message: bytes) -> Opening:
    """Return what a Signed says of an attempt, unchecked. Raises DecodeError."""
    return Opening(
        **values_of(pb.OpeningBody.FromString(pb.Signed.FromString(message).body))
    )


def read_statement(message: bytes) -> Statement:
    """Return what a Signed says of an account, unchecked. Raises DecodeError."""
    return Statement(
        **values_of(pb.StatementBody.FromString(pb.Signed.FromString(message).body))
    )


def check_opening(
    verifier: ServerVerifier,
    role: Role,
    message: bytes,
    *,
    kept: bool = False,
) -> Opening:
    """What ``role`` has signed for an attempt's opening, now or earlier.

    Raises PeerViolation.
    """
    return Opening(
        **_checked(
            verifier,
            role,
            pb.OpeningBody,
            message,
            kept=kept,
        )
    )


def check_statement(
    verifier: ServerVerifier,
    role: Role,
    message: bytes,
    *,
    kept: bool = False,
) -> Statement:
    """What ``role`` has signed of an owner's account, now or earlier.

    Raises PeerViolation.
    """
    return Statement(
        **_checked(
            verifier,
            role,
            pb.StatementBody,
            message,
            kept=kept,
        )
    )


def _checked(
    verifier: ServerVerifier,
    role: Role,
    body: type[Body],
    message: bytes,
    *,
    kept: bool,
) -> dict[str, Any]:
    try:
        signed = pb.Signed.FromString(message)
        sealed = ServerSigned(
            signed.body, Signature(signed.signature, tuple(signed.certificates))
        )
        checked = check_server_signed(
            verifier,
            role,
            _KINDS[body],
            sealed,
            kept=kept,
        )
        return values_of(body.FromString(checked))
    except RejectedSubmission as error:
        raise PeerViolation(
            f"what {role.value} is to have signed: {error.detail}"
        ) from None
    except DecodeError:
        raise PeerViolation(f"{role.value} signed what is no statement") from None
