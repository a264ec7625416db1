"""Clients of a round that both servers speak of: who is offered, alike and held.

They stand by their places in a list that both servers hold alike and have agreed on by digest (the
roster, or an attempt's cohort of it), each as the distance from the one before: a name takes some
ten bytes, a distance one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from precad.common.errors import Misconfiguration, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest
from precad.common.wire.protobuf import decode, encode

Outcome = Digest | Rejection
"""Of one client at one server: SHA-256 of the whole signed bytes (header, signature and
certificates as received) where it holds a submission, else why not."""
_REASONS = tuple(Rejection)


class Places:
    """Places of a list's clients, each once, in the order that both servers have them in."""

    def __init__(self, clients: Iterable[ClientId]) -> None:
        self._clients = tuple(clients)
        self._place = {client: number for number, client in enumerate(self._clients)}

    def steps(self, clients: Iterable[ClientId]) -> tuple[int, ...]:
        """Each client's distance from the one before it, in the list's order; the first's from −1.

        Raises KeyError: somebody isn't in the list: a caller's mistake.
        """
        places = sorted(self._place[client] for client in clients)
        return tuple(here - before for before, here in zip([-1, *places], places, strict=False))

    def clients(self, steps: Iterable[int]) -> tuple[ClientId, ...]:
        """Inverse of ``steps``: nobody twice, in the list's order.

        Raises PeerViolation: a step leads nowhere, or out of the list.
        """
        place, size, found = -1, len(self._clients), []
        for step in steps:
            place += step
            if step < 1 or place >= size:
                raise PeerViolation(
                    f"the other server names somebody who isn't among {size} clients"
                )
            found.append(self._clients[place])
        return tuple(found)


@dataclass(frozen=True, slots=True)
class HeldList:
    """An attempt's cohort as one server holds it, without those who have gone on already."""

    outcomes: tuple[Outcome, ...]
    """In the cohort's order."""

    def of(self, clients: Sequence[ClientId]) -> dict[ClientId, Outcome]:
        """Return the outcomes by client.

        Raises PeerViolation: the list is over more clients, or fewer.
        """
        if len(self.outcomes) != len(clients):
            raise PeerViolation(
                f"the other server's list has {len(self.outcomes)} clients, the rest of this "
                f"attempt's cohort has {len(clients)}"
            )
        return dict(zip(clients, self.outcomes, strict=True))

    def to_bytes(self) -> bytes:
        """Return the message: a byte for each client, and 34 more for what is held."""
        values = {
            "reasons": [
                0 if isinstance(each, Digest) else 1 + _REASONS.index(each)
                for each in self.outcomes
            ],
            "signed": [each.value for each in self.outcomes if isinstance(each, Digest)],
        }
        return encode("HeldList", values)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Inverse of ``to_bytes``. Raises PeerViolation."""
        values = decode("HeldList", data)
        reasons, signed = values["reasons"], values["signed"]
        if max(reasons, default=0) > len(_REASONS):
            raise _unreadable("reasons", "there is no such reason")
        if (held := reasons.count(0)) != len(signed):
            raise _unreadable("signed", f"{len(signed)} of {held} that are held")
        try:
            digests = iter([Digest(each) for each in signed])
        except Misconfiguration as error:
            raise _unreadable("signed", str(error)) from None
        return cls(tuple(_REASONS[each - 1] if each else next(digests) for each in reasons))


def _unreadable(field: str, why: str) -> PeerViolation:
    return PeerViolation(f"unreadable HeldList from the other server: {field}: {why}")
