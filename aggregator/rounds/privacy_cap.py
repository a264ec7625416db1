"""The task's privacy limit as a number of participations.

What counts is the record-level exact ε against one corrupted server (guarantee 1). A release that
was lost stays charged: where the version is released again, its one step's σ becomes σ/√(1+m).

An account takes seconds. ``prepare`` computes it where a client enrols or a server starts, in a
thread that nobody waits for but that client; rounds look it up. Claimed rates lie on the task's
public grid (``Enrolment``), so that clients can't make a server compute more than a few. Where a
version is released again, ``begin`` computes what that makes of an account in a thread of its own,
before the operators have given their word or soon after; until it is known its clients sit out.
"""

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from precad.common.errors import Misconfiguration
from precad.common.task import Task

log = logging.getLogger("precad")

SPARE_CHARGES = 16
"""Charges beyond twice the task's rounds that are still told apart."""


def record_epsilon(
    *, record_rate: float, noise_multiplier: float, delta: float, counts: Mapping[int, int]
) -> float:
    """As ``accounting.exact.record_epsilon``; SciPy is loaded where a task limits ε."""
    from precad.accounting import exact  # noqa: PLC0415

    return exact.record_epsilon(
        record_rate=record_rate, noise_multiplier=noise_multiplier, delta=delta, counts=counts
    )


def most_participations(
    *,
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    epsilon_limit: float,
    ceiling: int,
) -> int:
    """As ``accounting.exact.most_participations``, likewise."""
    from precad.accounting import exact  # noqa: PLC0415

    return exact.most_participations(
        record_rate=record_rate,
        noise_multiplier=noise_multiplier,
        delta=delta,
        epsilon_limit=epsilon_limit,
        ceiling=ceiling,
    )


_Again = tuple[tuple[int, int], ...]
"""Versions that were released 1 + m times, by m ≥ 1, in order."""
_Terms = tuple[float, float, float, float, int, _Again]
_known: dict[_Terms, int | None] = {}
"""By terms; None where the accountant failed. Pure numbers: no task's secret, no client's name."""
_one_at_a_time = threading.Lock()
_begun: set[_Terms] = set()
"""What a thread of its own is to compute, or has."""


def prepare(task: Task, record_rate: float) -> None:
    """Compute what rounds will ask of a client with this rate; seconds the first time.

    Args:
        task: gives σ, δ and the limit; without one there is nothing to compute.
        record_rate: p_i of a client that wants to enrol, or is enrolled.

    Raises:
        Misconfiguration: the accountant gives no answer for this rate.
    """
    if task.privacy.epsilon_limit is None:
        return
    rates = dict.fromkeys((task.privacy.record_rate, record_rate))
    for rate in rates:
        cap = _cap(task, rate)
        if cap is None:
            raise Misconfiguration(
                "record_rate",
                rate,
                "the accountant finds no ε for it, so no limit can be kept; claim a higher rate, "
                "up to the task's",
            )
        if cap >= _ceiling(task):
            # The task's rate is no lower than any client's: nobody's own can be the smaller cap.
            return


def prepared(task: Task, record_rate: float) -> bool:
    """Whether ``prepare`` would answer at once."""
    if task.privacy.epsilon_limit is None:
        return True
    highest = _known.get(_terms(task, task.privacy.record_rate))
    return highest is not None and (
        highest >= _ceiling(task) or _known.get(_terms(task, record_rate)) is not None
    )


