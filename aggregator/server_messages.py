"""What the servers say to each other about a round, as validated, frozen messages.

On the wire each is the message of its name in protos/precad.proto, which says what its
fields are. Digests and signatures are hex here, and in what a server keeps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from precad.aggregator.peer_link import PeerLink
from precad.common.errors import PeerViolation, RejectedSubmission
from precad.common.identifiers import ATTEMPTS, Digest, Role
from precad.common.identity.signatures import (
    ServerSigned,
    ServerVerifier,
    SignedKind,
    check_server_signed,
    sign_as_server,
)
from precad.common.submission import Signature, Signer
from precad.common.wire.messages import decode, encode


def _hex(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


Hex32 = Annotated[str, BeforeValidator(_hex), Field(pattern=r"^[0-9a-f]{64}$")]
_PAIRS = Field(pattern=r"^([0-9a-f]{2})+$", max_length=16384)
HexText = Annotated[str, BeforeValidator(_hex), _PAIRS]
ClientName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Number = Annotated[int, Field(ge=0, le=ATTEMPTS)]
"""Of an attempt, or how many there are: sums of them, and the next one, fit what
databases hold."""
Step = Annotated[int, Field(ge=1, lt=2**31)]
"""From one client's place in a list to the next one's."""


class Message(BaseModel):
    """A message between the servers; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """Return the message as it leaves."""
        return encode(type(self).__name__, self.model_dump())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation, which names the field."""
        return cls._read(cls.model_validate, decode(cls.__name__, data))

    def to_json(self) -> bytes:
        """Return the message as a server keeps it."""
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Inverse of ``to_json``. Raises PeerViolation.

        What servers signed before wire version 2 is JSON, too, and stands.
        """
        return cls._read(cls.model_validate_json, data)

    @classmethod
    def _read(cls, validate: Callable[[Any], Self], data: object) -> Self:
        try:
            return validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            said = f"{'.'.join(map(str, first['loc'])) or 'message'}: {first['msg']}"
            unreadable = f"unreadable {cls.__name__} from the other server"
            raise PeerViolation(f"{unreadable}: {said}") from None


class SignedMessage(Message):
    """A body that a server signed, a Message's bytes, with its signature and certificates."""

    body: Annotated[HexText, Field(max_length=4096)]
    signature: Annotated[HexText, Field(max_length=144)]
    certificates: Annotated[tuple[HexText, ...], Field(min_length=1, max_length=4)]


