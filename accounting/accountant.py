"""The one contract of all accountants.

``compose`` either understands an event and adds it, or raises before anything has changed.
"""

from collections.abc import Container
from enum import StrEnum
from typing import Protocol

from precad.accounting.events import Adjacency, SampledGaussian, Sampling
from precad.common.errors import Misconfiguration


class AccountantName(StrEnum):
    """Which accountant a number comes from."""

    EXACT = "exact"
    """Privacy-loss distribution, rounded up: the guarantee."""
    RDP = "rdp"
    """Rényi divergences: an upper bound too, never better than exact; the cross-check."""
    GDP_CLT = "gdp-clt"
    """Central limit theorem: asymptotic, usually too small; not a guarantee."""


class BeyondReach(Misconfiguration):
    """A right question that this accountant's arithmetic can't answer; another one may."""


class Accountant(Protocol):
    """Composes events and says what they cost together."""

    @property
    def name(self) -> AccountantName:
        """Which accountant this is."""

    def compose(self, event: SampledGaussian) -> None:
        """Add ``event`` to what has been done.

        Raises:
            Misconfiguration: this accountant doesn't understand the event; nothing changed.
        """

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 for which all that was composed is (ε, ``delta``)-DP.

        Raises:
            Misconfiguration: δ outside (0, 1), or too small for this accountant.
        """

    def delta(self, epsilon: float) -> float:
        """The least δ for which all that was composed is (``epsilon``, δ)-DP, in [0, 1].

        Raises:
            Misconfiguration: ε negative or not finite.
        """


POISSON = (Sampling.POISSON, Adjacency.ADD_REMOVE)
"""What every accountant and certifier has a bound for."""


def require_bound(
    event: SampledGaussian, who: str, known: Container[tuple[Sampling, Adjacency]] = (POISSON,)
) -> None:
    """Refuse an event of which ``who`` knows no bound.

    Raises:
        Misconfiguration: it isn't an event, or not under ``known`` sampling and adjacency.
    """
    if not isinstance(event, SampledGaussian):
        raise Misconfiguration("event", event, f"the {who} accountant takes a SampledGaussian")
    if (event.sampling, event.adjacency) not in known:
        raise Misconfiguration(
            "sampling",
            f"{event.sampling.value} under {event.adjacency.value}",
            f"the {who} accountant knows no bound for it; use Poisson sampling under add-remove",
        )
