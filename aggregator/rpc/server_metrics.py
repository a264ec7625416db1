"""What a server shows a Prometheus, from what it keeps anyway (docs/metrics.md).

Nothing names an owner, and nothing says who was drawn.
"""

import math
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.core import Metric

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName, ReleaseCounts
from precad.accounting.guarantees import guarantees
from precad.aggregator.collect.inbox import Backlog
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.store.schema import AttemptState
from precad.aggregator.training.session import Event, Phase, RoundDone, Session
from precad.common.errors import Misconfiguration, Rejection
from precad.common.identifiers import ClientId
from precad.common.task import Task
from precad.common.wire.metrics_page import about, counter, gauge


class Metrics:
    """One server's metrics."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = defaultdict(float)
        self._cpu_seconds: dict[str, float] = defaultdict(float)
        self._backlog = Backlog()
        self._traffic: dict[str, int] = {}
        self._epsilons = Epsilons(session.task, session.register.cap)

    async def follow(self, events: AsyncIterable[Event]) -> None:
        """Add up what rounds cost, step by step; ends with the training."""
        async for event in events:
            if isinstance(event, RoundDone):
                with self._lock:
                    # Not before: what moves meanwhile says when somebody's upload came.
                    self._backlog = self._session.inbox.backlog
                    self._traffic = dict(self._session.traffic)
                    for cost in event.steps:
                        self._seconds[cost.step] += cost.seconds
                        self._cpu_seconds[cost.step] += cost.cpu_seconds

    def collect(self) -> Iterator[Metric]:
        """The present values, one metric after the other; called in a thread."""
        session = self._session
        progress = self._session.progress
        task = session.task
        store = session.store
        yield about(session.role.value, task.name)
        phases = {each.value: float(each is progress.phase) for each in Phase}
        yield gauge(
            name="phase",
            says="1 for the present phase.",
            values=phases,
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
            values=task.training.rounds,
        )
        yield gauge(
            name="owners_enrolled",
            says="Owners enrolled.",
            values=len(session.register.roster()),
        )
        said = "How often a second process came under a party's name."
        yield counter(
            name="identities_twice_total",
            says=said,
            values=sum(session.twice.values()),
        )
        yield gauge(
            name="workers",
            says="Worker processes that are up.",
            values=progress.workers,
        )
        said = "1 while the other server or the dealer is away."
        yield gauge(
            name="peers_lost",
            says=said,
            values=progress.lost_at is not None,
        )
        said = "1 while the operators of both servers must decide."
        yield gauge(
            name="needs_operators",
            says=said,
            values=progress.needs is not None,
        )
        taken = store.ledger.participations()
        yield counter(
            name="participations_total",
            says="Submissions charged.",
            values=sum(taken.values()),
        )
        by_state = store.attempts.by_state()
        by_reason = store.attempts.rejections()
        states = {each.value: by_state.get(each, 0) for each in AttemptState}
        yield gauge(
            name="attempts",
            says="Attempts by state.",
            values=states,
            label="state",
        )
        refused = {each.value: by_reason.get(each, 0) for each in Rejection}
        yield counter(
            name="rejected_total",
            says="Submissions not counted.",
            values=refused,
            label="reason",
        )
        with self._lock:
            seconds = dict(self._seconds)
            cpu = dict(self._cpu_seconds)
            backlog = self._backlog
            links = dict(self._traffic)
        yield counter(
            name="step_seconds_total",
            says="Since this start.",
            values=seconds,
            label="step",
        )
        yield counter(
            name="step_cpu_seconds_total",
            says="Of this process.",
            values=cpu,
            label="step",
        )
        said = "Whole and not matched yet: the most at once in the last round."
        yield gauge(
            name="submissions_waiting_most",
            says=said,
            values=backlog.submissions,
        )
        said = "Of bodies on the disk: the most at once in the last round."
        yield gauge(
            name="spool_bytes_most",
            says=said,
            values=backlog.spooled,
        )
        said = "Payloads since this start, up to the last round's end."
        yield counter(
            name="link_bytes_total",
            says=said,
            values=links,
            label="link",
        )
        yield from self._privacy(taken)

    def _privacy(self, taken: Mapping[ClientId, int]) -> Iterator[Metric]:
        session = self._session
        released = session.model_store.current.version
        again = session.store.ledger.re_releases()
        epsilons = self._epsilons.by_adversary(released, taken, again)
        spent = {who.value: each.spent for who, each in epsilons.items()}
        yield gauge(
            name="epsilon",
            says="Exact ε so far, for the owner with most.",
            values=spent,
            label="adversary",
        )
        left = {who.value: e.left for who, e in epsilons.items() if e.left is not None}
        said = "How much more it may become until the task is over."
        yield gauge(
            name="epsilon_left",
            says=said,
            values=left,
            label="adversary",
        )
        limit = session.task.privacy.epsilon_limit
        if limit is not None:
            said = "Where both servers stop counting an owner."
            yield gauge(
                name="epsilon_limit",
                says=said,
                values={Adversary.ONE_SERVER.value: limit},
                label="adversary",
            )


_Again = tuple[tuple[int, int], ...]
"""Versions that were released 1 + m times, by m ≥ 1, in order."""
_Found = Mapping[Adversary, float]
_KEPT = 1 << 14
"""Computed ones: of a few looks, with thousands of owners that differ."""


@dataclass(frozen=True, slots=True)
class Epsilon:
    """Exact, at the task's δ and rates, of the owner with most."""

    spent: float
    """Infinite where the accountant has no bound."""
    left: float | None
    """How much more it may become until the task is over, with its owner in every round
    that the limit leaves it. None where that has no bound."""


