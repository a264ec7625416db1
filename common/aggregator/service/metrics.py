"""What a server shows a Prometheus: counts by outcome, reason, step and link, and ε; no owner.

Computed when it is asked for, from what the server keeps anyway. docs/metrics.md says what each is,
and what is left out: nothing names an owner, and nothing says who was drawn.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from precad import __version__
from precad.common.aggregator.round.cap import epsilon_spent
from precad.common.aggregator.training.feed import Event, RoundDone
from precad.common.aggregator.training.session import Phase, Session
from precad.common.errors import Misconfiguration, MissingPackage
from precad.common.identifiers import ClientId

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "precad"


class Metrics:
    """One server's metrics; a Prometheus collector.

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
        """The present values, one family after the other; called in the exporter's thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        session, progress = self._session, self._session.progress
        task, store = session.task, session.store

        def gauge(name: str, said: str, value: float) -> Metric:
            return GaugeMetricFamily(f"{PREFIX}_{name}", said, value=value)

        def by(
            kind: type[CounterMetricFamily | GaugeMetricFamily],
            name: str,
            said: str,
            label: str,
            values: Iterable[tuple[str, float]],
        ) -> Metric:
            family = kind(f"{PREFIX}_{name}", said, labels=[label])
            for key, value in sorted(values):
                family.add_metric([key], value)
            return family

        about = GaugeMetricFamily(
            f"{PREFIX}_info", "What runs here.", labels=["role", "task", "version"]
        )
        about.add_metric([session.role.value, task.name, __version__], 1)
        yield about
        phases = ((each.value, float(each is progress.phase)) for each in Phase)
        yield by(GaugeMetricFamily, "phase", "1 for the present phase.", "phase", phases)
        yield gauge("rounds_done", "Versions released.", session.shelf.current.version)
        yield gauge("rounds_planned", "T of the task.", task.training.rounds)
        yield gauge("owners_enrolled", "Owners enrolled.", len(session.register.roster()))
        yield CounterMetricFamily(
            f"{PREFIX}_identities_twice",
            "How often a second process came under a party's name.",
            value=sum(session.twice.values()),
        )
        yield gauge("workers", "Worker processes that are up.", progress.workers)
        lost = float(progress.lost_at is not None)
        yield gauge("peers_lost", "1 while the other server or the dealer is away.", lost)
        waits = float(progress.needs is not None)
        yield gauge("needs_operators", "1 while the operators of both servers must decide.", waits)
        taken = store.participations()
        yield CounterMetricFamily(
            f"{PREFIX}_participations", "Submissions charged.", value=sum(taken.values())
        )
        states = ((state.value, float(n)) for state, n in store.attempt_states().items())
        yield by(CounterMetricFamily, "attempts", "Attempts by state.", "state", states)
        refused = ((reason.value, float(n)) for reason, n in store.rejections().items())
        yield by(CounterMetricFamily, "rejected", "Submissions not counted.", "reason", refused)
        with self._lock:
            seconds, cpu = dict(self._seconds), dict(self._cpu_seconds)
        yield by(CounterMetricFamily, "step_seconds", "Since this start.", "step", seconds.items())
        yield by(CounterMetricFamily, "step_cpu_seconds", "Of this process.", "step", cpu.items())
        links = ((link, float(n)) for link, n in dict(session.traffic).items())
        yield by(CounterMetricFamily, "link_bytes", "Payloads since this start.", "link", links)
        yield gauge(
            "record_epsilon",
            "Exact ε of a record against one server so far, for the owner with most.",
            self._epsilon(taken),
        )
        if task.privacy.epsilon_limit is not None:
            limit = task.privacy.epsilon_limit
            yield gauge("record_epsilon_limit", "Where both servers stop counting an owner.", limit)

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


@contextmanager
def exported(metrics: Metrics, address: str) -> Iterator[int]:
    """Serve them at ``http://address/metrics`` meanwhile; the port.

    Raises:
        MissingPackage: prometheus_client isn't installed.
        Misconfiguration: nothing can listen there.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
    except ModuleNotFoundError:
        raise MissingPackage("metrics", "prometheus_client", "metrics") from None
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    except OSError as error:
        raise Misconfiguration(
            "metrics", address, f"can't listen there ({error.strerror}); name a free port"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
