"""The task's privacy limit as a number of participations.

What counts is the exact ε of one unit (a record, in most tasks) against one corrupted
server: guarantee 1. A release that was lost stays charged: where its version is
released m more times, its one step's σ becomes σ/√(1+m). ``re_releases`` are such
versions of one client, by m ≥ 1.
"""

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import partial

from precad.accounting.adversaries import Adversary, Run
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Misconfiguration
from precad.common.task import Task

log = logging.getLogger("precad")

SPARE_CHARGES = 16
"""Charges beyond twice the task's rounds that are still told apart."""
_Account = tuple[float, tuple[tuple[int, int], ...]]
"""A sampling rate, and re-releases in order of m."""


class PrivacyCap:
    """How many participations a task's limit allows each client.

    An account takes seconds. ``precompute`` makes it where a client enrols or a server
    starts, in a thread that nobody waits for but that client; rounds look it up.
    Claimed rates are of a short public list (``Mechanism.unit_rates``), so that clients
    can't make a server compute more than a few. What re-releases make of an account is
    computed in a thread of its own, before the operators have given their word or soon
    after; until it is known its clients sit out. Without a limit everybody may take
    part.
    """

    def __init__(self, task: Task, clock: Clock = CLOCK) -> None:
        self._task = task
        self._limit = task.privacy.epsilon_limit
        self._clock = clock
        self._highest_rate = task.mechanism.unit_rate
        # Beyond it a client is refused: it has been charged for two trainings' worth of
        # rounds.
        self._ceiling = 2 * task.mechanism.releases + SPARE_CHARGES
        self._one_at_a_time = threading.Lock()
        self._known: dict[_Account, int | None] = {}
        """The most participations; None where the accountant failed."""
        self._started: set[_Account] = set()
        """What a thread of its own is to compute, or has."""

    def precompute(self, rate: float) -> None:
        """Compute what rounds will ask of a client with this rate; it takes seconds.

        Raises Misconfiguration: the accountant gives no answer.
        """
        if self._limit is None:
            return
        for needed in dict.fromkeys((self._highest_rate, rate)):
            cap = self._most(needed)
            if cap is None:
                raise Misconfiguration(
                    "record_rate",
                    needed,
                    "the accountant finds no ε for it, so no limit can be kept; claim a"
                    " higher rate, up to the task's",
                )
            if cap >= self._ceiling:
                # No client's rate is higher than the task's: nobody's own cap can be
                # smaller.
                return

    def is_ready(self, rate: float) -> bool:
        """Return whether ``precompute`` would answer at once."""
        if self._limit is None:
            return True
        highest = self._known.get((self._highest_rate, ()))
        if highest is None:
            return False
        return highest >= self._ceiling or self._known.get((rate, ())) is not None

    def precompute_re_release(
        self, rate: float, re_releases: Mapping[int, int], charges: int
    ) -> _Account | None:
        """Start, in a thread, what another release of a version needs; as ``admits``.

        Return the account; None where no version is released again, or nothing is
        limited.
        """
        counts = Counter(re_releases)
        if charges:
            counts[charges - 1] -= 1
            counts[charges] += 1
        released_again = tuple(
            sorted((m, count) for m, count in counts.items() if m > 0 and count > 0)
        )
        if not released_again or self._limit is None:
            return None
        account = rate, released_again
        if account not in self._started:
            self._started.add(account)
            self._clock.start_thread("account", partial(self._compute_once, account))
        return account

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
        else the round. Nor may one whose account with re-releases isn't known yet: it
        is begun. ``spent`` is T_i, the versions that it was charged for,
        ``re_releases`` are of them, and ``charges`` the releases of the version in
        question that it was charged for already.
        """
        if self._limit is None:
            return True
        account = self.precompute_re_release(rate, re_releases, charges)
        if account is not None:
            most = self._known.get(account)
            new_versions = 1 if charges == 0 else 0
            return most is not None and spent + new_versions <= most
        # Below the cap of the task's rate nobody's own is needed: a thousand clients of
        # a thousand rates cost one account and not a thousand.
        for needed in dict.fromkeys((self._highest_rate, rate)):
            cap = self._most(needed)
            if cap is not None and spent < cap:
                return True
        return False

    def most(self, rate: float) -> int | None:
        """Return the most participations, T at most; None without a limit."""
        if self._limit is None:
            return None
        self.precompute(rate)
        # Of the task's rate, and the own one where that is asked for: it can't be
        # smaller.
        caps = [
            self._known.get((known_rate, ()))
            for known_rate in (self._highest_rate, rate)
        ]
        largest = max(cap or 0 for cap in caps)
        return min(largest, self._task.mechanism.releases)

    def left(
        self, rate: float, participations: int, re_releases: Mapping[int, int]
    ) -> int | None:
        """Return how many more versions the limit allows, each released once, if any."""
        cap = self.most(rate)
        limit = self._limit
        if cap is None or limit is None:
            return None
        left = max(0, cap - participations)
        if not re_releases:
            return left

        def passes(further: int) -> bool:
            spent = participations + further
            return epsilon_spent(self._task, rate, spent, re_releases) > limit

        # The first of the participations to come that passes the limit; ε only grows.
        return bisect_left(range(1, left + 1), x=True, key=passes)

    def _most(self, rate: float) -> int | None:
        """Return the cap without re-releases, computed now if it isn't known."""
        self._compute_once((rate, ()))
        return self._known[rate, ()]

    def _compute_once(self, account: _Account) -> None:
        """Compute an account unless it is known, one at a time."""
        # Without the lock where it is known: a round doesn't wait for another rate's
        # account.
        if account not in self._known:
            with self._one_at_a_time:
                if account not in self._known:
                    self._known[account] = self._compute(account)

    def _compute(self, account: _Account) -> int | None:
        """Return an account's most participations; None where the accountant fails."""
        # SciPy is loaded where a task limits ε.
        from precad.accounting import exact  # noqa: PLC0415

        rate, released_again = account
        repeated_versions = sum(count for _, count in released_again)
        re_releases = dict(released_again)
        limit = self._limit
        assert limit is not None

        def is_within(participations: int) -> bool:
            # Versions that were charged already are no question.
            if participations < repeated_versions:
                return True
            spent = epsilon_spent(self._task, rate, participations, re_releases)
            return spent <= limit

        try:
            return exact.largest_count(is_within, self._ceiling)
        except Exception:
            # Whatever the libraries under the accountant raise, it is this one rate's
            # affair.
            log.exception(
                "no account for record rate %r: clients with it don't count",
                rate,
            )
            return None


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
