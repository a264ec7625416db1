"""What a server shows a Prometheus, from what it keeps anyway (docs/metrics.md).

Nothing names an owner, and nothing says who was drawn.
"""

import logging
import math
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from prometheus_client.core import Metric

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName, ReleaseCounts
from precad.accounting.guarantees import guarantees
from precad.aggregator.collect.inbox import Backlog
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.rounds.start_attempt import rounds_below_least
from precad.aggregator.store.schema import AttemptState
from precad.aggregator.training.session import Event, Phase, RoundDone, Session
from precad.common.errors import Misconfiguration, Rejection, StorageFailure
from precad.common.identifiers import ClientId
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task
from precad.common.wire.metrics_page import about, counter, gauge

log = logging.getLogger("precad")


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
        stored: list[Metric] | None = None
        try:
            stored = list(self._stored())
        except StorageFailure as error:
            if self._store_up:
                log.warning("metrics lack what the database has: %s", error)
        self._store_up = stored is not None
        yield gauge(
            name="store_up",
            says="1 while the database answers.",
            values=self._store_up,
        )
        yield from stored or ()

    def _stored(self) -> Iterator[Metric]:
        """Yield what the database says. Raises StorageFailure: it doesn't answer."""
        session = self._session
        yield gauge(
            name="rounds_below_least",
            says="Newest rounds in a row with too few owners, 3 at most.",
            values=rounds_below_least(session.store, session.task, session.version),
        )
        yield gauge(
            name="owners_ending_early",
            says="Owners whose limit is expected to end before the training.",
            values=len(session.early_ends()),
        )
        yield gauge(
            name="newest_attempt",
            says="The newest that was opened; -1: none.",
            values=session.store.attempts.newest(),
        )
        participations = session.store.ledger.participations()
        yield from self._submissions(participations)
        yield from self._privacy(participations)

    def _progress(self) -> Iterator[Metric]:
        """Yield how far the training is, and who is there for it."""
        session = self._session
        progress = session.progress
        yield gauge(
            name="phase",
            says="1 for the present phase.",
            values={phase.value: float(phase is progress.phase) for phase in Phase},
            label="phase",
        )
        yield gauge(
            name="rounds_done",
            says="Versions released.",
            values=session.model_store.current.version,
        )
        yield gauge(
            name="rounds_planned",
            says="T of the task.",
            values=session.task.mechanism.releases,
        )
        disk = shutil.disk_usage(session.model_store.path.parent)
        yield gauge(
            name="disk_free_ratio",
            says="Of the state folder's disk.",
            values=disk.free / disk.total,
        )
        yield gauge(
            name="owners_enrolled",
            says="Owners enrolled.",
            values=len(session.register.roster()),
        )
        yield counter(
            name="identities_twice_total",
            says="How often a second process came under a party's name.",
            values=sum(session.twice.values()),
        )
        yield gauge(
            name="workers",
            says="Worker processes that are up.",
            values=progress.workers,
        )
        yield gauge(
            name="peers_lost",
            says="1 while the other server or the dealer is away.",
            values=progress.lost_at is not None,
        )
        yield gauge(
            name="needs_operators",
            says="1 while the operators of both servers must decide.",
            values=progress.needs is not None,
        )

    def _submissions(self, participations: Mapping[ClientId, int]) -> Iterator[Metric]:
        """Yield what became of submissions and attempts, over all owners together."""
        attempts = self._session.store.attempts
        yield counter(
            name="participations_total",
            says="Submissions charged.",
            values=sum(participations.values()),
        )
        by_state = attempts.by_state()
        by_reason = attempts.rejections()
        yield gauge(
            name="attempts",
            says="Attempts by state.",
            values={state.value: by_state.get(state, 0) for state in AttemptState},
            label="state",
        )
        yield counter(
            name="rejected_total",
            says="Submissions not counted.",
            values={reason.value: by_reason.get(reason, 0) for reason in Rejection},
            label="reason",
        )

    def _costs(self) -> Iterator[Metric]:
        """Yield what rounds cost up to the last round's end: time, room and traffic."""
        with self._lock:
            seconds = dict(self._seconds)
            cpu_seconds = dict(self._cpu_seconds)
            backlog = self._backlog
            traffic = dict(self._traffic)
        yield counter(
            name="step_seconds_total",
            says="Since this start.",
            values=seconds,
            label="step",
        )
        yield counter(
            name="step_cpu_seconds_total",
            says="Of this process.",
            values=cpu_seconds,
            label="step",
        )
        yield gauge(
            name="submissions_waiting_most",
            says="Whole and not matched yet: the most at once in the last round.",
            values=backlog.submissions,
        )
        yield gauge(
            name="spool_bytes_most",
            says="Of bodies on the disk: the most at once in the last round.",
            values=backlog.spooled,
        )
        yield counter(
            name="link_bytes_total",
            says="Payloads since this start, up to the last round's end.",
            values=traffic,
            label="link",
        )

    def _privacy(self, participations: Mapping[ClientId, int]) -> Iterator[Metric]:
        """Yield ε by adversary: spent, left, and the limit if the task has one."""
        session = self._session
        released = session.model_store.current.version
        re_releases = session.store.ledger.re_releases()
        epsilons = self._epsilons.by_adversary(released, participations, re_releases)
        yield gauge(
            name="epsilon",
            says="Exact ε so far, for the owner with most.",
            values={
                adversary.value: epsilon.spent
                for adversary, epsilon in epsilons.items()
            },
            label="adversary",
        )
        if session.task.mechanism.owners_per_unit > 1:
            at_one = self._at_one_owner.by_adversary(
                released, participations, re_releases
            )
            yield gauge(
                name="epsilon_at_one_owner",
                says="The same of a unit that is at one owner alone.",
                values={
                    adversary.value: epsilon.spent
                    for adversary, epsilon in at_one.items()
                },
                label="adversary",
            )
        yield gauge(
            name="epsilon_left",
            says="How much more it may become until the task is over.",
            values={
                adversary.value: epsilon.left
                for adversary, epsilon in epsilons.items()
                if epsilon.left is not None
            },
            label="adversary",
        )
        limit = session.task.privacy.epsilon_limit
        if limit is not None:
            yield gauge(
                name="epsilon_limit",
                says="Where both servers stop counting an owner.",
                values={Adversary.ONE_SERVER.value: limit},
                label="adversary",
            )