def may_take_part(
    task: Task,
    record_rate: float,
    spent: int,
    upgrades: Mapping[int, int] | None = None,
    charges: int = 0,
) -> bool:
    """Whether one more release keeps a client within the task's limit.

    A client whose account can't be computed may not: that costs nobody else the round. Nor may one
    whose account with lost releases isn't known yet: it is begun.

    Args:
        task: gives σ, δ and the limit; without one everybody may.
        record_rate: p_i of this client.
        spent: T_i, its participations so far: versions that it was charged for.
        upgrades: of them, those with further releases: versions by m ≥ 1.
        charges: releases of the version in question that it was charged for already.
    """
    if task.privacy.epsilon_limit is None:
        return True
    if again := released_again(upgrades or {}, charges):
        begin(task, record_rate, again)
        most = _known.get(_terms(task, record_rate, again))
        return most is not None and spent + (charges == 0) <= most
    # The task's rate is no lower than any client's: below its cap nobody's own is needed, and a
    # thousand clients of a thousand rates cost one account and not a thousand.
    highest = task.privacy.record_rate
    for rate in dict.fromkeys((highest, record_rate)):
        cap = _cap(task, rate)
        if cap is not None and spent < cap:
            return True
    return False


def released_again(upgrades: Mapping[int, int], charges: int) -> _Again:
    """The versions with further releases, by m ≥ 1, once another release has left.

    Args:
        upgrades: versions by m ≥ 1 so far.
        charges: releases of the version in question so far.
    """
    counts = Counter(upgrades)
    if charges:
        counts[charges - 1] -= 1
        counts[charges] += 1
    return tuple(sorted((m, count) for m, count in counts.items() if m > 0 and count > 0))


def begin(task: Task, record_rate: float, again: _Again) -> None:
    """Have the most participations computed that go with these further releases; in a thread."""
    if task.privacy.epsilon_limit is None or not again:
        return
    terms = _terms(task, record_rate, again)
    if terms not in _begun:
        _begun.add(terms)
        threading.Thread(
            target=_cap, args=(task, record_rate, again), name="account", daemon=True
        ).start()


def participation_cap(task: Task, record_rate: float) -> int | None:
    """The most participations, up to the task's rounds, that its limit allows a client.

    Returns:
        None for a task without a limit.

    Raises:
        Misconfiguration: the accountant gives no answer for this rate.
    """
    if task.privacy.epsilon_limit is None:
        return None
    prepare(task, record_rate)
    highest = _cap(task, task.privacy.record_rate) or 0
    own = highest if highest >= _ceiling(task) else _cap(task, record_rate) or 0
    return min(own, task.training.rounds)


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
    return record_epsilon(
        record_rate=record_rate,
        noise_multiplier=task.privacy.noise_multiplier,
        delta=task.privacy.delta,
        counts=counts,
    )


def _cap(task: Task, record_rate: float, again: _Again = ()) -> int | None:
    terms = _terms(task, record_rate, again)
    if terms in _known:
        return _known[terms]
    with _one_at_a_time:
        if terms not in _known:
            _known[terms] = _computed(*terms)
    return _known[terms]


def _computed(
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    epsilon_limit: float,
    ceiling: int,
    again: _Again,
) -> int | None:
    repeated = sum(count for _, count in again)

    def within(participations: int) -> bool:
        if participations < repeated:
            return True
        epsilon = record_epsilon(
            record_rate=record_rate,
            noise_multiplier=noise_multiplier,
            delta=delta,
            counts=dict(((0, participations - repeated), *again)),
        )
        return epsilon <= epsilon_limit

    try:
        if again:
            from precad.accounting.exact import largest_count  # noqa: PLC0415

            return largest_count(within, ceiling)
        return most_participations(
            record_rate=record_rate,
            noise_multiplier=noise_multiplier,
            delta=delta,
            epsilon_limit=epsilon_limit,
            ceiling=ceiling,
        )
    except Exception:
        # Whatever the libraries under the accountant raise, it is this one rate's affair.
        log.exception("no account for record rate %r: clients with it don't count", record_rate)
        return None


def _terms(task: Task, record_rate: float, again: _Again = ()) -> _Terms:
    privacy = task.privacy
    limit = privacy.epsilon_limit
    assert limit is not None
    return record_rate, privacy.noise_multiplier, privacy.delta, limit, _ceiling(task), again


def _ceiling(task: Task) -> int:
    # Beyond it a client is refused: it has been charged for two trainings' worth of rounds.
    return 2 * task.training.rounds + SPARE_CHARGES
