"""Messages of protos/precad.proto as Python values: notices, and what servers sign.

``encode`` and ``decode`` turn any message into a dictionary of its fields' values and
back, strictly. ``read_notice`` returns what a Notice holds; ``Opening`` and
``Statement`` are what a server has signed for an owner (OpeningBody, StatementBody).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from google.protobuf.message import DecodeError, Message

from precad.common import (
    Digest,
    Misconfiguration,
    PeerViolation,
    RejectedSubmission,
    Rejection,
    Role,
    Signature,
    Signer,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.common.identity import CertificateVerifier, SignedKind, server_signed_bytes
from precad.protos import precad_pb2 as pb

FieldValue = Any
"""The value of a message's field, as protobuf's fields hold it.

In dictionaries a message within is a dictionary, and a repeated field is a tuple.
"""


def encode(name: str, values: Mapping[str, FieldValue]) -> bytes:
    """Return the bytes of message ``name`` with the given ``values`` of its fields.

    A message within is a dictionary; None stands for what is absent.

    Raises ValueError or TypeError: a value doesn't fit its field, or there is no such
    field.
    """
    message: Message = getattr(pb, name)(**values)
    return message.SerializeToString(deterministic=True)


def decode(name: str, data: bytes) -> dict[str, FieldValue]:
    """Return the values of message ``name`` by field, read from its bytes ``data``.

    Of optional fields the dictionary holds those that are there.

    Raises PeerViolation: it isn't such a message, or holds anything besides its fields.
    """
    unreadable = f"unreadable {name} from the other server: {len(data)} bytes"
    try:
        message: Message = getattr(pb, name).FromString(data)
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


def values_of(message: Message) -> dict[str, FieldValue]:
    """Return a message's values by field; of optional ones those that are there."""
    values: dict[str, FieldValue] = {}
    for field in message.DESCRIPTOR.fields:
        name = field.name
        value = getattr(message, name)
        inner_type = field.message_type
        if inner_type is not None and inner_type.GetOptions().map_entry:
            values[name] = dict(value)
        elif field.is_repeated and inner_type is not None:
            values[name] = tuple(map(values_of, value))
        elif field.is_repeated:
            values[name] = tuple(value)
        elif not field.has_presence or message.HasField(name):
            values[name] = value if inner_type is None else values_of(value)
    return values


@frozen_kw_only_dataclass
class RoundOpen:
    """An attempt started; A's signed opening of it may have come along."""

    attempt: int
    version: int
    model: Digest
    selected: bool
    collect_seconds: float
    """Seconds until collection closes; unchecked: any number, NaN too."""
    signed: bytes | None = None
    """A ``Signed`` with an OpeningBody, unchecked."""


@frozen_kw_only_dataclass
class RoundOver:
    """An attempt got done, and its version with it.

    A's newest signed statement may have come along.
    """

    attempt: int
    version: int
    counted: bool
    rejection: str = ""
    """Why a drawn owner's submission didn't count: one of ``Rejection``'s values."""
    signed: bytes | None = None
    """A ``Signed`` with a StatementBody, unchecked."""


@frozen_dataclass
class TrainingOver:
    """The training is over: the final model θ_T is there."""

    version: int
    model: Digest


@frozen_dataclass
class TrainingPaused:
    """Server A stopped and may come back."""


Notice = RoundOpen | RoundOver | TrainingOver | TrainingPaused


def read_notice(message: pb.Notice) -> Notice:
    """Return what a notice says.

    Raises PeerViolation: it holds no event, a digest of the wrong length, or a reason
    for a rejection that there isn't.
    """
    signed = message.word.SerializeToString() if message.HasField("word") else None
    try:
        match message.WhichOneof("event"):
            case "open":
                opened = values_of(message.open)
                model = Digest(opened.pop("model_digest"))
                return RoundOpen(model=model, signed=signed, **opened)
            case "over":
                rejection_of(message.over.rejection)
                return RoundOver(signed=signed, **values_of(message.over))
            case "finished":
                done = message.finished
                return TrainingOver(done.version, Digest(done.model_digest))
            case "paused":
                return TrainingPaused()
    except Misconfiguration as error:
        raise PeerViolation(f"a notice of server A's: {error}") from None
    raise PeerViolation("server A sent a notice without an event")