_ReReleases = tuple[tuple[int, int], ...]
"""Pairs of m ≥ 1, and how many of an owner's versions were released 1 + m times; in
order of m."""
_EpsilonByAdversary = Mapping[Adversary, float]
_KEPT = 1 << 13
"""Results that are kept, now and at the end each: those of a few looks, with thousands
of owners that differ."""


@dataclass(frozen=True, slots=True)
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
        self._kept_now = lru_cache(_KEPT)(self._now)
        self._kept_at_the_end = lru_cache(_KEPT)(self._at_the_end)

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
        now = [
            self._kept_now(released, count, re_releases)
            for re_releases, count in most.items()
        ]
        at_the_end = [
            self._kept_at_the_end(released, count, re_releases)
            for re_releases, count in most.items()
        ]
        epsilons = {}
        for adversary in Adversary:
            spent = max(epsilon[adversary] for epsilon in now)
            growth = max(epsilon[adversary] for epsilon in at_the_end) - spent
            left = max(0.0, growth) if math.isfinite(growth) else None
            epsilons[adversary] = Epsilon(spent, left)
        return epsilons

    def _at_the_end(
        self, released: int, count: int, re_releases: _ReReleases
    ) -> _EpsilonByAdversary:
        """Return ε at the task's end of an owner that is in every round from now on.

        It is in as many of them as the limit leaves it. Infinite where the accountant
        has no bound.
        """
        rounds = self._task.mechanism.releases
        # A version that is charged and not released yet is among both.
        total = max(count, min(count + rounds - released, rounds))
        try:
            left = self._cap.left(
                self._task.mechanism.unit_rate, count, dict(re_releases)
            )
        except Misconfiguration:
            return dict.fromkeys(Adversary, math.inf)
        if left is not None:
            total = min(total, count + left)
        return self._now(rounds, total, re_releases)

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
