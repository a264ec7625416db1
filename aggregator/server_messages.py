"""The two servers' messages to each other about a round, validated and frozen.

On the wire each is the message of its name in protos/precad.proto, which explains its
fields. In what a server keeps, which is JSON, bytes are hexadecimal.
"""

from collections.abc import Callable
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from precad.aggregator import PeerLink
from precad.common import (
    ATTEMPTS,
    MAX_CERTIFICATE_BYTES,
    MAX_CERTIFICATES,
    MAX_SIGNATURE_BYTES,
    Digest,
    PeerViolation,
    Role,
    Signature,
    Signer,
    frozen_kw_only_dataclass,
)
from precad.common.identity import CertificateVerifier, SignedKind, server_signed_bytes
from precad.common.wire.messages import decode, encode

Bytes32 = Annotated[bytes, Field(min_length=32, max_length=32, strict=True)]
"""32 bytes, such as a digest's."""
SomeBytes = Annotated[bytes, Field(min_length=1, strict=True)]
ClientName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""As in ``ClientId``."""
Number = Annotated[int, Field(ge=0, le=ATTEMPTS)]
"""The number of an attempt or a version, or a count. Sums of such numbers, and the next
number, fit what databases hold."""
Step = Annotated[int, Field(ge=1, lt=2**31)]
"""The distance from one client's place in a list to the next client's."""
Data = TypeVar("Data")


class Message(
    BaseModel, frozen=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex"
):
    """A message between the servers; unknown fields are refused."""

    def to_bytes(self) -> bytes:
        """Return the message as it is on the wire."""
        return encode(type(self).__name__, self.model_dump())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what ``to_bytes`` wrote.

        Raises PeerViolation: it isn't such a message; the error names the field.
        """
        return cls._read(cls.model_validate, decode(cls.__name__, data))

    def to_json(self) -> bytes:
        """Return the message as a server keeps it: JSON, in UTF-8."""
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read what ``to_json`` wrote.

        What servers signed before wire version 2 is JSON too, and is still valid.

        Raises PeerViolation: it isn't such a message; the error names the field.
        """
        return cls._read(cls.model_validate_json, data)

    @classmethod
    def _read(cls, validate: Callable[[Data], Self], data: Data) -> Self:
        """Return ``validate(data)``, with pydantic's error as a PeerViolation."""
        try:
            return validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "message"
            raise PeerViolation(
                f"unreadable {cls.__name__} from the other server:"
                f" {place}: {first['msg']}"
            ) from None


class SignedMessage(Message):
    """The bytes of a message that a server signed, with signature and certificates."""

    body: Annotated[SomeBytes, Field(max_length=2048)]
    signature: Annotated[SomeBytes, Field(max_length=MAX_SIGNATURE_BYTES)]
    certificates: Annotated[
        tuple[Annotated[SomeBytes, Field(max_length=MAX_CERTIFICATE_BYTES)], ...],
        Field(min_length=1, max_length=MAX_CERTIFICATES),
    ]


Body = TypeVar("Body", bound=Message)


