"""Clients of a round that both servers speak of: who is offered, alike and held.

They stand by their places in a list that both servers hold alike and have agreed on by digest (the
roster, or an attempt's cohort of it), each as the distance from the one before: a name takes some
ten bytes, a distance one.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from precad.aggregator.server_messages import Hex32, Message, Step
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId

Outcome = str | Rejection
"""Of one client at one server: SHA-256, in hex, of the whole signed bytes (header, signature and
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


class Ask(Message):
    """A's turn while collection is open."""

    patient: bool = False
    """Whether B is to wait a moment for its next arrival."""
    over: bool = False
    """Collection is closed at A: its list follows."""


class Offer(Message):
    """What has come to B, whole, since it last offered."""

    clients: tuple[Step, ...]
    """By places in the cohort (``Places``), in its order, which is that of names."""
    signed: tuple[Hex32, ...]
    """Digests of each one's whole signed bytes, in the same order."""


class Alike(Message):
    """Of all that was offered, what A holds alike and goes on now."""

    clients: tuple[Step, ...]
    """By places in the cohort."""


class HeldList(Message):
    """An attempt's cohort as one server holds it, without those who have gone on already."""

    reasons: tuple[Annotated[int, Field(ge=0, le=len(_REASONS))], ...]
    """In the cohort's order: 0 for a submission that is held, else 1 and the reason's number."""
    signed: tuple[Hex32, ...]
    """Digests of those that are held, in the same order."""

    @model_validator(mode="after")
    def _has_a_digest_for_each_that_is_held(self) -> Self:
        if (held := self.reasons.count(0)) != len(self.signed):
            raise ValueError(f"{len(self.signed)} digests of {held} that are held")
        return self

    @classmethod
    def listing(cls, outcomes: Sequence[Outcome]) -> Self:
        """Return the list of these: a byte for each client, and 34 more for what is held."""
        return cls(
            reasons=tuple(
                1 + _REASONS.index(each) if isinstance(each, Rejection) else 0 for each in outcomes
            ),
            signed=tuple(each for each in outcomes if not isinstance(each, Rejection)),
        )

    def of(self, clients: Sequence[ClientId]) -> dict[ClientId, Outcome]:
        """Return the outcomes by client.

        Raises PeerViolation: the list is over more clients, or fewer.
        """
        if len(self.reasons) != len(clients):
            raise PeerViolation(
                f"the other server's list has {len(self.reasons)} clients, the rest of this "
                f"attempt's cohort has {len(clients)}"
            )
        digests = iter(self.signed)
        outcomes = (_REASONS[each - 1] if each else next(digests) for each in self.reasons)
        return dict(zip(clients, outcomes, strict=True))
