"""The exact accountant: privacy-loss distributions, rounded up, in both directions.

Adding and removing a record are different pairs of distributions under sampling; δ(ε)
is the larger of the two. ``losses`` holds one round's loss on a lattice
(connect-the-dots, Doroshenko et al. 2022), ``composition`` composes any number of any
kinds of them. A record's ε by number of participations is what ledgers, SDK and
displays ask for, one server corrupted (guarantee 1), since that is the larger of the
two record-level ones.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from precad.accounting import events, gdp
from precad.accounting.composition import (
    Rounds,
    delta_of_epsilon,
    epsilon_of_delta,
    profile,
)
from precad.accounting.loss_lattice import Floats
from precad.accounting.losses import SampledRound, log_affinity
from precad.common import checks
from precad.common.errors import Misconfiguration

# A round with more noise, a smaller rate or a smaller share is counted as one with
# these: it costs no more than they do, and less than these floating point can't hold.
_MOST_NOISE = 1e6
_LEAST_RATE = 1e-9
_LEAST_SHARE = 1e-9
_LEAST_NOISE = 0.01
_TOLD_APART = math.log(1e-12)


class ExactAccountant(events.Accountant):
    """Pessimistic privacy-loss distributions of Poisson-sampled Gaussians and atom mixtures.

    Rounds in which everyone is drawn (rate 1) are composed in closed form. ε is
    infinite where a sampled step has σ below 0.01, and BeyondReach where this
    arithmetic can't tell δ from 0.
    """

    name = events.AccountantName.EXACT

    def __init__(self) -> None:
        self._rounds: Counter[SampledRound] = Counter()

    def _add(self, event: events.SampledGaussian) -> None:
        one = SampledRound(
            event.rate, event.effective_noise_multiplier, event.participation
        )
        self._rounds[one] += event.count

    def _epsilon(self, delta: float) -> float:
        gaussian, sampled = self._split()
        if not sampled:
            return gdp.epsilon_of_delta(gaussian, delta)
        if _hopeless(gaussian, sampled):
            return math.inf
        epsilon = epsilon_of_delta(_counted(gaussian, sampled), delta)
        if math.isinf(epsilon):
            remedy = (
                "too small for the exact accountant's arithmetic; raise it, or use the"
                " RDP one"
            )
            raise events.BeyondReach("delta", delta, remedy)
        return epsilon

    def _delta(self, epsilon: float) -> float:
        gaussian, sampled = self._split()
        if not sampled:
            return gdp.delta_of_epsilon(gaussian, epsilon)
        if _hopeless(gaussian, sampled):
            return 1.0
        return delta_of_epsilon(_counted(gaussian, sampled), epsilon)

    def _split(self) -> tuple[float, Rounds]:
        """μ of the rounds that sample nothing, and the others with their counts."""
        plain = {
            r: n
            for r, n in self._rounds.items()
            if r.rate == 1 and r.participation == 1
        }
        mus = [math.sqrt(n) / r.noise_multiplier for r, n in plain.items()]
        return gdp.composed_mu(mus), {
            r: n for r, n in self._rounds.items() if r not in plain
        }


def _hopeless(gaussian: float, sampled: Rounds) -> bool:
    # With so little noise a step that draws anybody costs thousands: nothing is
    # claimed.
    least = min(one.noise_multiplier for one in sampled)
    return least < _LEAST_NOISE or gaussian * _LEAST_NOISE > 1


def _counted(gaussian: float, sampled: Rounds) -> Rounds:
    """All sampled rounds, and one Gaussian of μ ``gaussian``, within what is held exactly."""
    rounds: Counter[SampledRound] = Counter()
    for one, count in sampled.items():
        rounds[_held(one)] += count
    if gaussian > 0:
        rounds[SampledRound(1.0, min(1 / gaussian, _MOST_NOISE), 1.0)] += 1
    return dict(sorted(rounds.items()))


def _held(one: SampledRound) -> SampledRound:
    """The nearest round, costing no less, that floating point holds."""
    return one._replace(
        rate=max(one.rate, _LEAST_RATE),
        noise_multiplier=min(one.noise_multiplier, _MOST_NOISE),
        participation=max(one.participation, _LEAST_SHARE),
    )


Profile: TypeAlias = tuple[Floats, Floats]
"""ε, increasing, and an upper bound on δ(ε) at each; [n] float64 both."""


def group_profiles(
    event: events.SampledGaussian, group: int
) -> tuple[Profile, Profile]:
    """All of ``event``, not silent, for a group of k ≥ 1 records: with‖without and without‖with.

    Where a step has so little noise that nothing is claimed, or so many records are
    told from none but for a chance of 1e-12, one ε with δ = 1: however large the group,
    it takes a second.
    """
    one = SampledRound(
        event.rate, event.effective_noise_multiplier, event.participation, group
    )
    if (
        one.noise_multiplier < _LEAST_NOISE
        or event.count * log_affinity(one) < _TOLD_APART
    ):
        nothing = np.zeros(1), np.ones(1)
        return nothing, nothing
    counted = {_held(one): event.count}
    return profile(counted, reverse=False), profile(counted, reverse=True)


def record_epsilon(
    *,
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    participations: int | None = None,
    counts: events.ReleaseCounts | None = None,
) -> float:
    """Exact ε of a record after so many participations; milliseconds, and cached.

    ``noise_multiplier`` is of the noise that the adversary can't remove: one server's.
    Either ``participations`` are given, each released once, or ``counts``. Never falls
    when they rise. Raises Misconfiguration: a parameter is out of its range, or not one
    of the last two was given.
    """
    if (participations is None) == (counts is None):
        remedy = "give either participations or counts by m"
        raise Misconfiguration("participations", participations, remedy)
    given = counts or {} if participations is None else {0: participations}
    return _record_epsilon(
        record_rate, noise_multiplier, delta, events.checked_counts(given)
    )


@lru_cache(maxsize=4096)
def _record_epsilon(
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    by_m: tuple[tuple[int, int], ...],
) -> float:
    accountant = ExactAccountant()
    one = events.poisson_gaussian(rate=record_rate, noise_multiplier=noise_multiplier)
    for event in events.steps_of(one, dict(by_m)):
        accountant.compose(event)
    return accountant.epsilon(delta)


def most_participations(
    *,
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    epsilon_limit: float,
    ceiling: int,
    again: events.ReleaseCounts | None = None,
) -> int:
    """The most participations, up to ``ceiling``, that keep a record's exact ε within a limit.

    What a ledger or an owner's SDK counts up to: it refuses the next one. ``again`` are
    those of them that were released more than once.
    """
    checks.epsilon(epsilon_limit, "epsilon_limit")
    checks.inside_unit_interval("delta", delta)
    # A wrong rate or σ is refused here, whatever the ceiling.
    events.poisson_gaussian(rate=record_rate, noise_multiplier=noise_multiplier)
    repeated = {m: count for m, count in events.checked_counts(again or {}) if m}

    def within(participations: int) -> bool:
        once = max(0, participations - sum(repeated.values()))
        by_m = events.checked_counts(repeated | {0: once})
        return (
            _record_epsilon(record_rate, noise_multiplier, delta, by_m) <= epsilon_limit
        )

    return largest_count(within, ceiling)


def largest_count(allowed: Callable[[int], bool], ceiling: int) -> int:
    """The largest n ≤ ``ceiling`` that is allowed, 0 if none; what is allowed stays so below."""
    checks.count("ceiling", ceiling)
    within = 0
    beyond = 1
    while beyond <= ceiling and allowed(beyond):
        within = beyond
        beyond = beyond * 2
    between = range(within + 1, min(beyond, ceiling + 1))
    return within + bisect_left(between, x=True, key=lambda n: not allowed(n))