@frozen_kw_only_dataclass
class ServerSignatures:
    """How one server signs messages, and checks what either server has signed."""

    task: Digest
    """The digest of the training's task."""
    role: Role
    """The server that signs."""
    signer: Signer
    verifier: CertificateVerifier

    @property
    def other(self) -> Role:
        """Return the other server's role."""
        return Role.SERVER_B if self.role is Role.SERVER_A else Role.SERVER_A

    def sign(self, kind: SignedKind, body: Message) -> SignedMessage:
        """Sign ``body`` as a message of this kind."""
        data = body.to_bytes()
        signature = self.signer.sign(server_signed_bytes(self.role, kind, data))
        return SignedMessage(
            body=data,
            signature=signature.value,
            certificates=signature.certificates,
        )

    def exchange(
        self,
        link: PeerLink,
        step: str,
        kind: SignedKind,
        body: Body,
    ) -> tuple[SignedMessage, Body]:
        """Send ``body``, signed, and receive the other server's message of its type.

        Return the other server's signed message, and the body in it.

        Raises PeerViolation: it isn't signed by the other server, or isn't such a
        message.
        """
        signed = self.sign(kind, body)
        answer = SignedMessage.from_bytes(link.exchange(step, signed.to_bytes()))
        return answer, self.check(self.other, kind, answer, type(body))

    def check(
        self,
        role: Role,
        kind: SignedKind,
        message: SignedMessage,
        body: type[Body],
        *,
        kept: bool = False,
    ) -> Body:
        """Check that ``role`` signed ``message`` as a ``kind``; return the body in it.

        A server meets what it signed itself only as evidence of what it has done, and
        it may read what it ``kept`` of the other server's. Both stay valid although
        certificates have been renewed since.

        Raises PeerViolation: the signature isn't valid, or the body isn't such a
        message.
        """
        # Its lengths are within those of a signature since it was read.
        signature = Signature(message.signature, message.certificates)
        earlier = kept or role is self.role
        data = message.body
        signed = server_signed_bytes(role, kind, data)
        self.verifier.check_server(signature, role, signed, kept=earlier)
        return read_body(data, body) if earlier else body.from_bytes(data)


def read_body(data: bytes, body: type[Body]) -> Body:
    """Return the message that was signed; before wire version 2 it was JSON.

    Raises PeerViolation: it isn't such a message.
    """
    return body.from_json(data) if data.startswith(b"{") else body.from_bytes(data)


def exchange(link: PeerLink, step: str, message: Body) -> Body:
    """Send a message, and return the other server's message of the same type.

    Raises PeerViolation: it isn't such a message.
    """
    return type(message).from_bytes(link.exchange(step, message.to_bytes()))


class OfVersion(Message):
    """What a server signs about one version of a task's model."""

    task: Bytes32
    version: Number


class CoinCommitment(OfVersion):
    """One server's commitment to its coin bytes for one version; signed."""

    digest: Bytes32


class CoinOpening(OfVersion):
    """What opens a commitment: the coin bytes and the salt; signed."""

    coin: Annotated[Bytes32, Field(repr=False)]
    salt: Annotated[Bytes32, Field(repr=False)]


class CoinState(Message):
    """One server's commitment for a version, and what it holds of the other's."""

    commitment: SignedMessage
    known: Bytes32 | None = None
    """The other server's commitment, as it was kept: another one shows that the other
    server has lost its coin key."""
    held: SignedMessage | None = None
    """The other server's opening, as it was kept: it gives lost coin bytes back."""
    discard: bool = False
    """Whether the sender's operators allow new coins."""


class CoinReveal(Message):
    """One server's signed opening of its coin."""

    opening: SignedMessage


class HeadBody(OfVersion):
    """A ledger's head once an attempt is prepared; signed, and countersigned."""

    attempt: Number
    valid_set: Bytes32
    length: Number
    """How many entries the ledger has."""
    head: Bytes32
    """The newest entry's hash."""
    history: Bytes32
    """The digest of all that both ledgers hold alike, with this attempt's charge."""


class ModelBody(OfVersion):
    """The model that a server computed for a version; signed."""

    digest: Bytes32


class VoidBody(OfVersion):
    """That an attempt isn't prepared here and never will be; signed by both servers."""

    attempt: Number


class PreparedView(Message):
    """An attempt that is prepared and not over, as its server tells the other."""

    version: Number
    """Below the sender's own version where its database was put back and its model
    wasn't."""
    attempt: Number
    valid_set: Bytes32
    bound: bool
    """Whether the sender has countersigned or sent: then it never voids the attempt."""


class Position(Message):
    """The first message on a link: who speaks, and where its training stands."""

    role: Literal["server-a", "server-b"]
    version: Number
    model: Bytes32
    next_attempt: Number
    opened: Number
    """How many attempts of this version had their comparisons opened."""
    prepared: PreparedView | None = None
    frozen: bool = False
    """Whether the sender has a frozen roster."""
    ledger_length: Number
    ledger_head: Bytes32
    nonce: Bytes32
    """Fresh for each link: it salts what the servers compare next."""


