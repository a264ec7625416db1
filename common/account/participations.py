"""Exact record-level ε by number of participations: what ledgers, SDK and displays ask for.

One server corrupted (guarantee 1), since that is the larger of the two record-level ones.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from precad.common import checks
from precad.common.account.calibrate import most_rounds
from precad.common.account.events import poisson_gaussian
from precad.common.account.exact import ExactAccountant


@lru_cache(maxsize=4096)
def record_epsilon(
    *, record_rate: float, noise_multiplier: float, participations: int, delta: float
) -> float:
    """Exact ε of a record after ``participations`` steps; milliseconds, and cached.

    Never falls when ``participations`` rises.

    Args:
        record_rate: p, in [0, 1].
        noise_multiplier: σ of the noise that the adversary can't remove: one server's.
        participations: T_i, 0 or more.
        delta: δ, in (0, 1).

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    accountant = ExactAccountant()
    accountant.compose(
        poisson_gaussian(rate=record_rate, noise_multiplier=noise_multiplier, count=participations)
    )
    return accountant.epsilon(delta)


def epsilon_by_participations(
    *, record_rate: float, noise_multiplier: float, delta: float, up_to: int
) -> NDArray[np.float64]:
    """Exact ε after 0, 1, …, ``up_to`` participations: ``[up_to + 1]`` float64.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.count("up_to", up_to)
    return np.array(
        [
            record_epsilon(
                record_rate=record_rate,
                noise_multiplier=noise_multiplier,
                participations=t,
                delta=delta,
            )
            for t in range(up_to + 1)
        ]
    )


def most_participations(
    *,
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    epsilon_limit: float,
    ceiling: int,
) -> int:
    """The most participations that keep a record's exact ε at or below ``epsilon_limit``.

    What a ledger or an owner's SDK counts up to: it refuses the next one.

    Args:
        record_rate: p, in [0, 1].
        noise_multiplier: σ of one server's noise over R'.
        delta: δ, in (0, 1).
        epsilon_limit: ε, 0 or above.
        ceiling: never more than this; a task's rounds.

    Returns:
        0 to ``ceiling``.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.epsilon(epsilon_limit, "epsilon_limit")
    step = poisson_gaussian(rate=record_rate, noise_multiplier=noise_multiplier)
    return most_rounds(step.times, epsilon=epsilon_limit, delta=delta, ceiling=ceiling)
