"""The exact accountant: privacy-loss distributions, rounded up, in both directions.

Adding and removing a record are different pairs of distributions under sampling; δ(ε)
is the larger of the two. ``losses`` holds one round's loss on a lattice
(connect-the-dots, Doroshenko et al. 2022), ``composition`` composes any number of any
kinds of them. A record's ε by number of participations is what ledgers, SDK and
displays ask for, one server curious (guarantee 1), since that is the larger of the
two record-level ones.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from precad.accounting import (
    Accountant,
    AccountantName,
    BeyondReach,
    ReleaseCounts,
    Rounds,
    SampledGaussian,
    SampledRound,
    delta_of_epsilon,
    epsilon_of_delta,
    gdp,
    log_affinity,
    profile,
    steps_as_chosen,
    steps_of,
)
from precad.common import Floats, checks

# A round with more noise, a smaller rate or a smaller participation is counted as one
# with these: it costs no more than they do, and less than these floating point can't
# hold.
_MOST_NOISE = 1e6
"""The largest noise multiplier that is computed with."""
_LEAST_RATE = 1e-9
"""The smallest rate that is computed with."""
_LEAST_PARTICIPATION = 1e-9
"""The smallest participation that is computed with."""

_LEAST_NOISE = 0.01
"""With a smaller noise multiplier, a round that samples has no bound here."""
_MOST_BOUNDS = 4096
"""A larger group's own bounds aren't told apart."""
_TOLD_APART = math.log(1e-12)
"""ln of the affinity below which a group is told from none: nothing is claimed."""


class ExactAccountant(Accountant):
    """Accountant by privacy-loss distributions that never say too little.

    It composes Poisson-sampled Gaussians and atom mixtures. Rounds in which everyone is
    drawn (rate 1) are composed in closed form. ε is infinite where a sampled step has σ
    below 0.01. Raises BeyondReach: this arithmetic can't tell δ from 0.
    """

    name = AccountantName.EXACT

    def __init__(self) -> None:
        self._rounds: Counter[SampledRound] = Counter()

    def _add(self, event: SampledGaussian) -> None:
        self._rounds[round_of(event)] += event.count

    def _epsilon(self, delta: float) -> float:
        mu, sampled = self._split()
        if not sampled:
            return gdp.epsilon_of_delta(mu, delta)
        if _hopeless(mu, sampled):
            return math.inf
        epsilon = epsilon_of_delta(_representable(mu, sampled), delta)
        if math.isinf(epsilon):
            raise BeyondReach(
                "delta",
                delta,
                "too small for the exact accountant's arithmetic; raise it, or use the"
                " RDP one",
            )
        return epsilon

    def _delta(self, epsilon: float) -> float:
        mu, sampled = self._split()
        if not sampled:
            return gdp.delta_of_epsilon(mu, epsilon)
        if _hopeless(mu, sampled):
            return 1.0
        return delta_of_epsilon(_representable(mu, sampled), epsilon)

    def _split(self) -> tuple[float, Rounds]:
        """Return μ of the rounds that sample nothing, and the counts of the others."""
        mus = []
        sampled: Counter[SampledRound] = Counter()
        for kind, count in self._rounds.items():
            if kind.rate == 1 and kind.participation == 1:
                mus.append(kind.group * math.sqrt(count) / kind.noise_multiplier)
            else:
                sampled[kind] = count
        # Together they have √Σμ² (Dong et al. 2022, PRECAD Lemma 2).
        return math.hypot(*mus), sampled


def round_of(event: SampledGaussian, group: int = 1) -> SampledRound:
    """Return one round of the event for a group of so many records at each owner.

    Where they have bounds of their own, noise and shift are over the largest of these;
    of very many, each is taken to have the largest.
    """
    bounds = event.group_bounds[:group]
    largest = max(bounds, default=1.0)
    unequal: tuple[float, ...] = ()
    if min(bounds, default=1.0) < largest and len(bounds) <= _MOST_BOUNDS:
        unequal = tuple(bound / largest for bound in bounds)
    of_each = SampledRound(
        rate=event.rate,
        noise_multiplier=event.effective_noise_multiplier / largest,
        participation=event.participation,
        group=len(unequal) or group,
        bounds=unequal,
        total=event.group_total / largest,
        owners=event.owners,
    )
    # Owners that are there in every round are one with all their records.
    return of_each.when_there()[-1] if event.participation == 1 else of_each


def _hopeless(mu: float, sampled: Rounds) -> bool:
    """Return whether there is so little noise that nothing can be claimed.

    A step that draws anybody then costs an ε of thousands. ``mu`` is of the rounds that
    sample nothing.
    """
    least = min(kind.noise_multiplier / kind.owners for kind in sampled)
    return least < _LEAST_NOISE or mu * _LEAST_NOISE > 1


def _representable(mu: float, sampled: Rounds) -> Rounds:
    """Return all rounds with parameters that floating point holds, sorted.

    Those that sample nothing are one Gaussian round of μ ``mu``.
    """
    rounds: Counter[SampledRound] = Counter()
    for kind, count in sampled.items():
        rounds[_held(kind)] += count
    if mu > 0:
        gaussian = SampledRound(
            rate=1.0,
            noise_multiplier=min(1 / mu, _MOST_NOISE),
            participation=1.0,
        )
        rounds[gaussian] += 1
    return dict(sorted(rounds.items()))


def _held(kind: SampledRound) -> SampledRound:
    """Return the nearest round, costing no less, that floating point holds."""
    return kind._replace(
        rate=max(kind.rate, _LEAST_RATE),
        noise_multiplier=min(kind.noise_multiplier, _MOST_NOISE),
        participation=max(kind.participation, _LEAST_PARTICIPATION),
    )


Profile = tuple[Floats, Floats]
"""ε, increasing, and an upper bound on δ(ε) at each; [n] float64 both."""


def group_profiles(event: SampledGaussian, group: int) -> tuple[Profile, Profile]:
    """Return the profiles of all rounds of an event for a group of records.

    Where a step has so little noise that nothing is claimed, or so many records are
    told from none but for a chance of 1e-12, a profile is one ε with δ = 1: however
    large the group, it takes a second.

    Args:
        event: The rounds; it isn't silent.
        group: k ≥ 1, how many records come or go together.

    Returns:
        The profile of with‖without the group, and that of without‖with.
    """
    step = round_of(event, group)
    if (
        step.noise_multiplier < _LEAST_NOISE
        or event.count * log_affinity(step) < _TOLD_APART
    ):
        nothing = np.zeros(1), np.ones(1)
        return nothing, nothing
    rounds = {_held(step): event.count}
    return profile(rounds, reverse=False), profile(rounds, reverse=True)


@lru_cache(maxsize=4096)
def epsilon_of(events: tuple[SampledGaussian, ...], delta: float) -> float:
    """Return the exact ε at ``delta`` of all events together; it is remembered."""
    accountant = ExactAccountant()
    for event in events:
        accountant.compose(event)
    return accountant.epsilon(delta)


def epsilon_spent(
    step: SampledGaussian, *, delta: float, counts: ReleaseCounts
) -> float:
    """Return the exact ε of one unit after its participations.

    Takes milliseconds, and is cached. ε never falls when participations rise. Raises
    Misconfiguration: a parameter is out of its range.

    Args:
        step: What one release shows the adversary (``Run.step``).
        delta: δ, in (0, 1).
        counts: How many participations there were, by how often each was released.
    """
    return epsilon_of(steps_of(step, counts), delta)


def most_participations(
    step: SampledGaussian,
    *,
    delta: float,
    epsilon_limit: float,
    ceiling: int,
) -> int:
    """Return the most participations that keep a unit's exact ε within a limit.

    A ledger or an owner's SDK counts up to it, and refuses the next one. Raises
    Misconfiguration: a parameter is out of its range.

    Args:
        step: What one release shows the adversary (``Run.step``).
        delta: δ, in (0, 1).
        epsilon_limit: The limit of ε, at least 0.
        ceiling: The most that is returned.
    """
    checks.epsilon(epsilon_limit, "epsilon_limit")

    def is_within(participations: int) -> bool:
        spent = epsilon_spent(step, delta=delta, counts={0: participations})
        return spent <= epsilon_limit

    return largest_count(is_within, ceiling)


def most_further_releases(
    step: SampledGaussian,
    *,
    delta: float,
    epsilon_limit: float,
    participations: int,
    ceiling: int,
) -> int:
    """Return the most further releases that the limit has room for beside these.

    Whoever cuts links chooses their versions, with every release in view
    (``steps_as_chosen``); so both numbers are fixed beforehand. Arguments are as for
    ``most_participations``; ``participations`` is the most that will ever be.
    """

    def is_within(further: int) -> bool:
        events = steps_as_chosen(step, versions=participations, further=further)
        return epsilon_of(events, delta) <= epsilon_limit

    return largest_count(is_within, ceiling)


def largest_count(allowed: Callable[[int], bool], ceiling: int) -> int:
    """Return the largest n ≤ ``ceiling`` that is allowed, 0 if none is.

    Args:
        allowed: Tells of n ≥ 1 whether it is; if so, every smaller n must be too.
        ceiling: The most that is returned.
    """
    within = 0
    beyond = 1
    while beyond <= ceiling and allowed(beyond):
        within = beyond
        beyond = beyond * 2
    between = range(within + 1, min(beyond, ceiling + 1))
    return within + bisect_left(between, x=True, key=lambda n: not allowed(n))
