"""The federated algorithms that the papers account for, as events: comparisons for this system.

All of them trust one server with plain updates. Noise multipliers are over one clip S.
A parameter out of its range, a δ outside (0, 1) too, raises Misconfiguration.

Fixed-size sampling costs at least what ``attained_epsilon`` says: no account of the
papers may go below.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dp_accounting.pld import privacy_loss_distribution as pld

from precad.accounting.events import (
    Accountant,
    Adjacency,
    Denominator,
    SampledGaussian,
    Sampling,
)
from precad.accounting.exact import ExactAccountant
from precad.common import checks
from precad.common.errors import Misconfiguration


def _step(
    sampling: Sampling, rate: float, noise_multiplier: float, count: int
) -> SampledGaussian:
    """One algorithm's step under the adjacency and the sensitivity that its sampling allows."""
    match sampling:
        case Sampling.POISSON:
            adjacency, sensitivity = Adjacency.ADD_REMOVE, 1.0
        case Sampling.FIXED_SIZE:
            adjacency, sensitivity = Adjacency.REPLACE_ONE, 2.0
    return SampledGaussian(
        sampling=sampling,
        adjacency=adjacency,
        rate=rate,
        noise_multiplier=noise_multiplier,
        sensitivity=sensitivity,
        denominator=Denominator.FIXED,
        count=count,
    )


def userdp_fedavg(
    *, sampling: Sampling, user_rate: float, noise_multiplier: float, rounds: int
) -> SampledGaussian:
    """UserDP-FedAvg (Xie et al. eq. (3)): users' updates clipped to S, noise σ·S, T rounds.

    Args:
        sampling: of users. The paper states fixed-size and accounts for Poisson.
        user_rate: q = m/N.
        noise_multiplier: σ.
        rounds: T.
    """
    return _step(sampling, user_rate, noise_multiplier, rounds)


def insdp_fedsgd(
    *,
    sampling: Sampling,
    batch_rate: float,
    users: int,
    users_per_round: int,
    noise_multiplier: float,
    rounds: int,
) -> SampledGaussian:
    """InsDP-FedSGD (Xie et al. eq. (8)): m of N users, one noisy step each, noise σ·S by each.

    The m noises add up to σ·√m·S against one record's S. The user's coin enters as an
    atom mixture, not as the rate p·q of Proposition 1: a user's records are drawn
    together.

    Args:
        sampling: of a user's batch.
        batch_rate: p.
        users: N.
        users_per_round: m, a fixed number; q = m/N.
        noise_multiplier: σ of each user's noise over S.
        rounds: T.
    """
    checks.count("users", users, 1)
    checks.count("users_per_round", users_per_round, 1)
    if users_per_round > users:
        raise Misconfiguration(
            "users_per_round", users_per_round, f"at most {users} take part"
        )
    sigma = noise_multiplier * math.sqrt(users_per_round)
    step = _step(sampling, batch_rate, sigma, rounds)
    return replace(step, participation=users_per_round / users)


def dopamine(
    *,
    sampling: Sampling,
    batch_rate: float,
    users_per_round: int,
    noise_multiplier: float,
    rounds: int,
) -> SampledGaussian:
    """Dopamine (Malekzadeh et al. 2021): InsDP-FedSGD without credit for drawing users.

    As Xie et al. Section 6.3.1 compares it: rate p, noise σ·√m, every round counted.
    """
    checks.count("users_per_round", users_per_round, 1)
    sigma = noise_multiplier * math.sqrt(users_per_round)
    return _step(sampling, batch_rate, sigma, rounds)


class ParallelAccount:
    """InsDP-FedAvg (Xie et al. Proposition 2): one account for each user, and their maximum.

    Every user runs DP-SGD on its own data with its own noise, so a record costs what
    its user spent: users compose in parallel, a user's rounds one after the other. A
    user that isn't drawn spends nothing.

    Args:
        new_accountant: makes each user's accountant; the exact one by default.
    """

    def __init__(
        self, new_accountant: Callable[[], Accountant] = ExactAccountant
    ) -> None:
        self._new_accountant = new_accountant
        self._by_user: dict[str, Accountant] = {}

    def charge(self, user: str, event: SampledGaussian) -> None:
        """Add what ``user`` ran locally.

        Raises:
            Misconfiguration: the accountant doesn't understand the event; nothing
                changed.
        """
        accountant = self._by_user.get(user) or self._new_accountant()
        accountant.compose(event)
        self._by_user[user] = accountant

    def epsilon_by_user(self, delta: float) -> dict[str, float]:
        """ε of each user that was charged."""
        return {user: account.epsilon(delta) for user, account in self._by_user.items()}

    def epsilon(self, delta: float) -> float:
        """The largest ε of any user; 0 before the first charge."""
        return max(self.epsilon_by_user(delta).values(), default=0.0)


class AttainedEpsilon(NamedTuple):
    """Brackets of the ε that one explicit pair of data sets reaches."""

    lower: float
    """No accountant may report less for fixed-size sampling with these parameters."""
    upper: float
    """At most this for the pair; other pairs may reach more."""


def attained_epsilon(
    *, rate: float, clip_noise_multiplier: float, steps: int, delta: float
) -> AttainedEpsilon:
    """What fixed-size sampling costs at least: all records at −clip, one replaced by +clip.

    The noise-free sum is −m·clip, or with probability ``rate`` two clips more: the pair of a
    Poisson-sampled Gaussian with half the noise multiplier.

    Args:
        rate: share of records in a step, in (0, 1].
        clip_noise_multiplier: standard deviation of the noise over *one* clip, as
            printed.
        steps: number of steps.
        delta: δ, in (0, 1).

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.rate("rate", rate)
    checks.noise_multiplier(clip_noise_multiplier)
    checks.count("steps", steps, 1)
    checks.inside_unit_interval("delta", delta)

    def epsilon(*, pessimistic: bool) -> float:
        step = pld.from_gaussian_mechanism(
            clip_noise_multiplier,
            sensitivity=2.0,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=(
                1e-3 if pessimistic else min(1e-3, 1e-2 / steps)
            ),
        )
        return float(step.self_compose(steps).get_epsilon_for_delta(delta))

    return AttainedEpsilon(epsilon(pessimistic=False), epsilon(pessimistic=True))
