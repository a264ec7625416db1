"""The task's privacy limit as a number of participations.

What counts is the record-level exact ε against one corrupted server (guarantee 1). A forfeited
round is charged too, so a client may have been charged more often than the task has rounds.
"""

from precad.common.account.participations import most_participations
from precad.common.task import Task


def may_take_part(task: Task, record_rate: float, spent: int) -> bool:
    """Whether one more participation keeps a client within the task's limit.

    Args:
        task: gives σ, δ and the limit; without one everybody may.
        record_rate: p_i of this client.
        spent: T_i, its participations so far.
    """
    limit = task.privacy.epsilon_limit
    if limit is None:
        return True
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


def _cap(task: Task, record_rate: float, epsilon_limit: float, at_least: int) -> int:
    return most_participations(
        record_rate=record_rate,
        noise_multiplier=task.privacy.noise_multiplier,
        delta=task.privacy.delta,
        epsilon_limit=epsilon_limit,
        ceiling=max(task.training.rounds, at_least),
    )