class Remembered(Message):
    """Which attempts a server has kept, and of which it has only heard."""

    unused: Number
    """The first attempt above all in the sender's database and journal file."""
    unheard: Number
    """The first attempt above those too that somebody has named to the sender."""


class Fact(Message):
    """What both ledgers hold of an attempt: its charge, or that it was voided."""

    version: Number
    attempt: Number
    voided: bool = False
    clients: tuple[ClientName, ...] = ()
    """The clients that it charges; none where it was voided."""


class Evidence(Message):
    """What a ledger holds of one version, for a server that may have forgotten it."""

    versions: Number
    """How many versions are sent; only the first message says it."""
    facts: tuple[Fact, ...]
    signed: SignedMessage | None = None
    """The receiver's own newest head over such a history."""
    pending: Fact | None = None
    """The attempt that the sender has countersigned or sent, or one of this version
    that its journal file alone remembers."""


class ModelTransfer(Message):
    """The sender's model, for a server that lacks it; its bytes follow."""

    version: Number
    signed: SignedMessage
    """The receiver's own signature over the model's digest."""
    own: SignedMessage
    """The sender's."""


class OpenedCount(Message):
    """How many attempts of the version had comparisons opened, this one included."""

    count: Number


class EnrolmentEntry(Message):
    """One client of the proposed roster."""

    client: ClientName
    records: Annotated[int, Field(ge=1, lt=2**63)]
    record_rate: Annotated[float, Field(gt=0, le=1)]


class RosterBody(Message):
    """The digest of the frozen roster; signed by both servers."""

    task: Bytes32
    digest: Bytes32


class RosterProposal(Message):
    """A's enrolments, which B compares with its own."""

    entries: tuple[EnrolmentEntry, ...]
    signed: SignedMessage | None = None
    """B's signature over just these, where they are frozen: B may have lost them."""
    least: Number = 0
    """With fewer clients that both hold alike, A still waits for more."""


class RosterAnswer(Message):
    """The proposed clients that B enrolled with the same claims; or why B refuses."""

    entries: tuple[EnrolmentEntry, ...] = ()
    signed: SignedMessage | None = None
    """A's signature over just these, where they are frozen: A may have lost them."""
    refusal: str = ""
    """Why nothing can be frozen; empty when B agrees."""
    waits: bool = False
    """Whether one of the two waits for more clients: nothing is frozen, and A proposes
    again."""


class Cohort(Message):
    """A's proposal for an attempt, or that the training is over."""

    attempt: Number
    clients: tuple[Step, ...]
    """The clients that the coin drew and A's ledger allows, by places in the roster."""
    model: Bytes32
    over: bool = False
    """Whether the training is over: nothing is proposed."""
    doubt: str = ""
    """Why A needs its operators' permission: nothing is proposed then."""


class Verdict(Message):
    """B's answer to A's proposal of an attempt."""

    refusal: str = ""
    """Why B refuses; empty when it agrees."""
    clients: tuple[Step, ...] = ()
    """The proposed clients that B's ledger allows too, by places in the roster."""
    operators: bool = False
    """Whether B refuses because its operators haven't given their permission."""
    used: bool = False
    """Whether B refuses because the attempt's number was used: an owner may just have
    told B so."""


class WorkerCount(Message):
    """How many workers a server's settings name."""

    count: Annotated[int, Field(ge=0, le=256)]


class WorkerState(Message):
    """One worker, as its server knows it."""

    address: Annotated[str, Field(max_length=300)] = ""
    """Where B's worker listens: ``:port`` on B's own machine, empty while it isn't
    up."""
    ready: bool
    """Whether it is linked with its pair."""


class Workers(Message):
    """A server's workers, in the order of pairs."""

    workers: Annotated[tuple[WorkerState, ...], Field(max_length=256)]


class SetCheck(Message):
    """The digest of a set that both servers must hold alike, and its size."""

    digest: Bytes32
    count: Number
