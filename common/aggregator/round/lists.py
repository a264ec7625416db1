"""Who is held, offered and alike: what grows with the submissions, so in few bytes each.

Clients stand by their places in the attempt's cohort, which both servers hold (``places.py``), and
what each signed as 32 bytes: 33 to 35 bytes a submission where it is listed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from google.protobuf.message import DecodeError, Message

from precad.common.aggregator.round.places import Places
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import DIGEST_BYTES, ClientId, Digest
from precad.protos import precad_pb2 as pb

Outcome = Digest | Rejection
"""Of one client at one server: SHA-256 of the whole signed bytes (header, signature and
certificates as received) where it holds a submission, else why not."""
_REASONS = tuple(Rejection)
_HELD = len(_REASONS)
_ALL_FLAGS = 0b11
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True)
class Ask:
    """A's turn while collection is open."""

    patient: bool = False
    """Whether B is to wait a moment for its next arrival."""
    over: bool = False
    """Collection is closed at A: its list follows."""

    def to_bytes(self) -> bytes:
        """One byte: there are two turns a submission where clients come one by one."""
        return bytes([self.patient | self.over << 1])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        if len(data) != 1 or data[0] > _ALL_FLAGS:
            raise _unreadable(cls.__name__, "it must be one byte of two flags")
        return cls(bool(data[0] & 1), bool(data[0] & 2))


@dataclass(frozen=True, slots=True)
class Offer:
    """What has come to B, whole, since it last offered."""

    signed: Mapping[ClientId, Digest]

    def to_bytes(self, cohort: Places) -> bytes:
        """By places in the cohort, in its order, which is that of names."""
        signed = b"".join(self.signed[client].value for client in sorted(self.signed))
        return pb.OfferTurn(steps=cohort.steps(self.signed), signed=signed).SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes, cohort: Places) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        turn = _read(pb.OfferTurn, data, cls.__name__)
        clients = cohort.clients(turn.steps)
        return cls(
            dict(zip(clients, _digests(turn.signed, len(clients), cls.__name__), strict=True))
        )


@dataclass(frozen=True, slots=True)
class Alike:
    """Of all that was offered, what A holds alike and goes on now, in the cohort's order."""

    clients: tuple[ClientId, ...] = ()

    def to_bytes(self, cohort: Places) -> bytes:
        """By places in the cohort."""
        return pb.AlikeTurn(steps=cohort.steps(self.clients)).SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes, cohort: Places) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        turn = _read(pb.AlikeTurn, data, cls.__name__)
        return cls(cohort.clients(turn.steps))


@dataclass(frozen=True, slots=True)
class HeldList:
    """An attempt's cohort as one server holds it, without those who have gone on already."""

    outcomes: tuple[Outcome, ...]
    """In the cohort's order."""

    def of(self, clients: Sequence[ClientId]) -> dict[ClientId, Outcome]:
        """By client.

        Args:
            clients: the cohort without those who have gone on, in its order.

        Raises:
            PeerViolation: the list is over more clients, or fewer.
        """
        if len(self.outcomes) != len(clients):
            raise PeerViolation(
                f"the other server's list has {len(self.outcomes)} clients, the rest of this "
                f"attempt's cohort has {len(clients)}"
            )
        return dict(zip(clients, self.outcomes, strict=True))

    def to_bytes(self) -> bytes:
        """A byte for each client, and 32 more for what is held."""
        digests = [each.value for each in self.outcomes if isinstance(each, Digest)]
        codes = (
            _HELD if isinstance(each, Digest) else _REASONS.index(each) for each in self.outcomes
        )
        return pb.HeldOutcomes(codes=bytes(codes), signed=b"".join(digests)).SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        message = _read(pb.HeldOutcomes, data, cls.__name__)
        if any(code > _HELD for code in message.codes):
            raise _unreadable(cls.__name__, "a reason that there isn't")
        held = message.codes.count(_HELD)
        digests = iter(_digests(message.signed, held, cls.__name__))
        return cls(
            tuple(next(digests) if code == _HELD else _REASONS[code] for code in message.codes)
        )


def _read(kind: type[_M], data: bytes, name: str) -> _M:
    """One encoding of each message: whatever isn't it is refused, unknown fields too."""
    try:
        message = kind.FromString(data)
    except DecodeError:
        raise _unreadable(name, "it isn't one") from None
    known = kind.FromString(data)
    known.DiscardUnknownFields()
    if known.SerializeToString() != data:
        raise _unreadable(name, "another encoding, or fields that it doesn't have")
    return message


def _digests(data: bytes, count: int, name: str) -> list[Digest]:
    if len(data) != count * DIGEST_BYTES:
        raise _unreadable(name, f"{len(data)} bytes of digests of {count} submissions")
    return [Digest(data[at : at + DIGEST_BYTES]) for at in range(0, len(data), DIGEST_BYTES)]


def _unreadable(name: str, why: str) -> PeerViolation:
    return PeerViolation(f"unreadable {name} from the other server: {why}")
