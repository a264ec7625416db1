"""What the servers say to each other about a round, as validated, frozen messages (JSON)."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId

Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ClientName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]

Number = Annotated[int, Field(ge=0, lt=2**63)]
"""What databases and digests hold."""


class Message(BaseModel):
    """A message in canonical JSON; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """JSON bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise PeerViolation(
                f"unreadable {cls.__name__} from the other server: {first['loc']}: {first['msg']}"
            ) from None


class ReleaseView(Message):
    """A released round, as one server tells the other after a break."""

    attempt: Number
    version: Number
    cohort_size: Number
    valid_set: Hex32
    valid: tuple[ClientName, ...]


class Position(Message):
    """First message on a link: who speaks, and where its training stands."""

    role: Literal["server-a", "server-b"]
    version: Number
    model: Hex32
    next_attempt: Number
    pending: ReleaseView | None = None
    """Released from the current model, without the other server's noisy share yet."""
    last: ReleaseView | None = None
    """The round that led to the current model."""


class EnrolmentEntry(Message):
    """One client of the proposed roster."""

    client: ClientName
    records: Annotated[int, Field(ge=1, lt=2**63)]
    record_rate: Annotated[float, Field(gt=0, le=1)]


class RosterProposal(Message):
    """A's enrolments, which B holds against its own."""

    entries: tuple[EnrolmentEntry, ...]


class RosterAnswer(Message):
    """Whom of them B has enrolled with the same claims; or why it can't go on."""

    clients: tuple[ClientName, ...] = ()
    refusal: str = ""


class Cohort(Message):
    """A's proposal for a round, or its word that training is over."""

    attempt: Number
    clients: tuple[ClientName, ...]
    model: Hex32
    over: bool = False


class Verdict(Message):
    """B's answer to a proposal: empty when it agrees."""

    refusal: str = ""


class HeldEntry(Message):
    """One client's submission as the sender of this message holds it."""

    client: ClientName
    own: Hex32
    """Commitment to the share held by the sender."""
    other: Hex32
    """Commitment to the receiver's share, as the client claims it."""
    signed: Hex32
    """SHA-256 of what the client signed, as the sender has it: the nonce is in it too."""
    signature: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,72}$")]
    """The client's signature as it came to the sender."""
    certificate: Hex32
    """SHA-256 of the certificate that the sender checked it with."""


class MissingEntry(Message):
    """Why the sender holds nothing of one client."""

    client: ClientName
    reason: Rejection


class HeldList(Message):
    """All of a round's cohort, as one server holds it."""

    entries: tuple[HeldEntry | MissingEntry, ...]

    def by_client(self) -> dict[ClientId, HeldEntry | MissingEntry]:
        """Entries by client."""
        return {ClientId(entry.client): entry for entry in self.entries}


class SetCheck(Message):
    """Digest of something both must hold alike, and its count."""

    digest: Hex32
    count: Number
