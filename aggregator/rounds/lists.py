"""Who is held, offered and alike: what grows with the submissions, so in few bytes each.

Clients stand by their places in the attempt's cohort, which both servers hold (``places.py``), and
what each signed as 32 bytes: 33 bytes a submission where it is listed, one where it is named.

    offer   for each client: a step, 32 bytes
    alike   for each client: a step
    held    for each client: a code; 32 bytes where the code is that of what is held
    step    one byte up to 254; else 255 and four bytes, little-endian

There is one encoding of each; whatever isn't it is refused as a whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from precad.aggregator.rounds.places import Places
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import DIGEST_BYTES, ClientId, Digest

Outcome = Digest | Rejection
"""Of one client at one server: SHA-256 of the whole signed bytes (header, signature and
certificates as received) where it holds a submission, else why not."""
_REASONS = tuple(Rejection)
_HELD = len(_REASONS)
_ALL_FLAGS = 0b11
_SHORT = 255
"""The first step that takes more than a byte."""
_LONG_BYTES = 4


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
        steps = cohort.steps(self.signed)
        pairs = zip(steps, sorted(self.signed), strict=True)
        return b"".join(_step(step) + self.signed[client].value for step, client in pairs)

    @classmethod
    def from_bytes(cls, data: bytes, cohort: Places) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        reader, steps, signed = _Reader(data, cls.__name__), list[int](), list[Digest]()
        while reader.left:
            steps.append(reader.step())
            signed.append(reader.digest())
        return cls(dict(zip(cohort.clients(steps), signed, strict=True)))


@dataclass(frozen=True, slots=True)
class Alike:
    """Of all that was offered, what A holds alike and goes on now, in the cohort's order."""

    clients: tuple[ClientId, ...] = ()

    def to_bytes(self, cohort: Places) -> bytes:
        """By places in the cohort."""
        return b"".join(map(_step, cohort.steps(self.clients)))

    @classmethod
    def from_bytes(cls, data: bytes, cohort: Places) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        reader, steps = _Reader(data, cls.__name__), list[int]()
        while reader.left:
            steps.append(reader.step())
        return cls(cohort.clients(steps))


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
        return b"".join(
            bytes([_HELD]) + each.value
            if isinstance(each, Digest)
            else bytes([_REASONS.index(each)])
            for each in self.outcomes
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        reader, outcomes = _Reader(data, cls.__name__), list[Outcome]()
        while reader.left:
            code = reader.byte()
            if code > _HELD:
                raise _unreadable(cls.__name__, "a reason that there isn't")
            outcomes.append(reader.digest() if code == _HELD else _REASONS[code])
        return cls(tuple(outcomes))


def _step(step: int) -> bytes:
    if step < _SHORT:
        return bytes([step])
    return bytes([_SHORT]) + step.to_bytes(_LONG_BYTES, "little")


class _Reader:
    """Takes a message from its front. Raises PeerViolation where it ends too early."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name, self._at = data, name, 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        return self._take(1)[0]

    def step(self) -> int:
        if (short := self.byte()) < _SHORT:
            return short
        step = int.from_bytes(self._take(_LONG_BYTES), "little")
        if step < _SHORT:
            raise _unreadable(self._name, "a small step in a long form")
        return step

    def digest(self) -> Digest:
        return Digest(self._take(DIGEST_BYTES))

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise _unreadable(self._name, "it ends too early")
        self._at += size
        return taken


def _unreadable(name: str, why: str) -> PeerViolation:
    return PeerViolation(f"unreadable {name} from the other server: {why}")
