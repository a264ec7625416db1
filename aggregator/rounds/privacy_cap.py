"""The task's privacy limit as a number of participations.

What counts is the record-level exact ε against one corrupted server (guarantee 1). A
release that was lost stays charged: where its version is released m more times, its one
step's σ becomes σ/√(1+m). ``re_releases`` are such versions of one client, by m ≥ 1.
"""

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import partial

from precad.common.clock import CLOCK, Clock
from precad.common.errors import Misconfiguration
from precad.common.task import Task

log = logging.getLogger("precad")

SPARE_CHARGES = 16
"""Charges beyond twice the task's rounds that are still told apart."""
_Account = tuple[float, tuple[tuple[int, int], ...]]
"""A record rate, and re-releases in order."""


class PrivacyCap:
    """How many participations a task's limit allows each client.

    An account takes seconds. ``precompute`` makes it where a client enrols or a server
    starts, in a thread that nobody waits for but that client; rounds look it up.
    Claimed rates lie on the task's public grid (``Enrolment``), so that clients can't
    make a server compute more than a few. What re-releases make of an account is
    computed in a thread of its own, before the operators have given their word or soon
    after; until it is known its clients sit out. Without a limit everybody may take
    part.
    """

    def __init__(self, task: Task, clock: Clock = CLOCK) -> None:
        self._task = task
        self._limit = task.privacy.epsilon_limit
        self._clock = clock
        self._highest_rate = task.privacy.record_rate
        # Beyond it a client is refused: it has been charged for two trainings' worth of
        # rounds.
        self._ceiling = 2 * task.training.rounds + SPARE_CHARGES
        self._one_at_a_time = threading.Lock()
        self._known: dict[_Account, int | None] = {}
        """The most participations; None where the accountant failed."""
        self._started: set[_Account] = set()
        """What a thread of its own is to compute, or has."""

    def precompute(self, record_rate: float) -> None:
        """Compute what rounds will ask of a client with this rate; seconds the first time.

        Raises Misconfiguration: the accountant gives no answer.
        """
        if self._limit is None:
            return
        for rate in dict.fromkeys((self._highest_rate, record_rate)):
            cap = self._most(rate)
            if cap is None:
                remedy = (
                    "so no limit can be kept; claim a higher rate, up to the task's"
                )
                why = f"the accountant finds no ε for it, {remedy}"
                raise Misconfiguration("record_rate", rate, why)
            if cap >= self._ceiling:
                # No client's rate is higher than the task's: nobody's own cap can be
                # smaller.
                return

    def is_ready(self, record_rate: float) -> bool:
        """Return whether ``precompute`` would answer at once."""
        if self._limit is None:
            return True
        highest = self._known.get((self._highest_rate, ()))
        return highest is not None and (
            highest >= self._ceiling or self._known.get((record_rate, ())) is not None
        )

    def precompute_re_release(
        self, record_rate: float, re_releases: Mapping[int, int], charges: int
    ) -> _Account | None:
        """Have computed, in a thread, what another release of a version needs; as ``admits``.

        Return the account; None where no version is released again, or nothing is
        limited.
        """
        counts = Counter(re_releases)
        if charges:
            counts[charges - 1] -= 1
            counts[charges] += 1
        again = tuple(
            sorted((m, count) for m, count in counts.items() if m > 0 and count > 0)
        )
        if not again or self._limit is None:
            return None
        account = record_rate, again
        if account not in self._started:
            self._started.add(account)
            self._clock.start_thread("account", partial(self._compute_once, account))
        return account

    def admits(
        self,
        record_rate: float,
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
        account = self.precompute_re_release(record_rate, re_releases, charges)
        if account is not None:
            most = self._known.get(account)
            return most is not None and spent + (charges == 0) <= most
        # Below the cap of the task's rate nobody's own is needed: a thousand clients of
        # a thousand rates cost one account and not a thousand.
        caps = (
            self._most(rate)
            for rate in dict.fromkeys((self._highest_rate, record_rate))
        )
        return any(cap is not None and spent < cap for cap in caps)

    def most(self, record_rate: float) -> int | None:
        """Return the most participations, up to the task's rounds; None without a limit."""
        if self._limit is None:
            return None
        self.precompute(record_rate)
        # Of the task's rate, and the own one where that is asked for: it can't be
        # smaller.
        known = (
            self._known.get((rate, ())) for rate in (self._highest_rate, record_rate)
        )
        return min(max(cap or 0 for cap in known), self._task.training.rounds)

    def left(
        self, record_rate: float, participations: int, re_releases: Mapping[int, int]
    ) -> int | None:
        """Return how many more versions the limit allows, released once each; None without one."""
        cap = self.most(record_rate)
        limit = self._limit
        if cap is None or limit is None:
            return None
        left = max(0, cap - participations)
        if not re_releases:
            return left

        def passes(more: int) -> bool:
            spent = participations + more
            return epsilon_spent(self._task, record_rate, spent, re_releases) > limit

        # The first of the participations to come that passes the limit; ε only grows.
        return bisect_left(range(1, left + 1), True, key=passes)  # noqa: FBT003 -- what is looked for

    def _most(self, record_rate: float) -> int | None:
        self._compute_once((record_rate, ()))
        return self._known[record_rate, ()]

    def _compute_once(self, account: _Account) -> None:
        # Without the lock where it is known: a round doesn't wait for another rate's
        # account.
        if account not in self._known:
            with self._one_at_a_time:
                if account not in self._known:
                    self._known[account] = self._compute(account)

    def _compute(self, account: _Account) -> int | None:
        # SciPy is loaded where a task limits ε.
        from precad.accounting import exact  # noqa: PLC0415

        record_rate, again = account
        repeated = sum(count for _, count in again)
        limit = self._limit
        assert limit is not None

        def within(participations: int) -> bool:
            # Versions that were charged already are no question.
            return participations < repeated or (
                epsilon_spent(self._task, record_rate, participations, dict(again))
                <= limit
            )

        try:
            return exact.largest_count(within, self._ceiling)
        except Exception:
            # Whatever the libraries under the accountant raise, it is this one rate's
            # affair.
            log.exception(
                "no account for record rate %r: clients with it don't count",
                record_rate,
            )
            return None


def epsilon_spent(
    task: Task,
    record_rate: float,
    spent: int,
    re_releases: Mapping[int, int],
) -> float:
    """Return the exact ε of one record so far, at the task's σ and δ; as ``PrivacyCap.admits``."""
    from precad.accounting import exact  # noqa: PLC0415

    counts = Counter(re_releases)
    counts[0] = spent - counts.total()
    return exact.record_epsilon(
        record_rate=record_rate,
        noise_multiplier=task.privacy.noise_multiplier,
        delta=task.privacy.delta,
        counts=+counts,
    )
