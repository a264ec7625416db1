"""The federated algorithms that the papers account for, as events: comparisons for this system.

All of them trust one server with plain updates. Noise multipliers are over one clip S. A parameter
out of its range, a δ outside (0, 1) too, raises Misconfiguration.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from precad.accounting.events import Accountant, Adjacency, Denominator, SampledGaussian, Sampling
from precad.accounting.exact import ExactAccountant
from precad.common import checks
from precad.common.errors import Misconfiguration


def _step(sampling: Sampling, rate: float, noise_multiplier: float, count: int) -> SampledGaussian:
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

    The m noises add up to σ·√m·S against one record's S. The user's coin enters as an atom
    mixture, not as the rate p·q of Proposition 1: a user's records are drawn together.

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
        raise Misconfiguration("users_per_round", users_per_round, f"at most {users} take part")
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

    Every user runs DP-SGD on its own data with its own noise, so a record costs what its user
    spent: users compose in parallel, a user's rounds one after the other. A user that isn't
    drawn spends nothing.

    Args:
        new_accountant: makes each user's accountant; the exact one by default.
    """

    def __init__(self, new_accountant: Callable[[], Accountant] = ExactAccountant) -> None:
        self._new_accountant = new_accountant
        self._by_user: dict[str, Accountant] = {}

    def charge(self, user: str, event: SampledGaussian) -> None:
        """Add what ``user`` ran locally.

        Raises:
            Misconfiguration: the accountant doesn't understand the event; nothing changed.
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
