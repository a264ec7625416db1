"""Exact record-level ε by number of participations: what ledgers, SDK and displays ask for.

One server corrupted (guarantee 1), since that is the larger of the two record-level ones. A client
loads this much of the accounting, and the exact accountant once it asks for an ε.
"""

from collections.abc import Callable
from functools import lru_cache

from precad.accounting.events import poisson_gaussian
from precad.accounting.repeats import Counts, checked, steps
from precad.common import checks
from precad.common.errors import Misconfiguration


def record_epsilon(
    *,
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    participations: int | None = None,
    counts: Counts | None = None,
) -> float:
    """Exact ε of a record after so many participations; milliseconds, and cached.

    Never falls when ``participations`` rises.

    Args:
        record_rate: p, in [0, 1].
        noise_multiplier: σ of the noise that the adversary can't remove: one server's.
        delta: δ, in (0, 1).
        participations: T_i, 0 or more, each released once; or
        counts: m → how many versions were released 1 + m times with the same X.

    Raises:
        Misconfiguration: a parameter is out of its range, or not one of the last two was given.
    """
    if (participations is None) == (counts is None):
        raise Misconfiguration(
            "participations", participations, "give either participations or counts by m"
        )
    by_m = checked({0: participations} if participations is not None else counts or {})
    return _record_epsilon(record_rate, noise_multiplier, delta, by_m)


@lru_cache(maxsize=4096)
def _record_epsilon(
    record_rate: float, noise_multiplier: float, delta: float, by_m: tuple[tuple[int, int], ...]
) -> float:
    # SciPy takes half a second to import; only who asks for an ε pays.
    from precad.accounting.exact import ExactAccountant  # noqa: PLC0415

    accountant = ExactAccountant()
    one = poisson_gaussian(rate=record_rate, noise_multiplier=noise_multiplier)
    for event in steps(one, dict(by_m)):
        accountant.compose(event)
    return accountant.epsilon(delta)


@lru_cache(maxsize=4096)
def most_participations(
    *,
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    epsilon_limit: float,
    ceiling: int,
) -> int:
    """The most participations that keep a record's exact ε at or below ``epsilon_limit``.

    What a ledger or an owner's SDK counts up to: it refuses the next one. Cached: many rounds ask
    for the same few.

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
    checks.inside_unit_interval("delta", delta)
    # A wrong rate or σ is refused here, whatever the ceiling.
    poisson_gaussian(rate=record_rate, noise_multiplier=noise_multiplier)

    def within(participations: int) -> bool:
        epsilon = record_epsilon(
            record_rate=record_rate,
            noise_multiplier=noise_multiplier,
            participations=participations,
            delta=delta,
        )
        return epsilon <= epsilon_limit

    return largest_count(within, ceiling)


def largest_count(allowed: Callable[[int], bool], ceiling: int) -> int:
    """The largest n ≤ ``ceiling`` that is allowed, 0 if none; what is allowed stays so below.

    Raises:
        Misconfiguration: the ceiling isn't a count.
    """
    checks.count("ceiling", ceiling)
    within, beyond = 0, 1
    while beyond <= ceiling and allowed(beyond):
        within, beyond = beyond, beyond * 2
    beyond = min(beyond, ceiling + 1)
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if allowed(middle):
            within = middle
        else:
            beyond = middle
    return within
