"""A part's metrics as a Prometheus reads them, over plain HTTP.

There is no TLS and no name on that port, so its address must be one that only the
Prometheus reaches. Loaded only where the settings ask for metrics.
"""

import logging
import math
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector

from precad import __version__
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Misconfiguration
from precad.common.process_settings import split_address

log = logging.getLogger("precad")

PREFIX = "precad_"
Values = float | Mapping[str, float]
"""One value, or one for each value of a label."""


def gauge(
    *,
    name: str,
    says: str,
    values: Values,
    label: str = "",
) -> Metric:
    """Return what goes up and down, as it is now; ``precad_`` goes before its name."""
    return _filled(
        GaugeMetricFamily,
        name=name,
        says=says,
        values=values,
        label=label,
    )


def counter(
    *,
    name: str,
    says: str,
    values: Values,
    label: str = "",
) -> Metric:
    """Return what only grows; its name ends with ``_total``."""
    return _filled(
        CounterMetricFamily,
        name=name,
        says=says,
        values=values,
        label=label,
    )


def about(role: str, task: str) -> Metric:
    """Return ``precad_info``: what runs here, as labels."""
    labels = {
        "role": role,
        "task": task,
        "version": __version__,
    }
    family = GaugeMetricFamily(PREFIX + "info", "What runs here.", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _filled(
    kind: Any,
    *,
    name: str,
    says: str,
    values: Values,
    label: str,
) -> Metric:
    family = kind(PREFIX + name, says, labels=[label] if label else [])
    if isinstance(values, Mapping):
        for each, value in sorted(values.items()):
            family.add_metric([each], value)
    else:
        family.add_metric([], values)
    made: Metric = family
    return made


AT_ONCE = 16
"""Connections; a Prometheus needs one."""
ASKED_S = 5.0
"""How long one may be silent."""
FRESH_S = 1.0
"""Who asks sooner gets the same values: they take a processor's time."""
PACE_S = 0.01
"""Between connections: who makes them without end takes a tenth of a core, not most of
one."""


class _Handler(WSGIRequestHandler):
    timeout = ASKED_S
    server: "_Server"

    def parse_request(self) -> bool:
        """Read the headers, and note that the request is whole."""
        whole = super().parse_request()
        self.server.asked(self.request)
        return whole

    def log_message(self, *_words: object) -> None:
        """Log no scrape."""


class _Server(ThreadingWSGIServer):
    """Of too many connections the oldest that hasn't asked ends, or the newest."""

    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[_Handler], clock: Clock
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[Any, bool] = {}
        """Whether each has asked."""
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer it, in a thread."""
        self._clock.sleep(PACE_S)
        with self._lock:
            self._open[request] = False
            silent = [each for each, asked in self._open.items() if not asked]
            if len(self._open) > AT_ONCE:
                # Its thread ends, and forgets it.
                with suppress(OSError):
                    silent[0].shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def asked(self, request: Any) -> None:
        """Note that this connection isn't silent."""
        with self._lock:
            self._open[request] = True

    def shutdown_request(self, request: Any) -> None:
        """Forget it, and close it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _Page(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]], clock: Clock) -> None:
        self._collect = collect
        self._clock = clock
        self._one_by_one = threading.Lock()
        self._newest: tuple[float, list[Metric]] = -math.inf, []

    def collect(self) -> list[Metric]:
        """Return the present values; a bug in them is in this part's log."""
        try:
            with self._one_by_one:
                if self._clock.now() - self._newest[0] > FRESH_S:
                    self._newest = self._clock.now(), list(self._collect())
                return self._newest[1]
        except Exception:
            log.exception("the metrics can't be computed")
            raise


@contextmanager
def metrics_page(
    collect: Callable[[], Iterable[Metric]], address: str, clock: Clock = CLOCK
) -> Iterator[None]:
    """Show metrics at ``http://address/metrics`` until the block ends; port 0 takes a free one.

    ``collect`` gives the present values, in threads. Raises Misconfiguration: nothing
    can listen.
    """
    registry = CollectorRegistry()
    registry.register(_Page(collect, clock))
    try:
        server = _Server(split_address(address), _Handler, clock)
    except OSError as error:
        why = f"can't listen there ({error.strerror}); name a free port"
        raise Misconfiguration("metrics", address, why) from None
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(
        target=server.serve_forever,
        name="metrics",
        daemon=True,
    )
    thread.start()
    log.info("metrics on port %d", server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
