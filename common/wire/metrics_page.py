"""A part's metrics as a Prometheus reads them, over plain HTTP.

There is no TLS and no name on that port, so its address must be one that only the Prometheus
reaches. Loaded only where the settings ask for metrics.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from precad import __version__
from precad.common.addresses import split_address
from precad.common.errors import Misconfiguration

log = logging.getLogger("precad")

PREFIX = "precad_"
Values = float | Mapping[str, float]
"""One value, or one for each value of a label."""


def gauge(name: str, says: str, values: Values, label: str = "") -> Metric:
    """Return what goes up and down, as it is now; ``precad_`` goes before its name."""
    return _with(GaugeMetricFamily(PREFIX + name, says, labels=[label] if label else []), values)


def counter(name: str, says: str, values: Values, label: str = "") -> Metric:
    """Return what only grows; its name ends with ``_total``."""
    return _with(CounterMetricFamily(PREFIX + name, says, labels=[label] if label else []), values)


def about(role: str, task: str) -> Metric:
    """Return ``precad_info``: what runs here, as labels."""
    labels = {"role": role, "task": task, "version": __version__}
    family = GaugeMetricFamily(PREFIX + "info", "What runs here.", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _with(family: Any, values: Values) -> Metric:
    if isinstance(values, Mapping):
        for label, value in sorted(values.items()):
            family.add_metric([label], value)
    else:
        family.add_metric([], values)
    made: Metric = family
    return made


class _Handler(WSGIRequestHandler):
    timeout = 5.0
    """Seconds that a caller may take to ask."""

    def log_message(self, *_words: object) -> None:
        """Log no scrape."""


class _Page(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect
        self._one_by_one = threading.Lock()

    def collect(self) -> list[Metric]:
        """Return the present values; a bug in them is in this part's log."""
        try:
            with self._one_by_one:
                return list(self._collect())
        except Exception:
            log.exception("the metrics can't be computed")
            raise


@contextmanager
def metrics_page(collect: Callable[[], Iterable[Metric]], address: str) -> Iterator[None]:
    """Show metrics at ``http://address/metrics`` until the block ends.

    Args:
        collect: the present values; called in threads.
        address: ``host:port``; port 0 takes a free one, which the log says.

    Raises Misconfiguration: nothing can listen there.
    """
    host, port = split_address(address)
    registry = CollectorRegistry()
    registry.register(_Page(collect))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        why = f"can't listen there ({error.strerror}); name a free port"
        raise Misconfiguration("metrics", address, why) from None
    server.RequestHandlerClass = _Handler
    log.info("metrics on port %d", server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
