"""Mechanisms as frozen events, and what every accountant does with them.

An event says what was done to the data, without any computation. Sampling scheme,
adjacency, sensitivity and denominator have no defaults: every wrong ε in the papers
comes from leaving one of them unsaid (docs/privacy-accounting.md). An accountant either
understands an event and adds it, or raises before anything has changed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import ClassVar, TypeAlias

from precad.common import checks
from precad.common.errors import Misconfiguration


class Sampling(Enum):
    """How the records (or clients) of one step are drawn."""

    POISSON = "poisson"
    """Each on its own with probability ``rate``; what this system runs."""
    FIXED_SIZE = "fixed-size"
    """A uniformly random subset of a fixed size m = rate·n, without replacement."""


def require_poisson(name: str) -> None:
    """Refuse a sampling scheme, by its name, that is not Poisson: nothing here bounds it."""
    if name != Sampling.POISSON.value:
        remedy = (
            "this system draws by 'poisson'; a fixed-size draw moves the sum by 2"
            " clips, not 1, so what is said for one clip would be false"
        )
        raise Misconfiguration("sampling", name, remedy)


class Adjacency(Enum):
    """Which data sets are neighbours."""

    ADD_REMOVE = "add-remove"
    """One record's gradient (or one client's update) is zero on one side: *zero-out*.
    The numbers are those of adding and removing, while the enrolled number of records
    stays public."""
    REPLACE_ONE = "replace-one"
    """One record (or client) exchanged for another; the number stays."""


class Denominator(Enum):
    """What the noisy sum is divided by."""

    FIXED = "fixed"
    """A public number, the same for neighbouring data sets."""
    DATA_DEPENDENT = "data-dependent"
    """A sum over who took part, as PRECAD eq. (2) has it: it moves with the data."""


MOST_ROUNDS = 10**9
LEAST_NOISE, MOST_NOISE = 1e-6, 1e9
"""Beyond these no training is meant, and squares leave what floating point can hold."""

_BOTH_SIDES = 2.0


def require_rounds(field: str, count: int) -> int:
    """A number of rounds: 0 to ``MOST_ROUNDS``."""
    if checks.count(field, count) > MOST_ROUNDS:
        raise Misconfiguration(field, count, f"give at most {MOST_ROUNDS:,}")
    return int(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGaussian:
    """``count`` rounds of sampling, clipping, summing and adding Gaussian noise.

    A round may happen with a probability below 1 (``participation``), else nothing
    does, and whoever watches may know which: the coin is the same on neighbouring data
    sets, so the pair of distributions is that of the step with this weight and an atom
    at privacy loss 0 with the rest (an *atom mixture*). This is how a client's cohort
    coin enters record-level privacy: its records are drawn together, so its other
    records can give the coin away, and a rate of ``participation · rate`` would be too
    good (PRECAD Lemma 7 as printed).
    """

    sampling: Sampling
    adjacency: Adjacency
    rate: float
    """Of a step's sampling, in [0, 1]."""
    noise_multiplier: float
    """Standard deviation of the noise over the clipping bound."""
    sensitivity: float
    """The most that a step's sum moves between neighbours when the differing record is
    drawn, in clipping bounds: 1 for add/remove under Poisson sampling, 2 under
    replace-one (one clipped term leaves, another enters) and under fixed-size sampling
    (where one more term of one data set pushes out a term of the other)."""
    denominator: Denominator
    count: int = 1
    participation: float = 1.0
    """Probability of the step running in a round, in [0, 1]."""

    def __post_init__(self) -> None:
        checks.rate("rate", self.rate)
        checks.noise_multiplier(self.noise_multiplier)
        checks.positive(
            "sensitivity", self.sensitivity, "sensitivity is in clipping bounds"
        )
        if not LEAST_NOISE <= self.effective_noise_multiplier <= MOST_NOISE:
            remedy = f"over the sensitivity: give {LEAST_NOISE:g} to {MOST_NOISE:g}"
            raise Misconfiguration("noise_multiplier", self.noise_multiplier, remedy)
        require_rounds("count", self.count)
        checks.rate("participation", self.participation)
        if self.denominator is Denominator.DATA_DEPENDENT:
            remedy = (
                "dividing by who took part leaks who it was; divide by a fixed public"
                " number"
            )
            raise Misconfiguration("denominator", self.denominator.value, remedy)
        both_move = (
            self.sampling is Sampling.FIXED_SIZE
            or self.adjacency is Adjacency.REPLACE_ONE
        )
        if both_move and self.sensitivity < _BOTH_SIDES:
            remedy = (
                f"{self.sampling.value} sampling under {self.adjacency.value} moves the"
                " sum by 2 clips: give 2, or use Poisson sampling under add-remove"
            )
            raise Misconfiguration("sensitivity", self.sensitivity, remedy)

    @property
    def effective_noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity."""
        return self.noise_multiplier / self.sensitivity

    @property
    def silent(self) -> bool:
        """Whether nobody's data ever reaches an output."""
        return self.count == 0 or self.rate == 0 or self.participation == 0

    def times(self, count: int) -> "SampledGaussian":
        """The same round, ``count`` times."""
        return replace(self, count=count)