def serves_first(message: pb.Notice) -> Role:
    """Return the server from which to fetch models first, as a notice says.

    Raises PeerViolation: it names another party.
    """
    if message.serves_first not in (Role.SERVER_A.value, Role.SERVER_B.value):
        raise PeerViolation(
            f"a notice says that {message.serves_first!r} serves models"
        )
    return Role(message.serves_first)


def rejection_of(reason: str) -> Rejection | None:
    """Return the rejection that a server names; None for an empty reason.

    Raises PeerViolation: there is no such reason.
    """
    try:
        return Rejection(reason) if reason else None
    except ValueError:
        raise PeerViolation(
            f"a server rejects for no reason that there is: {reason!r}"
        ) from None


Body = pb.OpeningBody | pb.StatementBody
"""What a server signs for an owner."""
_BLOCK = 2048
"""Bytes; a signed message is a multiple long, so that its size tells nothing of counts.
"""
_PADDING_HEADER = 3
"""Bytes of the padding's tag and length, of ``_LEAST_PADDING`` bytes or more."""
_LEAST_PADDING = 128
_KINDS = {pb.OpeningBody: SignedKind.OPENING, pb.StatementBody: SignedKind.STATEMENT}


@frozen_kw_only_dataclass
class _OfServer:
    """What a server has signed for an owner: what both kinds of it say.

    ``OpeningBody`` and ``StatementBody`` in protos/precad.proto describe each field.
    """

    body_type: ClassVar[type[Body]]
    """The message that the signature is over."""
    task_digest: bytes
    client: str
    version: int
    attempt: int
    opened: int
    model_digest: bytes
    signed: bytes
    """The ``Signed`` that says this."""

    @classmethod
    def read(cls, message: bytes) -> Self:
        """Return what the ``Signed`` in ``message`` says, unchecked.

        Raises DecodeError: it is no such message.
        """
        body = cls.body_type.FromString(pb.Signed.FromString(message).body)
        return cls(signed=message, **values_of(body))

    @classmethod
    def checked(
        cls,
        verifier: CertificateVerifier,
        role: Role,
        message: bytes,
        *,
        kept: bool = False,
    ) -> Self:
        """Return what ``role`` has signed, once it is checked.

        ``message`` is a ``Signed``; ``kept`` says that it was signed earlier.

        Raises PeerViolation: the server of ``role`` hasn't signed it, or it is of
        another kind; PeerUnavailable: its certificate has lapsed.
        """
        try:
            signed = pb.Signed.FromString(message)
            signature = Signature(signed.signature, tuple(signed.certificates))
            data = server_signed_bytes(role, _KINDS[cls.body_type], signed.body)
            verifier.check_server(signature, role, data, kept=kept)
            return cls.read(message)
        except RejectedSubmission as error:
            raise PeerViolation(
                f"what {role.value} is to have signed: {error.detail}"
            ) from None
        except DecodeError:
            raise PeerViolation(f"{role.value} signed what is no statement") from None


@frozen_kw_only_dataclass
class Opening(_OfServer):
    """What a server has signed for an owner at an attempt's opening."""

    body_type = pb.OpeningBody
    charges: int
    proof_opening: bytes
    seed_holder: str


@frozen_kw_only_dataclass
class Statement(_OfServer):
    """What a server has signed of an owner's account."""

    body_type = pb.StatementBody
    charged: tuple[int, ...]
    counted: bool
    step_digest: bytes = b""
    answered: Mapping[str, int]
    """Of a question: who is in its counted set, with how many records."""


def sign_body(signer: Signer, role: Role, body: Body) -> pb.Signed:
    """Return ``body``, signed by the server ``role``, padded to a multiple of 2 KiB."""
    data = body.SerializeToString(deterministic=True)
    signature = signer.sign(server_signed_bytes(role, _KINDS[type(body)], data))
    message = pb.Signed(
        body=data,
        signature=signature.value,
        certificates=signature.certificates,
    )
    padding_bytes = -(message.ByteSize() + _PADDING_HEADER) % _BLOCK
    if padding_bytes < _LEAST_PADDING:
        padding_bytes += _BLOCK
    message.padding = bytes(padding_bytes)
    return message
