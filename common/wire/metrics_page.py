"""A part's metrics on a page that a Prometheus reads, over plain HTTP.

There is no TLS and no name on that port, so its address must be one that only the
Prometheus reaches. Loaded only where the settings ask for metrics.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector

from precad.common import (
    CLOCK,
    Clock,
    MayPass,
    log,
    split_address,
    start_thread,
    this_build,
)
from precad.common.identity import Identity, Principal
from precad.common.identity.endings import endings

PREFIX = "precad_"
"""How every metric's name begins."""
Values = float | Mapping[str, float]
"""One value, or one for each value of a label."""
_STARTED = time.time()
_Connection = Any
"""One scrape's socket, as ``socketserver`` hands it from method to method."""


def metric(name: str, values: Values, *, says: str, label: str = "") -> Metric:
    """Return a metric as it is now: a counter, which only grows, where it is a total.

    ``precad_`` goes before its name, and a counter's ends with ``_total``; ``says`` is
    its help text, and ``label`` the label by which ``values`` differ, empty for one
    value. The values of a label are in order of their names.
    """
    family_type = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = family_type(PREFIX + name, says, labels=[label] if label else [])
    if isinstance(values, Mapping):
        for label_value, value in sorted(values.items()):
            family.add_metric([label_value], value)
    else:
        family.add_metric([], values)
    return family


def about(
    task: str, identity: Identity, met: Mapping[Principal, datetime]
) -> Iterator[Metric]:
    """Yield what every part shows: its labels, its start, and what ends when.

    ``precad_info`` has role, task and version as labels of a 1. Of the other parties
    that ``met`` has, each with its certificate's end, the first end of a role is shown,
    and no name.
    """
    yield _labels(
        "info",
        "What runs here.",
        role=identity.principal.role.value,
        task=task,
        version=this_build().version,
    )
    yield metric(
        "start_time_seconds",
        _STARTED,
        says="When this process began, in Unix time.",
    )
    yield metric(
        "ends_timestamp_seconds",
        # The first of a kind is written last.
        {
            ending.kind: ending.ends.timestamp()
            for ending in sorted(endings(identity, met), reverse=True)
        },
        says="When certificates and revocation lists end: the first of its kind.",
        label="kind",
    )


def _labels(name: str, says: str, **labels: str) -> Metric:
    """Return a metric that is 1 and says all in its labels."""
    family = GaugeMetricFamily(PREFIX + name, says, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def build_info() -> Metric:
    """Return the metric ``precad_build_info``, which every part's page has."""
    build = this_build()
    return _labels(
        "build_info",
        "Which build of precad runs here.",
        version=build.version,
        commit=build.commit,
    )


AT_ONCE = 16
"""Connections at the same time; a Prometheus needs one."""
ASKED_S = 5.0
"""Seconds that a connection may be silent."""
FRESH_S = 1.0
"""Seconds within which everybody gets the same values: to compute them takes a
processor's time."""
PACE_S = 0.01
"""Seconds between connections: who makes them without end takes a tenth of a core, and
not most of one."""


class _Handler(WSGIRequestHandler):
    """Reads one request, and tells the server once it is whole."""

    timeout = ASKED_S
    server: "_Server"

    def parse_request(self) -> bool:
        """Read the headers, and note that the connection isn't silent.

        Returns whether the request can be answered.
        """
        readable = super().parse_request()
        self.server.asked(self.request)
        return readable

    def log_message(self, *_parts: object) -> None:
        """Log no scrape."""


class _Server(ThreadingWSGIServer):
    """An HTTP server that takes ``AT_ONCE`` connections at the same time.

    Of more, the oldest one that hasn't asked for anything ends; that may be the newest.
    """

    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[_Handler], clock: Clock
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[_Connection, bool] = {}
        """Whether each open connection has asked, the oldest first."""
        super().__init__(address, handler)

    def process_request(self, request: _Connection, client_address: object) -> None:
        """Answer a new connection in a thread; of too many, end the oldest silent one.

        ``request`` is the connection's socket.
        """
        self._clock.sleep(PACE_S)
        with self._lock:
            self._open[request] = False
            silent = [
                connection for connection, asked in self._open.items() if not asked
            ]
            if len(self._open) > AT_ONCE:
                # The connection's thread ends, and forgets it.
                with suppress(OSError):
                    silent[0].shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def asked(self, request: _Connection) -> None:
        """Note that this connection isn't silent."""
        with self._lock:
            self._open[request] = True

    def shutdown_request(self, request: _Connection) -> None:
        """Forget a connection, and close it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _Page(Collector):
    """The metrics that a scrape gets, computed at most once in ``FRESH_S`` seconds."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], clock: Clock) -> None:
        self._collect = collect
        self._clock = clock
        self._one_by_one = threading.Lock()
        self._computed_at = -math.inf
        """When ``_newest`` was computed, by the clock."""
        self._newest: list[Metric] = []

    def collect(self) -> list[Metric]:
        """Return the present values; a bug in them is in this part's log."""
        try:
            with self._one_by_one:
                now = self._clock.now()
                if now - self._computed_at > FRESH_S:
                    self._newest = [build_info(), *self._collect()]
                    self._computed_at = now
                return self._newest
        except Exception:
            log.exception("the metrics can't be computed")
            raise


@contextmanager
def metrics_page(
    collect: Callable[[], Iterable[Metric]], address: str, clock: Clock = CLOCK
) -> Iterator[None]:
    """Show metrics at ``http://address/metrics`` until the block ends.

    Port 0 takes a free one; the log says which. ``collect`` returns the present values;
    it is called in threads.

    Raises MayPass: nothing can listen at that address.
    """
    registry = CollectorRegistry()
    registry.register(_Page(collect, clock))
    try:
        server = _Server(split_address(address), _Handler, clock)
    except OSError as error:
        raise MayPass(
            "metrics",
            address,
            f"can't listen there ({error.strerror}): taken, or not up yet",
        ) from None
    server.set_app(make_wsgi_app(registry))
    thread = start_thread("metrics", server.serve_forever)
    log.info("metrics on port %d", server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
