"""The task's privacy limit as a number of participations.

What counts is the record-level exact ε against one corrupted server (guarantee 1). A
release that was lost stays charged: a version that is released again turns its one step's σ into
σ/√(1+m).
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from precad.common.account.events import poisson_gaussian
from precad.common.account.participations import most_participations
from precad.common.task import Task


def may_take_part(
    task: Task,
    record_rate: float,
    spent: int,
    upgrades: Mapping[int, int] | None = None,
    charges: int = 0,
) -> bool:
    """Whether one more release keeps a client within the task's limit.

    Args:
        task: gives σ, δ and the limit; without one everybody may.
        record_rate: p_i of this client.
        spent: T_i, its participations so far: versions that it was charged for.
        upgrades: of them, those with further releases: versions by m ≥ 1.
        charges: releases of the version in question that it was charged for already.
    """
    limit = task.privacy.epsilon_limit
    if limit is None:
        return True
    if upgrades or charges:
        counts = Counter(upgrades or {})
        counts[0] = spent - counts.total()
        if charges:
            counts[charges - 1] -= 1
        counts[charges] += 1
        return _epsilon(task, record_rate, +counts) <= limit
    # The task's rate is no lower than any client's: below its cap nobody's own is needed, and a
    # thousand clients of a thousand rates cost one account and not a thousand.
    highest = task.privacy.record_rate
    return spent < _cap(task, highest, limit, spent + 1) or (
        record_rate < highest and spent < _cap(task, record_rate, limit, spent + 1)
    )


def participation_cap(task: Task, record_rate: float) -> int | None:
    """The most participations, up to the task's rounds, that its limit allows a client.

    Returns:
        None for a task without a limit.
    """
    limit = task.privacy.epsilon_limit
    return None if limit is None else _cap(task, record_rate, limit, 0)


def participations_left(
    task: Task, record_rate: float, participations: int, again: Mapping[int, int]
) -> int | None:
    """How many more versions the limit allows, released once each, within the task's rounds.

    Args:
        task: gives σ, δ and the limit.
        record_rate: p_i.
        participations: T_i so far.
        again: of them, those with further releases: versions by m ≥ 1.

    Returns:
        None for a task without a limit.
    """
    cap, limit = participation_cap(task, record_rate), task.privacy.epsilon_limit
    if cap is None or limit is None:
        return None
    left = max(0, cap - participations)
    if again and left:
        # The first of the participations to come that passes the limit; ε only grows.
        left = bisect_left(
            range(1, left + 1),
            True,  # noqa: FBT003 -- what is looked for
            key=lambda more: epsilon_spent(task, record_rate, participations + more, again) > limit,
        )
    return left


def epsilon_spent(
    task: Task, record_rate: float, participations: int, again: Mapping[int, int]
) -> float:
    """Exact ε of one record so far, at the task's δ.

    Args:
        task: gives σ and δ.
        record_rate: p_i.
        participations: T_i, versions that the client was charged for.
        again: of them, those with further releases: versions by m ≥ 1.
    """
    counts = Counter(again)
    counts[0] = participations - counts.total()
    return _epsilon(task, record_rate, +counts)


def _epsilon(task: Task, record_rate: float, counts: Mapping[int, int]) -> float:
    """ε where some versions were released 1 + m times: their steps have σ/√(1+m)."""
    from precad.common.account.exact import ExactAccountant  # noqa: PLC0415 -- a second to import

    accountant = ExactAccountant()
    for m, count in sorted(counts.items()):
        noise = task.privacy.noise_multiplier / math.sqrt(1 + m)
        accountant.compose(poisson_gaussian(rate=record_rate, noise_multiplier=noise, count=count))
    return accountant.epsilon(task.privacy.delta)


def _cap(task: Task, record_rate: float, epsilon_limit: float, at_least: int) -> int:
    return most_participations(
        record_rate=record_rate,
        noise_multiplier=task.privacy.noise_multiplier,
        delta=task.privacy.delta,
        epsilon_limit=epsilon_limit,
        ceiling=max(task.training.rounds, at_least),
    )
