"""Which party CrypTen's code is playing right now.

CrypTen keeps one communicator and one provider a process. It looks both up at every use, so they
are replaced here, once, by look-ups of the current context's party: one process serves one server,
and two threads of one process can play both. Outside ``acting_as`` there is no party, and CrypTen
fails instead of falling back on Gloo or on its own providers. Its generators are never seeded, so
that whatever would draw from MT19937 fails too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from precad.aggregator.mpc.communicator import LinkCommunicator
from precad.aggregator.mpc.crypten_import import crypten, crypten_communicator
from precad.aggregator.mpc.provider import DealtProvider
from precad.common.link import PeerLink


@dataclass(frozen=True, slots=True)
class _Party:
    communicator: LinkCommunicator
    provider: DealtProvider


_party: ContextVar[_Party | None] = ContextVar("precad_mpc_party", default=None)


@contextmanager
def acting_as(
    rank: int, link: PeerLink, provider: DealtProvider, *, step: str = "mpc"
) -> Iterator[None]:
    """Within the block, CrypTen's code in this thread plays party ``rank``.

    Args:
        rank: 0 for server A, 1 for server B.
        link: to the other server.
        provider: this party's dealt randomness.
        step: prefix of every message's step; both parties give the same.
    """
    token = _party.set(_Party(LinkCommunicator(rank, link, step), provider))
    try:
        yield
    finally:
        _party.reset(token)


def _current() -> _Party:
    party = _party.get()
    if party is None:
        raise RuntimeError("CrypTen is only used inside precad.aggregator.mpc.party.acting_as")
    return party


def current_rank() -> int:
    """The acting party's rank. Raises RuntimeError outside ``acting_as``."""
    return _current().communicator.get_rank()


crypten_communicator.get = lambda: _current().communicator
crypten_communicator.is_initialized = lambda: _party.get() is not None
crypten.mpc.get_default_provider = lambda: _current().provider
