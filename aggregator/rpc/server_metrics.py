"""What a server shows a Prometheus, from what it keeps anyway (docs/metrics.md).

Nothing names an owner, and nothing says who was drawn.
"""

import math
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache

from prometheus_client.core import Metric

from precad.accounting import AccountantName, Adversary, ReleaseCounts, Run
from precad.accounting.guarantees import guarantees
from precad.aggregator.collect import Backlog
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.rounds.start_attempt import rounds_below_least
from precad.aggregator.store import AttemptState
from precad.aggregator.training import Event, Phase, RoundDone, Session
from precad.common import (
    ClientId,
    Misconfiguration,
    Rejection,
    StorageFailure,
    Task,
    frozen_dataclass,
    log,
)
from precad.common.identity import Principal
from precad.common.wire import about, metric


class Metrics:
    """One server's metrics."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        """Guards what ``follow`` writes and ``collect`` reads."""
        self._seconds: dict[str, float] = defaultdict(float)
        """Wall seconds by step, since this start."""
        self._cpu_seconds: dict[str, float] = defaultdict(float)
        self._backlog = Backlog()
        self._traffic: dict[str, int] = {}
        """Payload bytes by link, up to the last round's end."""
        self._met: Mapping[Principal, datetime] = {}
        """Ends of other parties' certificates, as of the last round's end."""
        self._epsilons = Epsilons(session.task, session.register.cap)
        self._at_one_owner = Epsilons(session.task.at_one_owner, session.register.cap)
        self._store_up = True

    async def follow(self, events: AsyncIterable[Event]) -> None:
        """Add up what rounds cost, step by step; ends with the training."""
        async for event in events:
            if isinstance(event, RoundDone):
                with self._lock:
                    # Not before the round's end: what moves meanwhile says when
                    # somebody's upload came.
                    self._backlog = self._session.inbox.backlog
                    self._traffic = dict(self._session.traffic)
                    self._met = dict(self._session.identity.met)
                    for cost in event.steps:
                        self._seconds[cost.step] += cost.seconds
                        self._cpu_seconds[cost.step] += cost.cpu_seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the present values, one metric after the other; called in a thread."""
        session = self._session
        yield from about(session.task.name, session.identity, self._met)
        yield from self._progress()
        yield from self._costs()
        stored = None
        try:
            stored = list(self._stored())
        except StorageFailure as error:
            if self._store_up:
                log.warning("metrics lack what the database has: %s", error)
        self._store_up = stored is not None
        yield metric(
            "store_up",
            self._store_up,
            says="1 while the database answers.",
        )
        yield from stored or ()

    def _stored(self) -> Iterator[Metric]:
        """Yield what the database says. Raises StorageFailure: it doesn't answer."""
        session = self._session
        yield metric(
            "rounds_below_least",
            rounds_below_least(session.store, session.task, session.version),
            says="Newest rounds in a row with too few owners, 3 at most.",
        )
        yield metric(
            "owners_ending_early",
            len(session.early_ends()),
            says="Owners whose limit is expected to end before the training.",
        )
        yield metric(
            "newest_attempt",
            session.store.attempts.newest(),
            says="The newest that was opened; -1: none.",
        )
        participations = session.store.ledger.participations()
        yield from self._submissions(participations)
        yield from self._privacy(participations)

    def _progress(self) -> Iterator[Metric]:
        """Yield how far the training is, and who is there for it."""
        session = self._session
        progress = session.progress
        yield metric(
            "phase",
            {phase.value: float(phase is progress.phase) for phase in Phase},
            says="1 for the present phase.",
            label="phase",
        )
        yield metric(
            "rounds_done",
            session.model_store.current.version,
            says="Versions released.",
        )
        yield metric(
            "rounds_planned",
            session.task.mechanism.releases,
            says="T of the task.",
        )
        disk = shutil.disk_usage(session.model_store.path.parent)
        yield metric(
            "disk_free_ratio",
            disk.free / disk.total,
            says="Of the state folder's disk.",
        )
        yield metric(
            "owners_enrolled",
            len(session.register.roster()),
            says="Owners enrolled.",
        )
        yield metric(
            "identities_twice_total",
            sum(session.twice.values()),
            says="How often a second process came under a party's name.",
        )
        yield metric(
            "workers",
            progress.workers,
            says="Worker processes that are up.",
        )
        yield metric(
            "peers_lost",
            progress.lost_at is not None,
            says="1 while the other server or the dealer is away.",
        )
        yield metric(
            "needs_operators",
            progress.needs is not None,
            says="1 while the operators of both servers must decide.",
        )

    def _submissions(self, participations: Mapping[ClientId, int]) -> Iterator[Metric]:
        """Yield what became of submissions and attempts, over all owners together."""
        attempts = self._session.store.attempts
        yield metric(
            "participations_total",
            sum(participations.values()),
            says="Submissions charged.",
        )
        by_state = attempts.by_state()
        by_reason = attempts.rejections()
        yield metric(
            "attempts",
            {state.value: by_state.get(state, 0) for state in AttemptState},
            says="Attempts by state.",
            label="state",
        )
        yield metric(
            "rejected_total",
            {reason.value: by_reason.get(reason, 0) for reason in Rejection},
            says="Submissions not counted.",
            label="reason",
        )

    def _costs(self) -> Iterator[Metric]:
        """Yield what rounds cost up to the last round's end: time, room and traffic."""
        with self._lock:
            seconds = dict(self._seconds)
            cpu_seconds = dict(self._cpu_seconds)
            backlog = self._backlog
            traffic = dict(self._traffic)
        yield metric(
            "step_seconds_total",
            seconds,
            says="Since this start.",
            label="step",
        )
        yield metric(
            "step_cpu_seconds_total",
            cpu_seconds,
            says="Of this process.",
            label="step",
        )
        yield metric(
            "submissions_waiting_most",
            backlog.submissions,
            says="Whole and not matched yet: the most at once in the last round.",
        )
        yield metric(
            "spool_bytes_most",
            backlog.spooled,
            says="Of bodies on the disk: the most at once in the last round.",
        )
        yield metric(
            "link_bytes_total",
            traffic,
            says="Payloads since this start, up to the last round's end.",
            label="link",
        )

    def _privacy(self, participations: Mapping[ClientId, int]) -> Iterator[Metric]:
        """Yield ε by adversary: spent, left, and the limit if the task has one."""
        session = self._session
        released = session.model_store.current.version
        re_releases = session.store.ledger.re_releases()
        epsilons = self._epsilons.by_adversary(released, participations, re_releases)
        yield metric(
            "epsilon",
            {adversary.value: epsilon.spent for adversary, epsilon in epsilons.items()},
            says="Exact ε so far, for the owner with most.",
            label="adversary",
        )
        if session.task.mechanism.owners_per_unit > 1:
            at_one = self._at_one_owner.by_adversary(
                released, participations, re_releases
            )
            yield metric(
                "epsilon_at_one_owner",
                {
                    adversary.value: epsilon.spent
                    for adversary, epsilon in at_one.items()
                },
                says="The same of a unit that is at one owner alone.",
                label="adversary",
            )
        yield metric(
            "epsilon_left",
            {
                adversary.value: epsilon.left
                for adversary, epsilon in epsilons.items()
                if epsilon.left is not None
            },
            says="How much more it may become until the task is over.",
            label="adversary",
        )
        limit = session.task.privacy.epsilon_limit
        if limit is not None:
            yield metric(
                "epsilon_limit",
                {Adversary.ONE_SERVER.value: limit},
                says="Where both servers stop counting an owner.",
                label="adversary",
            )