Body = TypeVar("Body", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSignatures:
    """What ``role`` signs for ``task``, and how it checks what either server has signed."""

    task: Digest
    role: Role
    signer: Signer = field(repr=False)
    verifier: ServerVerifier = field(repr=False)

    @property
    def other(self) -> Role:
        """Return the other server."""
        return Role.SERVER_B if self.role is Role.SERVER_A else Role.SERVER_A

    def sign(self, kind: SignedKind, body: Message) -> SignedMessage:
        """Sign ``body``."""
        made = sign_as_server(self.signer, self.role, kind, body.to_bytes())
        seal = {
            "signature": made.signature.value,
            "certificates": made.signature.certificates,
        }
        return SignedMessage.model_validate({"body": made.body, **seal})

    def exchange(
        self,
        link: PeerLink,
        step: str,
        kind: SignedKind,
        own: Body,
    ) -> tuple[SignedMessage, Body]:
        """Send ``own``, signed; return what the other server signed alike, and what it says.

        Raises PeerViolation: it isn't signed by the other server, or isn't such a
        message.
        """
        answer = SignedMessage.from_bytes(
            link.exchange(step, self.sign(kind, own).to_bytes())
        )
        return answer, self.check(self.other, kind, answer, type(own))

    def check(
        self,
        role: Role,
        kind: SignedKind,
        message: SignedMessage,
        body: type[Body],
        *,
        kept: bool = False,
    ) -> Body:
        """Return what ``role`` signed as a ``kind``. Raises PeerViolation.

        A server meets what it signed itself only as evidence of what it has done, and
        may read what it ``kept`` of the other's: both stand although certificates have
        been renewed since.
        """
        try:
            certificates = tuple(bytes.fromhex(each) for each in message.certificates)
            signature = Signature(bytes.fromhex(message.signature), certificates)
        except RejectedSubmission as error:
            raise PeerViolation(
                f"a signature of {role.value}: {error.detail}"
            ) from None
        earlier = kept or role is self.role
        signed = ServerSigned(bytes.fromhex(message.body), signature)
        data = check_server_signed(
            self.verifier,
            role,
            kind,
            signed,
            kept=earlier,
        )
        return read_body(data, body) if earlier else body.from_bytes(data)


def read_body(data: bytes, body: type[Body]) -> Body:
    """Return what was signed; before wire version 2 it was JSON.

    Raises PeerViolation.
    """
    return body.from_json(data) if data.startswith(b"{") else body.from_bytes(data)


def exchange(link: PeerLink, step: str, own: Body) -> Body:
    """Send a message, and return the other server's of its kind.

    Raises PeerViolation.
    """
    return type(own).from_bytes(link.exchange(step, own.to_bytes()))


class CoinCommitment(Message):
    """To one server's bytes for one version."""

    task: Hex32
    version: Number
    digest: Hex32


class CoinOpening(Message):
    """The bytes and the salt."""

    task: Hex32
    version: Number
    coin: Annotated[Hex32, Field(repr=False)]
    salt: Annotated[Hex32, Field(repr=False)]


class CoinState(Message):
    """One server's commitment for a version, and what it holds of the other's."""

    commitment: SignedMessage
    known: Hex32 | None = None
    held: SignedMessage | None = None
    discard: bool = False


class CoinReveal(Message):
    """One server's opening, signed."""

    opening: SignedMessage


class HeadBody(Message):
    """A ledger's newest head, when an attempt is prepared; signed, and countersigned."""

    task: Hex32
    version: Number
    attempt: Number
    valid_set: Hex32
    length: Number
    head: Hex32
    history: Hex32


class ModelBody(Message):
    """The model that a server computed for a version; signed."""

    task: Hex32
    version: Number
    digest: Hex32


class VoidBody(Message):
    """The attempt isn't prepared here and never will be; signed by both."""

    task: Hex32
    version: Number
    attempt: Number


class PreparedView(Message):
    """An attempt that is prepared and not over."""

    version: Number
    attempt: Number
    valid_set: Hex32
    bound: bool


class Position(Message):
    """First message on a link: who speaks, and where its training stands."""

    role: Literal["server-a", "server-b"]
    version: Number
    model: Hex32
    next_attempt: Number
    opened: Number
    prepared: PreparedView | None = None
    frozen: bool = False
    ledger_length: Number
    ledger_head: Hex32
    nonce: Hex32


class Remembered(Message):
    """Up to which attempt a ledger goes, and up to which one anybody has named an attempt."""

    unused: Number
    unheard: Number


class Fact(Message):
    """One thing that both ledgers hold alike: an attempt's charge, or that it was voided."""

    version: Number
    attempt: Number
    voided: bool
    clients: tuple[ClientName, ...] = ()


class Evidence(Message):
    """What a ledger holds of one version; the first message also says how many there are."""

    versions: Number
    facts: tuple[Fact, ...]
    signed: SignedMessage | None = None
    pending: Fact | None = None


class ModelTransfer(Message):
    """The sender's model, for a server that lacks it; its bytes follow."""

    version: Number
    signed: SignedMessage
    own: SignedMessage


class OpenedCount(Message):
    """How many attempts of the version have had their comparisons opened, this one included."""

    count: Number


class EnrolmentEntry(Message):
    """One client of the proposed roster."""

    client: ClientName
    records: Annotated[int, Field(ge=1, lt=2**63)]
    record_rate: Annotated[float, Field(gt=0, le=1)]


class RosterBody(Message):
    """The frozen roster; signed by both."""

    task: Hex32
    digest: Hex32


class RosterProposal(Message):
    """A's enrolments, which B holds against its own."""

    entries: tuple[EnrolmentEntry, ...]
    signed: SignedMessage | None = None
    least: Number = 0


class RosterAnswer(Message):
    """Those of them whom B has enrolled with the same claims; or why it can't go on."""

    entries: tuple[EnrolmentEntry, ...] = ()
    signed: SignedMessage | None = None
    refusal: str = ""
    waits: bool = False


class Cohort(Message):
    """A's proposal for an attempt, or its word that training is over."""

    attempt: Number
    clients: tuple[Step, ...]
    model: Hex32
    over: bool = False
    doubt: str = ""


class Verdict(Message):
    """B's answer to a proposal: empty when it agrees."""

    refusal: str = ""
    clients: tuple[Step, ...] = ()
    operators: bool = False
    used: bool = False


class WorkerCount(Message):
    """How many workers a server is set to have."""

    count: Annotated[int, Field(ge=0, le=256)]


class WorkerState(Message):
    """One worker, as its server knows it."""

    address: Annotated[str, Field(max_length=300)] = ""
    ready: bool


class Workers(Message):
    """A server's workers, by pair."""

    workers: Annotated[tuple[WorkerState, ...], Field(max_length=256)]


class SetCheck(Message):
    """Digest of something both must hold alike, and its count."""

    digest: Hex32
    count: Number