class Epsilons:
    """ε by adversary; a tenth of a second where a charge or a release has come."""

    def __init__(self, task: Task, cap: PrivacyCap) -> None:
        self._task = task
        self._cap = cap
        # From one look to the next most is the same, however many owners differ.
        self._once = lru_cache(_KEPT)(lambda compute, *asked: compute(*asked))

    def by_adversary(
        self,
        released: int,
        taken: Mapping[ClientId, int],
        again: Mapping[ClientId, Mapping[int, int]],
    ) -> Mapping[Adversary, Epsilon]:
        """What charges so far come to: ``taken`` is T_i, ``again`` versions of it by m ≥ 1."""
        most: dict[_Again, int] = {}
        for client, count in taken.items():
            # ε grows with the count: of owners with the same repeats the one with most
            # is enough.
            repeats = tuple(sorted(again.get(client, {}).items()))
            most[repeats] = max(most.get(repeats, 0), count)
        owners = [(count, repeats) for repeats, count in (most or {(): 0}).items()]
        now = [self._once(self._now, released, *owner) for owner in owners]
        end = [self._once(self._at_the_end, released, *owner) for owner in owners]
        found = {}
        for adversary in Adversary:
            spent = max(each[adversary] for each in now)
            left = max(each[adversary] for each in end) - spent
            found[adversary] = Epsilon(
                spent, max(0.0, left) if math.isfinite(left) else None
            )
        return found

    def _at_the_end(self, released: int, count: int, again: _Again) -> _Found:
        rounds = self._task.training.rounds
        # A version that is charged and not released yet is among both.
        total = max(count, min(count + rounds - released, rounds))
        try:
            more = self._cap.left(self._task.privacy.record_rate, count, dict(again))
        except Misconfiguration:
            return dict.fromkeys(Adversary, math.inf)
        total = total if more is None else min(total, count + more)
        return self._now(rounds, total, again)

    def _now(self, rounds: int, count: int, again: _Again) -> _Found:
        by_m = Counter(dict(again))
        by_m[0] = count - by_m.total()
        counts: ReleaseCounts = +by_m
        # Charges count that no release followed, too: a share may have left.
        run = Run.of(self._task, rounds=max(rounds, count), counts=counts)
        stated = guarantees(
            run, self._task.privacy.delta, accountants=(AccountantName.EXACT,)
        )
        return {each.adversary: each.epsilon for each in stated}
