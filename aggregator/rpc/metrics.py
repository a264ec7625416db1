"""What a server shows a Prometheus: counts by outcome, reason, step and link, and ε; no owner.

Computed when it is asked for, from what the server keeps anyway. docs/metrics.md says what each is,
and what is left out: nothing names an owner, and nothing says who was drawn.
"""

import threading
from collections import defaultdict
from collections.abc import AsyncIterable, Iterator, Mapping

from precad import __version__
from precad.accounting.adversaries import Adversary
from precad.aggregator.collect.inbox import Backlog
from precad.aggregator.rounds.journal import AttemptState
from precad.aggregator.rpc.epsilons import Epsilons
from precad.aggregator.training.feed import Event, RoundDone
from precad.aggregator.training.session import Phase, Session
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId
from precad.common.wire.exposition import Metric, by, one


class Metrics:
    """One server's metrics.

    Args:
        session: the server.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = defaultdict(float)
        self._cpu_seconds: dict[str, float] = defaultdict(float)
        self._backlog = Backlog()
        self._traffic: dict[str, int] = {}
        self._epsilons = Epsilons(session.task)

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
        session, progress = self._session, self._session.progress
        task, store = session.task, session.store
        about = {"role": session.role.value, "task": task.name, "version": __version__}
        yield Metric("gauge", "info", "What runs here.", [(about, 1)])
        phases = by("phase", {each.value: each is progress.phase for each in Phase})
        yield Metric("gauge", "phase", "1 for the present phase.", phases)
        released = one(session.shelf.current.version)
        yield Metric("gauge", "rounds_done", "Versions released.", released)
        yield Metric("gauge", "rounds_planned", "T of the task.", one(task.training.rounds))
        enrolled = one(len(session.register.roster()))
        yield Metric("gauge", "owners_enrolled", "Owners enrolled.", enrolled)
        twice = one(sum(session.twice.values()))
        said = "How often a second process came under a party's name."
        yield Metric("counter", "identities_twice_total", said, twice)
        yield Metric("gauge", "workers", "Worker processes that are up.", one(progress.workers))
        lost = one(progress.lost_at is not None)
        said = "1 while the other server or the dealer is away."
        yield Metric("gauge", "peers_lost", said, lost)
        waits = one(progress.needs is not None)
        said = "1 while the operators of both servers must decide."
        yield Metric("gauge", "needs_operators", said, waits)
        taken = store.participations()
        charged = one(sum(taken.values()))
        yield Metric("counter", "participations_total", "Submissions charged.", charged)
        by_state, by_reason = store.attempt_states(), store.rejections()
        states = by("state", {each.value: by_state.get(each, 0) for each in AttemptState})
        yield Metric("gauge", "attempts", "Attempts by state.", states)
        refused = by("reason", {each.value: by_reason.get(each, 0) for each in Rejection})
        yield Metric("counter", "rejected_total", "Submissions not counted.", refused)
        with self._lock:
            seconds, cpu = by("step", self._seconds), by("step", self._cpu_seconds)
            backlog, links = self._backlog, by("link", self._traffic)
        yield Metric("counter", "step_seconds_total", "Since this start.", seconds)
        yield Metric("counter", "step_cpu_seconds_total", "Of this process.", cpu)
        waiting, spooled = one(backlog.submissions), one(backlog.spooled)
        said = "Whole and not matched yet: the most at once in the last round."
        yield Metric("gauge", "submissions_waiting_most", said, waiting)
        said = "Of bodies on the disk: the most at once in the last round."
        yield Metric("gauge", "spool_bytes_most", said, spooled)
        said = "Payloads since this start, up to the last round's end."
        yield Metric("counter", "link_bytes_total", said, links)
        yield from self._privacy(taken)

    def _privacy(self, taken: Mapping[ClientId, int]) -> Iterator[Metric]:
        released, again = self._session.shelf.current.version, self._session.store.upgrades()
        epsilons = self._epsilons.by_adversary(released, taken, again)
        spent = by("adversary", {who.value: each.spent for who, each in epsilons.items()})
        said = "Exact ε so far, for the owner with most."
        yield Metric("gauge", "epsilon", said, spent)
        left = {who.value: e.left for who, e in epsilons.items() if e.left is not None}
        said = "How much more it may become until the task is over."
        yield Metric("gauge", "epsilon_left", said, by("adversary", left))
        limit = self._session.task.privacy.epsilon_limit
        if limit is not None:
            said = "Where both servers stop counting an owner."
            at = by("adversary", {Adversary.ONE_SERVER.value: limit})
            yield Metric("gauge", "epsilon_limit", said, at)