def poisson_gaussian(
    *,
    rate: float,
    noise_multiplier: float,
    count: int = 1,
    participation: float = 1.0,
) -> SampledGaussian:
    """What this system runs: Poisson sampling, add/remove, one clip, fixed denominator."""
    return SampledGaussian(
        sampling=Sampling.POISSON,
        adjacency=Adjacency.ADD_REMOVE,
        rate=rate,
        noise_multiplier=noise_multiplier,
        sensitivity=1.0,
        denominator=Denominator.FIXED,
        count=count,
        participation=participation,
    )


ReleaseCounts: TypeAlias = Mapping[int, int]
"""m → how many versions were released 1 + m times with the same X."""


def checked_counts(counts: ReleaseCounts) -> tuple[tuple[int, int], ...]:
    """``counts`` as sorted pairs (m, versions) that happened.

    Raises Misconfiguration.
    """
    if not isinstance(counts, Mapping):
        raise Misconfiguration(
            "counts", counts, "give a mapping from m to a number of versions"
        )
    pairs = (
        (checks.count("m", m), checks.count("counts", n)) for m, n in counts.items()
    )
    return tuple(sorted((m, n) for m, n in pairs if n))


def steps_of(
    one: SampledGaussian, counts: ReleaseCounts
) -> tuple[SampledGaussian, ...]:
    """The events of ``counts`` versions, each a step like ``one``; its own count isn't used."""
    return tuple(
        replace(one, noise_multiplier=one.noise_multiplier / math.sqrt(1 + m), count=n)
        for m, n in checked_counts(counts)
    )


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
    """A right question that this accountant's arithmetic can't answer; another one may."""


class Accountant(ABC):
    """Composes events and says what they cost together."""

    name: ClassVar[AccountantName]

    def compose(self, event: SampledGaussian) -> None:
        """Add ``event``.

        Raises Misconfiguration: it isn't understood here; nothing has changed.
        """
        require_bound(event, self.name)
        if not event.silent:
            self._add(event)

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 for which all that was composed is (ε, ``delta``)-DP.

        Raises Misconfiguration: δ outside (0, 1), or too small for this accountant.
        """
        checks.inside_unit_interval("delta", delta)
        return self._epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """The least δ for which all that was composed is (``epsilon``, δ)-DP, in [0, 1]."""
        checks.epsilon(epsilon)
        return self._delta(epsilon)

    @abstractmethod
    def _add(self, event: SampledGaussian) -> None: ...
    @abstractmethod
    def _epsilon(self, delta: float) -> float: ...
    @abstractmethod
    def _delta(self, epsilon: float) -> float: ...


POISSON = (Sampling.POISSON, Adjacency.ADD_REMOVE)
"""What every accountant and certifier has a bound for."""


def require_bound(
    event: SampledGaussian,
    who: str,
    known: Container[tuple[Sampling, Adjacency]] = (POISSON,),
) -> None:
    """Refuse an event that isn't under ``known`` sampling and adjacency: ``who`` has no bound."""
    if not isinstance(event, SampledGaussian):
        raise Misconfiguration(
            "event", event, f"the {who} accountant takes a SampledGaussian"
        )
    if (event.sampling, event.adjacency) not in known:
        found = f"{event.sampling.value} under {event.adjacency.value}"
        remedy = "knows no bound for it; use Poisson sampling under add-remove"
        raise Misconfiguration("sampling", found, f"the {who} accountant {remedy}")
