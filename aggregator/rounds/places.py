"""Clients by their places in a list that both servers hold alike, as small numbers.

A name takes some ten bytes in each of a round's lists; the distance to the one before takes one.
Which list it is, both servers have agreed on by digest: the roster, or an attempt's cohort of it.
"""

from collections.abc import Iterable, Iterator

from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId


class Places:
    """Of a list's clients.

    Args:
        clients: each once, in the order that both servers have them in.
    """

    def __init__(self, clients: Iterable[ClientId]) -> None:
        self._clients = tuple(clients)
        self._place = {client: number for number, client in enumerate(self._clients)}

    def steps(self, clients: Iterable[ClientId]) -> tuple[int, ...]:
        """Each client's distance from the one before it, in the list's order; the first's from −1.

        Raises:
            KeyError: somebody isn't in the list: a caller's mistake.
        """
        places = sorted(self._place[client] for client in clients)
        return tuple(here - before for before, here in zip([-1, *places], places, strict=False))

    def clients(self, steps: Iterable[int]) -> tuple[ClientId, ...]:
        """Inverse of ``steps``: nobody twice, in the list's order.

        Raises:
            PeerViolation: a step leads nowhere, or out of the list.
        """
        return tuple(self._walk(steps))

    def _walk(self, steps: Iterable[int]) -> Iterator[ClientId]:
        place, size = -1, len(self._clients)
        for step in steps:
            place += step
            if step < 1 or place >= size:
                raise PeerViolation(
                    f"the other server names somebody who isn't among {size} clients"
                )
            yield self._clients[place]
