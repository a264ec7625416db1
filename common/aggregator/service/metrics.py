"""What a server shows a Prometheus: counts by outcome, reason, step and link, and ε; no owner.

Computed when it is asked for, from what the server keeps anyway. docs/metrics.md says what each is,
and what is left out: nothing names an owner, and nothing says who was drawn.
"""

import threading
from collections import defaultdict
from collections.abc import AsyncIterable, Iterator, Mapping

from precad import __version__
from precad.common.aggregator.round.cap import epsilon_spent
from precad.common.aggregator.round.journal import AttemptState
from precad.common.aggregator.training.feed import Event, RoundDone
from precad.common.aggregator.training.session import Phase, Session
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
        self._spent: dict[tuple[int, tuple[tuple[int, int], ...]], float] = {}

    async def follow(self, events: AsyncIterable[Event]) -> None:
        """Add up what rounds cost, step by step; ends with the training."""
        async for event in events:
            if isinstance(event, RoundDone):
                with self._lock:
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
        yield Metric("counter", "step_seconds_total", "Since this start.", seconds)
        yield Metric("counter", "step_cpu_seconds_total", "Of this process.", cpu)
        links = by("link", dict(session.traffic))
        yield Metric("counter", "link_bytes_total", "Payloads since this start.", links)
        said = "Exact ε of a record against one server so far, for the owner with most."
        yield Metric("gauge", "record_epsilon", said, one(self._epsilon(taken)))
        if task.privacy.epsilon_limit is not None:
            said = "Where both servers stop counting an owner."
            yield Metric("gauge", "record_epsilon_limit", said, one(task.privacy.epsilon_limit))

    def _epsilon(self, taken: Mapping[ClientId, int]) -> float:
        """The largest, at the task's rate; versions released again included."""
        task, again = self._session.task, self._session.store.upgrades()
        cases = {
            (count, tuple(sorted(again.get(client, {}).items()))) for client, count in taken.items()
        }
        # Computed once for each case: it takes a moment.
        self._spent = {
            case: self._spent[case]
            if case in self._spent
            else epsilon_spent(task, task.privacy.record_rate, case[0], dict(case[1]))
            for case in cases
        }
        return max(self._spent.values(), default=0.0)
