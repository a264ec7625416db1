"""What the servers say to each other about a round, as validated, frozen messages (JSON)."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

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

    number: Number
    version: Number
    cohort_size: Number
    valid_set: Hex32
    valid: tuple[ClientName, ...]


class Position(Message):
    """First message on a link: who speaks, and where its training stands."""

    role: Literal["server-a", "server-b"]
    version: Number
    model: Hex32
    next_number: Number
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
    """A's roster, which B checks against its own."""

    entries: tuple[EnrolmentEntry, ...]


class Cohort(Message):
    """A's proposal for a round, or its word that training is over."""

    number: Number
    clients: tuple[ClientName, ...]
    model: Hex32
    over: bool = False


class Verdict(Message):
    """B's answer to a proposal: empty when it agrees."""

    refusal: str = ""


class HeldEntry(Message):
    """One client's submission as one server holds it, or why it doesn't."""

    client: ClientName
    own: Hex32 | None = None
    """Commitment to the share held by the sender of this message."""
    other: Hex32 | None = None
    """Commitment to the receiver's share, as the client claims it."""
    signed: Hex32 | None = None
    """SHA-256 of what the client signed, as the sender has it: the nonce is in it too."""
    signature: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,72}$")] | None = None
    """The client's signature as it came to the sender; None where there are no certificates."""
    certificate: Hex32 | None = None
    """SHA-256 of the certificate that the sender checked it with."""
    reason: Rejection | None = None

    @model_validator(mode="after")
    def _held_or_not(self) -> Self:
        held = {self.own is None, self.other is None, self.signed is None}
        if len(held) != 1 or held == {self.reason is None}:
            raise ValueError("an entry has own, other and signed, or else a reason")
        if (self.signature is None) != (self.certificate is None) or (
            self.signature and self.reason
        ):
            raise ValueError("a signature comes with its certificate, and not with a reason")
        return self


class HeldList(Message):
    """All of a round's cohort, as one server holds it."""

    entries: tuple[HeldEntry, ...]

    def by_client(self) -> dict[ClientId, HeldEntry]:
        """Entries by client."""
        return {ClientId(entry.client): entry for entry in self.entries}


class SetCheck(Message):
    """Digest of something both must hold alike, and its count."""

    digest: Hex32
    count: Number