_ReReleases = tuple[tuple[int, int], ...]
"""Pairs of m ≥ 1, and how many of an owner's versions were released 1 + m times; in
order of m."""
_EpsilonByAdversary = Mapping[Adversary, float]
_KEPT = 1 << 13
"""Results that are kept, now and at the end together: those of a few looks, with
thousands of owners that differ."""


@frozen_dataclass
class Epsilon:
    """Exact ε at the task's δ and rates, of the owner with most."""

    spent: float
    """Infinite where the accountant has no bound."""
    left: float | None
    """How much more it may become until the task is over, with its owner in every round
    that the limit leaves it. None where that has no bound."""


class Epsilons:
    """Computes ε by adversary.

    It takes a tenth of a second where a charge or a release has come since the last
    look.
    """

    def __init__(self, task: Task, cap: PrivacyCap) -> None:
        self._task = task
        self._cap = cap
        # From one look to the next most owners' results are the same, however many
        # owners differ.
        self._kept = lru_cache(_KEPT)(self._now_and_at_the_end)

    def by_adversary(
        self,
        released: int,
        taken: Mapping[ClientId, int],
        again: Mapping[ClientId, Mapping[int, int]],
    ) -> Mapping[Adversary, Epsilon]:
        """Return what the charges so far come to, against each adversary.

        ``released`` is the number of versions released so far. ``taken`` is each
        client's T_i, the versions that it was charged for. ``again`` says by m ≥ 1 how
        many of these were released 1 + m times.
        """
        most: dict[_ReReleases, int] = {}
        for client, count in taken.items():
            # ε grows with the count: of owners with the same re-releases the one with
            # the most versions is enough.
            re_releases = tuple(sorted(again.get(client, {}).items()))
            most[re_releases] = max(most.get(re_releases, 0), count)
        if not most:
            # Nobody was charged yet.
            most[()] = 0
        of_owners = [
            self._kept(released, count, re_releases)
            for re_releases, count in most.items()
        ]
        epsilons = {}
        for adversary in Adversary:
            spent = max(now[adversary] for now, _ in of_owners)
            growth = max(end[adversary] for _, end in of_owners) - spent
            left = max(0.0, growth) if math.isfinite(growth) else None
            epsilons[adversary] = Epsilon(spent, left)
        return epsilons

    def _now_and_at_the_end(
        self, released: int, count: int, re_releases: _ReReleases
    ) -> tuple[_EpsilonByAdversary, _EpsilonByAdversary]:
        """Return an owner's ε now, and at the task's end if it is in every round.

        It is in as many of them as the limit leaves it. Infinite where the accountant
        has no bound.
        """
        now = self._now(released, count, re_releases)
        rounds = self._task.mechanism.releases
        # A version that is charged and not released yet is among both.
        total = max(count, min(count + rounds - released, rounds))
        try:
            left = self._cap.left(
                self._task.mechanism.unit_rate, count, dict(re_releases)
            )
        except Misconfiguration:
            return now, dict.fromkeys(Adversary, math.inf)
        if left is not None:
            total = min(total, count + left)
        return now, self._now(rounds, total, re_releases)

    def _now(
        self, rounds: int, count: int, re_releases: _ReReleases
    ) -> _EpsilonByAdversary:
        """Return ε after ``rounds`` releases, of one owner.

        It was charged for ``count`` versions, with ``re_releases`` among them.
        """
        by_m = Counter(dict(re_releases))
        by_m[0] = count - by_m.total()
        counts: ReleaseCounts = +by_m
        # Charges count that no release followed, too: a share may have left.
        run = Run.of(self._task, rounds=max(rounds, count), counts=counts)
        stated = guarantees(
            run, self._task.privacy.delta, accountants=(AccountantName.EXACT,)
        )
        return {guarantee.adversary: guarantee.epsilon for guarantee in stated}
