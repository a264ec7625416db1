"""Mechanisms described as frozen events, and the interface of every accountant.

An event says what was done to the data, without any computation. Sampling scheme,
adjacency, sensitivity and denominator have no defaults: every wrong ε in the papers
comes from leaving one of them unsaid (docs/privacy-accounting.md). An accountant either
has a bound for an event and adds it, or raises before anything has changed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import replace
from enum import Enum, StrEnum
from typing import ClassVar

from precad.common import Misconfiguration, checks, frozen_kw_only_dataclass


class Sampling(Enum):
    """How the records (or clients) of one step are drawn."""

    POISSON = "poisson"
    """Each one independently with probability ``rate``; what this system runs."""
    FIXED_SIZE = "fixed-size"
    """A uniformly random subset of a fixed size m = rate·n, without replacement."""


class Adjacency(Enum):
    """Which two data sets are called neighbours."""

    ADD_REMOVE = "add-remove"
    """One record's gradient (or one client's update) is zero in one of the two data
    sets: *zero-out*. ε and δ are the same as for adding and removing a record, while
    the number of enrolled records stays public."""
    REPLACE_ONE = "replace-one"
    """One record (or client) is exchanged for another; their number stays the same."""


class Denominator(Enum):
    """What the noisy sum is divided by."""

    FIXED = "fixed"
    """A public number, the same for neighbouring data sets."""
    DATA_DEPENDENT = "data-dependent"
    """A sum over who took part, as in PRECAD eq. (2): it changes with the data."""


MOST_ROUNDS = 10**9
"""The largest number of rounds that is accepted; no training has more."""
LEAST_NOISE = 1e-6
"""The smallest noise multiplier that is accepted. No training is meant to have less,
and its square would leave what floating point can hold."""
MOST_NOISE = 1e9
"""The largest noise multiplier that is accepted, for the same two reasons."""

_BOTH_SIDES = 2.0
"""Clipping bounds that the sum moves where a term leaves it and another one enters."""


def require_rounds(field: str, count: int) -> None:
    """Check that a number of rounds lies in 0 to ``MOST_ROUNDS``.

    Raises Misconfiguration naming ``field``: it doesn't.
    """
    if checks.count(field, count) > MOST_ROUNDS:
        raise Misconfiguration(field, count, f"give at most {MOST_ROUNDS:,}")


@frozen_kw_only_dataclass
class SampledGaussian:
    """``count`` rounds of sampling, clipping, summing and adding Gaussian noise.

    A round may run its step with a probability below 1 (``participation``); otherwise
    nothing happens in it. Whoever watches may know which of the two it was: the coin is
    the same for neighbouring data sets. So the pair of distributions is the step's,
    with this probability as its weight, and an atom at privacy loss 0 with the
    remaining weight (an *atom mixture*). This is how a client's cohort coin enters
    record-level privacy: a client's records are drawn together, so its other records
    can give the coin away, and a rate of ``participation · rate`` would promise too
    much (PRECAD Lemma 7 as printed).

    Raises Misconfiguration: a field is out of its range, the denominator depends on the
    data, or the sensitivity is too small for the sampling and adjacency.
    """

    sampling: Sampling
    adjacency: Adjacency
    rate: float
    """Probability with which a step draws a record, in [0, 1]."""
    noise_multiplier: float
    """Standard deviation of the noise over the clipping bound."""
    sensitivity: float
    """The most that a step's sum moves between neighbours when the differing record is
    drawn, in clipping bounds. 1 for add/remove under Poisson sampling; 2 under
    replace-one (one clipped term leaves, another enters) and under fixed-size sampling
    (where one more term of one data set pushes out a term of the other)."""
    denominator: Denominator
    count: int = 1
    """Number of rounds, 0 to ``MOST_ROUNDS``."""
    participation: float = 1.0
    """Probability that a round runs the step, in [0, 1]."""
    group_bounds: tuple[float, ...] = ()
    """By how many clipping bounds each unit of a group moves the sum at most, largest
    first: a group of k has the first k, and all of them where it is larger. Empty where
    each moves it by one."""
    group_total: float = math.inf
    """By how many clipping bounds a group moves the sum at most, together."""
    owners: int = 1
    """m: owners that each have the differing unit and add it to the same sum; each is
    drawn by a coin of its own (``participation``), and samples it by itself.

    It also covers owners that take part in different rounds, as often as ``count``
    each, and smaller rates. P/Q is Σ w_i·e^{X_i − E[X_i²]/2} with Gaussian X_i, whose
    covariances are inner products of shifts over σ². Those of two sums that move by
    one unit each are never above those of one sum that moves by both, and then no
    convex function of P/Q has the larger mean (Kahane's convexity inequality, 1985)."""

    def __post_init__(self) -> None:
        """Check every field, for the accountants, which compute without checking."""
        checks.rate("rate", self.rate)
        checks.noise_multiplier(self.noise_multiplier)
        checks.positive(
            "sensitivity", self.sensitivity, "sensitivity is in clipping bounds"
        )
        if not LEAST_NOISE <= self.effective_noise_multiplier <= MOST_NOISE:
            raise Misconfiguration(
                "noise_multiplier",
                self.noise_multiplier,
                f"over the sensitivity: give {LEAST_NOISE:g} to {MOST_NOISE:g}",
            )
        require_rounds("count", self.count)
        checks.rate("participation", self.participation)
        checks.count("owners", self.owners, 1)
        if self.denominator is Denominator.DATA_DEPENDENT:
            raise Misconfiguration(
                "denominator",
                self.denominator.value,
                "dividing by who took part leaks who it was; divide by a fixed public"
                " number",
            )
        both_move = (
            self.sampling is Sampling.FIXED_SIZE
            or self.adjacency is Adjacency.REPLACE_ONE
        )
        if both_move and self.sensitivity < _BOTH_SIDES:
            raise Misconfiguration(
                "sensitivity",
                self.sensitivity,
                f"{self.sampling.value} sampling under {self.adjacency.value} moves the"
                " sum by 2 clips: give 2, or use Poisson sampling under add-remove",
            )

    @property
    def effective_noise_multiplier(self) -> float:
        """Return the noise's standard deviation divided by the sensitivity."""
        return self.noise_multiplier / self.sensitivity

    @property
    def silent(self) -> bool:
        """Return whether nobody's data ever reaches an output."""
        return self.count == 0 or self.rate == 0 or self.participation == 0

    def times(self, count: int) -> "SampledGaussian":
        """Return an event of the same round, ``count`` times."""
        return replace(self, count=count)


def poisson_gaussian(
    *,
    rate: float,
    noise_multiplier: float,
    count: int = 1,
    participation: float = 1.0,
    owners: int = 1,
) -> SampledGaussian:
    """Describe rounds as this system runs them, ``count`` of them.

    Poisson sampling, add/remove, a sensitivity of one clip and a fixed denominator.
    """
    return SampledGaussian(
        sampling=Sampling.POISSON,
        adjacency=Adjacency.ADD_REMOVE,
        rate=rate,
        noise_multiplier=noise_multiplier,
        sensitivity=1.0,
        denominator=Denominator.FIXED,
        count=count,
        participation=participation,
        owners=owners,
    )


ReleaseCounts = Mapping[int, int]
"""m → how many versions were released 1 + m times with the same X."""


def checked_counts(counts: ReleaseCounts) -> tuple[tuple[int, int], ...]:
    """Return ``counts`` as sorted pairs (m, versions), without those of no versions.

    Raises Misconfiguration: a number in it isn't a count.
    """
    pairs = [
        (checks.count("m", m), checks.count("counts", versions))
        for m, versions in counts.items()
    ]
    return tuple(sorted((m, versions) for m, versions in pairs if versions))


def steps_of(
    step: SampledGaussian, counts: ReleaseCounts
) -> tuple[SampledGaussian, ...]:
    """Return an event for each entry of ``counts``, of steps like ``step``.

    A version that was released 1 + m times has σ/√(1 + m). The own count of ``step``
    isn't used.
    """
    return tuple(
        replace(
            step,
            noise_multiplier=step.noise_multiplier / math.sqrt(1 + m),
            count=versions,
        )
        for m, versions in checked_counts(counts)
    )


def steps_as_chosen(
    step: SampledGaussian, *, versions: int, further: int
) -> tuple[SampledGaussian, ...]:
    """Return events that cost no less than any choice of the versions released again.

    Whoever cuts links chooses, with every release so far in view, which of ``versions``
    have one of the ``further`` releases. Given all that, a version's first release is a
    sampled step. A further one may show a record of which it is known by now that it
    was drawn: a Gaussian step that samples nothing, with the same σ. How many there are
    of both was fixed beforehand, so they could have been drawn beforehand, and in any
    order. The own count of ``step`` isn't used.
    """
    again = replace(step, rate=1.0, participation=1.0, count=further)
    return tuple(event for event in (step.times(versions), again) if event.count)


class AccountantName(StrEnum):
    """Which accountant a number comes from."""

    EXACT = "exact"
    """Privacy-loss distribution, rounded up: the guarantee."""
    RDP = "rdp"
    """Rényi divergences: an upper bound too, never better than exact; the cross-check.
    """
    GDP_CLT = "gdp-clt"
    """Central limit theorem: asymptotic, usually too small; not a guarantee."""


class BeyondReach(Misconfiguration):
    """A correct question that this accountant's arithmetic can't answer.

    Another accountant may have an answer.
    """


class Accountant(ABC):
    """Base of accountants: composes events and computes what they cost together."""

    name: ClassVar[AccountantName]
    """The name under which statements cite this accountant."""

    def compose(self, event: SampledGaussian) -> None:
        """Add ``event`` to what was composed before.

        Raises Misconfiguration: this accountant has no bound for it; then nothing has
        changed.
        """
        require_bound(event, self.name)
        if not event.silent:
            self._add(event)

    def epsilon(self, delta: float) -> float:
        """Return the least ε ≥ 0 for which everything composed is (ε, ``delta``)-DP.

        Raises Misconfiguration: δ outside (0, 1), or too small for this accountant.
        """
        checks.inside_unit_interval("delta", delta)
        return self._epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Return the least δ in [0, 1] for which everything is (``epsilon``, δ)-DP.

        Raises Misconfiguration: ε is negative or not finite.
        """
        checks.epsilon(epsilon)
        return self._delta(epsilon)

    @abstractmethod
    def _add(self, event: SampledGaussian) -> None:
        """Add an event that has a bound here and touches somebody's data."""

    @abstractmethod
    def _epsilon(self, delta: float) -> float:
        """Compute ``epsilon`` for a δ that was checked."""

    @abstractmethod
    def _delta(self, epsilon: float) -> float:
        """Compute ``delta`` for an ε that was checked."""


POISSON = (Sampling.POISSON, Adjacency.ADD_REMOVE)
"""The sampling and adjacency for which every accountant and certifier has a bound."""


def require_bound(
    event: SampledGaussian,
    accountant: str,
    known: Container[tuple[Sampling, Adjacency]] = (POISSON,),
) -> None:
    """Check that an accountant, given by its name, has a bound for ``event``.

    ``known`` holds every sampling and adjacency that it has a bound for. Raises
    Misconfiguration: the event's aren't among them, or it isn't an event.
    """
    if not isinstance(event, SampledGaussian):
        raise Misconfiguration(
            "event", event, f"the {accountant} accountant takes a SampledGaussian"
        )
    if (event.sampling, event.adjacency) not in known:
        scheme = f"{event.sampling.value} under {event.adjacency.value}"
        remedy = "knows no bound for it; use Poisson sampling under add-remove"
        raise Misconfiguration(
            "sampling", scheme, f"the {accountant} accountant {remedy}"
        )
