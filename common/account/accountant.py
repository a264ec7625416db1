"""The one contract of all accountants.

``compose`` either understands an event and adds it, or raises before anything has changed.
"""

from enum import StrEnum
from typing import Protocol

from precad.common.account.events import (
    Adjacency,
    AtomMixture,
    Event,
    SampledGaussian,
    Sampling,
)
from precad.common.errors import Misconfiguration


class AccountantName(StrEnum):
    """Which accountant a number comes from."""

    EXACT = "exact"
    """Privacy-loss distribution, rounded up: the guarantee."""
    RDP = "rdp"
    """Rényi divergences: an upper bound too, never better than exact; the cross-check."""
    GDP_CLT = "gdp-clt"
    """Central limit theorem: asymptotic, usually too small; not a guarantee."""


class Accountant(Protocol):
    """Composes events and says what they cost together."""

    @property
    def name(self) -> AccountantName:
        """Which accountant this is."""

    def compose(self, event: Event) -> None:
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


def step_of(event: Event, accountant: AccountantName) -> SampledGaussian:
    """The step inside ``event``.

    Raises:
        Misconfiguration: it isn't an event.
    """
    match event:
        case AtomMixture():
            return event.step
        case SampledGaussian():
            return event
        case _:
            raise Misconfiguration(
                "event", event, f"the {accountant} accountant takes SampledGaussian or AtomMixture"
            )


def poisson_step(event: Event, accountant: AccountantName) -> SampledGaussian:
    """The step inside ``event``, if it is Poisson-sampled under add/remove.

    Raises:
        Misconfiguration: it isn't an event, or its step is of another kind.
    """
    step = step_of(event, accountant)
    if step.sampling is not Sampling.POISSON:
        raise Misconfiguration(
            "sampling",
            step.sampling.value,
            f"the {accountant} accountant doesn't know it; use Poisson sampling",
        )
    if step.adjacency is not Adjacency.ADD_REMOVE:
        raise Misconfiguration(
            "adjacency",
            step.adjacency.value,
            f"the {accountant} accountant doesn't know it; use add-remove",
        )
    return step
