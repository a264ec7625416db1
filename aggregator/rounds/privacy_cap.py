"""The task's privacy limit as a number of participations.

What counts is the exact ε of one unit (a record, in most tasks) against one corrupted
server: guarantee 1. A release that was lost stays charged: where its version is
released m more times, its one step's σ becomes σ/√(1+m). ``re_releases`` are such
versions of one client, by m ≥ 1.

Whoever cuts links chooses which version is released again, with every release in view.
So the numbers of participations and of further releases are both fixed beforehand, and
no further release takes the place of a participation.
"""

import threading
from collections import Counter
from collections.abc import Mapping

from precad.accounting import Adversary, Run
from precad.common import Misconfiguration, Task, log

SPARE_CHARGES = 16
"""Charges beyond twice the task's rounds that are still told apart."""
_Plan = tuple[int, int]
"""The most participations, and the most further releases beside T of them, or beside
all where they are fewer."""


class PrivacyCap:
    """How many participations a task's limit allows each client.

    An account takes seconds. ``precompute`` makes it where a client enrols or a server
    starts, in a thread that nobody waits for but that client; rounds look it up.
    Claimed rates are of a short public list (``Mechanism.unit_rates``), so that clients
    can't make a server compute more than a few. Without a limit everybody may take
    part.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._limit = task.privacy.epsilon_limit
        self._highest_rate = task.mechanism.unit_rate
        # Beyond it a client is refused: it has been charged for two trainings' worth of
        # rounds.
        self._ceiling = 2 * task.mechanism.releases + SPARE_CHARGES
        self._one_at_a_time = threading.Lock()
        self._known: dict[float, _Plan | None] = {}
        """By rate; None where the accountant failed."""

    def precompute(self, rate: float) -> None:
        """Compute what rounds will ask of a client with this rate; it takes seconds.

        Raises Misconfiguration: the accountant gives no answer.
        """
        if self._limit is None:
            return
        for needed in dict.fromkeys((self._highest_rate, rate)):
            plan = self._plan(needed)
            if plan is None:
                raise Misconfiguration(
                    "record_rate",
                    needed,
                    "the accountant finds no ε for it, so no limit can be kept; claim a"
                    " higher rate, up to the task's",
                )
            if plan[0] >= self._ceiling:
                # No client's rate is higher than the task's: nobody's own cap can be
                # smaller.
                return

    def is_ready(self, rate: float) -> bool:
        """Return whether ``precompute`` would answer at once."""
        if self._limit is None:
            return True
        highest = self._known.get(self._highest_rate)
        if highest is None:
            return False
        return highest[0] >= self._ceiling or self._known.get(rate) is not None

    def admits(
        self,
        rate: float,
        *,
        spent: int,
        re_releases: Mapping[int, int],
        charges: int,
    ) -> bool:
        """Return whether one more release of a version keeps a client within the limit.

        A client whose account can't be computed may not take part: that costs nobody
        else the round. ``spent`` is T_i, the versions that it was charged for,
        ``re_releases`` are of them, and ``charges`` the releases of the version in
        question that it was charged for already.
        """
        if self._limit is None:
            return True
        rounds = self._task.mechanism.releases
        versions = spent if charges else spent + 1
        further = sum(m * count for m, count in re_releases.items())
        if charges:
            further += 1
        # Below the cap of the task's rate nobody's own is needed: a thousand clients of
        # a thousand rates cost one account and not a thousand.
        for needed in dict.fromkeys((self._highest_rate, rate)):
            plan = self._plan(needed)
            if plan is None:
                continue
            most, most_further = plan
            if not further:
                if versions <= most:
                    return True
            elif needed == rate or most >= self._ceiling:
                # One plan from the first round to the last, as ``precompute`` made it.
                return versions <= min(most, rounds) and further <= most_further
        return False

    def most(self, rate: float) -> int | None:
        """Return the most participations, T at most; None without a limit."""
        if self._limit is None:
            return None
        self.precompute(rate)
        # Of the task's rate, and the own one where that is asked for: it can't be
        # smaller.
        plans = [self._known.get(known) for known in (self._highest_rate, rate)]
        largest = max(0 if plan is None else plan[0] for plan in plans)
        return min(largest, self._task.mechanism.releases)

    def left(
        self, rate: float, participations: int, re_releases: Mapping[int, int]
    ) -> int | None:
        """Return how many more versions the limit allows, each released once, if any."""
        cap = self.most(rate)
        if cap is None:
            return None
        admits = self.admits(
            rate, spent=participations, re_releases=re_releases, charges=0
        )
        return max(0, cap - participations) if admits else 0

    def _plan(self, rate: float) -> _Plan | None:
        """Return the most that a client at this rate may, computed unless known."""
        # Without the lock where it is known: a round doesn't wait for another rate's
        # account.
        if rate not in self._known:
            with self._one_at_a_time:
                if rate not in self._known:
                    self._known[rate] = self._compute(rate)
        return self._known[rate]

    def _compute(self, rate: float) -> _Plan | None:
        """Return ``_plan``; None where the accountant fails."""
        # SciPy is loaded where a task limits ε.
        from precad.accounting import exact  # noqa: PLC0415

        limit = self._limit
        assert limit is not None

        def is_within(participations: int) -> bool:
            return epsilon_spent(self._task, rate, participations, {}) <= limit

        try:
            most = exact.largest_count(is_within, self._ceiling)
            most_further = exact.most_further_releases(
                Run.of(self._task, unit_rate=rate).step(Adversary.ONE_SERVER),
                delta=self._task.privacy.delta,
                epsilon_limit=limit,
                participations=min(most, self._task.mechanism.releases),
                ceiling=self._ceiling,
            )
        except Exception:
            # Whatever the libraries under the accountant raise, it is this one rate's
            # affair.
            log.exception(
                "no account for record rate %r: clients with it don't count",
                rate,
            )
            return None
        return most, most_further


def epsilon_spent(
    task: Task,
    rate: float,
    participations: int,
    re_releases: Mapping[int, int],
) -> float:
    """Return the exact ε of one unit so far, one server curious, at the task's δ.

    ``rate`` is the owner's p_i; ``re_releases`` as in ``PrivacyCap.admits``.
    """
    from precad.accounting import exact  # noqa: PLC0415

    counts = Counter(re_releases)
    counts[0] = participations - counts.total()
    return exact.epsilon_spent(
        Run.of(task, unit_rate=rate).step(Adversary.ONE_SERVER),
        delta=task.privacy.delta,
        counts=+counts,
    )
