"""Server A's notices to an owner as plain values; what they hold: protos/precad.proto, Notice."""

from dataclasses import dataclass

from precad.common.errors import Misconfiguration, PeerViolation, Rejection
from precad.common.identifiers import Digest, Role
from precad.protos import precad_pb2 as pb


@dataclass(frozen=True, slots=True)
class RoundOpen:
    """An attempt started."""

    attempt: int
    version: int
    """t of θ_t."""
    model: Digest
    selected: bool
    """Whether the coin drew this owner."""
    collect_seconds: float
    """Until collection closes; anything, NaN too."""
    signed: bytes | None = None
    """A's opening of it, where it came along."""


@dataclass(frozen=True, slots=True)
class RoundOver:
    """An attempt got done, and its version with it."""

    attempt: int
    version: int
    counted: bool
    rejection: str = ""
    """Why it didn't, of an owner that was drawn: one of ``Rejection``'s values."""
    signed: bytes | None = None
    """A's newest statement, where it came along."""


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
                    event.attempt,
                    event.version,
                    Digest(event.model_digest),
                    event.selected,
                    event.collect_seconds,
                    signed,
                )
            case "over":
                over = message.over
                rejection_of(over.rejection)
                return RoundOver(over.attempt, over.version, over.counted, over.rejection, signed)
            case "finished":
                done = message.finished
                return TrainingOver(done.version, Digest(done.model_digest))
            case "paused":
                return TrainingPaused()
    except Misconfiguration as error:
        raise PeerViolation(f"a notice of server A's: {error}") from None
    raise PeerViolation("server A sent a notice without an event")


def serves_first(message: pb.Notice) -> Role:
    """Return which server the notice tells the owner to fetch models from first.

    Raises PeerViolation: it names another party.
    """
    if message.serves_first not in (Role.SERVER_A.value, Role.SERVER_B.value):
        raise PeerViolation(f"a notice says that {message.serves_first!r} serves models")
    return Role(message.serves_first)


def rejection_of(reason: str) -> Rejection | None:
    """Return the rejection that a server names; None for an empty reason.

    Raises PeerViolation: there is none of this name.
    """
    try:
        return Rejection(reason) if reason else None
    except ValueError:
        raise PeerViolation(f"a server rejects for no reason that there is: {reason!r}") from None
